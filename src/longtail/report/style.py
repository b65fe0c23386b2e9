"""What figures for print and those of the page share: colours, dashes, markers and panels."""

from __future__ import annotations

from typing import Any

from longtail.names import METHOD_NAMES
from longtail.report.groups import Group, display
from longtail.report.tables import Table

# Okabe and Ito's colours, told apart by readers with any colour vision, and four more for ablations
COLOURS = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#A6192E", "#8C6D31", "#777777", "#6A3D9A",
]  # fmt: skip
DASHES = {"continual": "-", "reset": "--", "carry": ":"}
MARKERS = "osD^vP*X"
MOST_PANELS = 6


class Look:
    """One colour per method, solid with MC and dashed without.

    Per row of an ablation, and per policy where one method has more than two.
    """

    def __init__(self, groups: list[Group]) -> None:
        methods, policies = ({g.labels.get(key) for g in groups} for key in ("method", "policy"))
        self._key = "policy" if len(methods) == 1 and len(policies) > 2 else "method"
        if any("row" in g.labels for g in groups):
            self._key = "row"
        self._keys = list(dict.fromkeys(str(g.labels.get(self._key)) for g in groups))
        if self._key == "method":  # so that two reports give a method the same colour
            known = [m for m in METHOD_NAMES if m in self._keys]
            self._keys = known + [k for k in self._keys if k not in known]

    def index(self, g: Group) -> int:
        return self._keys.index(str(g.labels.get(self._key)))

    def colour(self, g: Group) -> str:
        return COLOURS[self.index(g) % len(COLOURS)]

    def dash(self, g: Group) -> str:
        if self._key == "row":
            return ["-", "--", ":"][self.index(g) // len(COLOURS) % 3]
        return DASHES.get(str(g.labels.get("policy")), "-.")

    def marker(self, g: Group) -> str:
        return MARKERS[self.index(g) % len(MARKERS)]


def panels(groups: list[Group], table: Table) -> list[tuple[str, list[Group]]]:
    """Groups by the label that is neither method nor policy, such as `setting`."""
    skipped = ("method", "policy", "row", "first_moment", "second_moment", "lr_adjust")
    keys = [k for g in groups for k in g.labels if k not in skipped]
    for key in ([table.columns] if table.columns in keys else []) + list(dict.fromkeys(keys)):
        values = list(dict.fromkeys(g.labels.get(key) for g in groups))
        if 1 < len(values) <= MOST_PANELS:
            parts = [[g for g in groups if g.labels.get(key) == v] for v in values]
            return [(_title(str(key), v), part) for v, part in zip(values, parts, strict=True)]
    return [("", groups)]


def _title(key: str, value: Any) -> str:
    text = display(key, value)  # a number, yes or no says nothing without its name
    return text if isinstance(value, str) else f"{key.replace('_', ' ')} {text}"


def scale_of(table: Table) -> float:
    return 100.0 if table.unit == "percent" else 1.0
