"""What figures for print and those of the page share: colours, widths, markers, axes and panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from longtail.report.groups import POLICY_LABELS, Group, display, is_policy
from longtail.report.labels import method_names
from longtail.report.series import Series
from longtail.report.tables import Table

# Okabe and Ito's colours, told apart by readers with any colour vision, and four more for ablations
COLOURS = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#A6192E", "#8C6D31", "#777777", "#6A3D9A",
]  # fmt: skip
DASHES = {"continual": "-", "kept": ":", "new": "--"}
MARKERS = "osD^vP*X"
MOST_PANELS = 6
STRONG, PLAIN, THIN = 3.0, 1.8, 1.1  # widths of our lines, of those beside them, of the others
DECADES = 1.5  # values that span more of them get a logarithmic axis
DIVERGED = "x"  # the marker where a seed diverged


class Look:
    """One colour per method, solid with MC and dashed without; the first of the pair is strong.

    Per row of an ablation, and per policy where one method has more than two; the pair comes first
    then, so that ours has the same colour everywhere.
    """

    def __init__(self, groups: list[Group], pair: tuple[str, str] = ("continual", "new")) -> None:
        self._pair = pair
        methods, policies = ({g.labels.get(key) for g in groups} for key in ("method", "policy"))
        self._key = "policy" if len(methods) == 1 and len(policies) > 2 else "method"
        if any("row" in g.labels for g in groups):
            self._key = "row"
        self._keys = list(dict.fromkeys(str(g.labels.get(self._key)) for g in groups))
        if self._key == "method":  # so that two reports give a method the same colour
            known = [m for m in method_names() if m in self._keys]
            self._keys = known + [k for k in self._keys if k not in known]
        else:
            ours = [str(g.labels.get(self._key)) for p in pair for g in groups if is_policy(g, p)]
            self._keys = list(dict.fromkeys([*ours, *self._keys]))
        self._told_apart = any(is_policy(g, pair[0]) for g in groups)

    def strong(self, g: Group) -> bool:
        """Whether this is ours."""
        return is_policy(g, self._pair[0])

    def width(self, g: Group) -> float:
        if not self._told_apart:
            return PLAIN
        other = self._key != "method" and is_policy(g, self._pair[1])
        return STRONG if self.strong(g) else PLAIN if other else THIN

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
    skipped = ("method", "policy", *POLICY_LABELS)
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


@dataclass(frozen=True)
class Axis:
    """How values are placed: on a line, by their logarithm, or by that of a distance from zero.

    Args:
        kind: "linear", "log" or "symlog".
        width: of the part around zero that is linear, for "symlog": y -> asinh(y / width).
    """

    kind: str = "linear"
    width: float = 1.0

    def place(self, values: np.ndarray) -> np.ndarray:
        return np.arcsinh(np.asarray(values) / self.width) if self.kind == "symlog" else values

    def ticks(self, values: np.ndarray) -> list[float]:
        """Zero and powers of ten on both of its sides, for "symlog"."""
        values = values[np.isfinite(values)]
        largest = float(np.abs(values).max(initial=self.width))
        powers = np.arange(np.ceil(np.log10(self.width)), np.floor(np.log10(largest)) + 1)
        tens = [float(f"1e{int(power)}") for power in powers]
        below = [-v for v in reversed(tens) if values.min(initial=0.0) <= -v]
        return [*below, 0.0, *(v for v in tens if values.max(initial=0.0) >= v)]


def axis_for(found: list[list[Series]]) -> Axis:
    """The axis of panels with these lines: logarithmic where their ends span decades."""
    ends = [np.abs([s.mean[-1] for s in part]) for part in found]
    ends = [e[np.isfinite(e) & (e > 0)] for e in ends]
    if not any(len(e) > 1 and np.log10(e.max() / e.min()) > DECADES for e in ends):
        return Axis()
    if all((s.mean[np.isfinite(s.mean)] > 0).all() for part in found for s in part):
        return Axis("log")
    # The panel with the smallest values must show them too.
    return Axis("symlog", float(f"{min(np.median(e) for e in ends if len(e)) / 10:.1g}"))


def wide_span(values: np.ndarray) -> bool:
    """Whether numbers are all positive and span decades."""
    values = values[np.isfinite(values)]
    positive = len(values) > 0 and bool((values > 0).all())
    return positive and float(np.log10(values.max() / values.min())) > DECADES


def line_label(groups: list[Group], line: str) -> str:
    """The name of a line in a legend, with its mark where seeds of it diverged."""
    some = [g for g in groups if g.line == line]
    count, runs = sum(len(g.diverged) for g in some), sum(len(g.runs) for g in some)
    return f"{line} † ({count} of {runs} diverged)" if count else line


def divergences(g: Group, s: Series) -> tuple[np.ndarray, np.ndarray]:
    """Where to mark the seeds that diverged: the number of tasks learned, and the line's height."""
    known = np.isfinite(s.mean)
    if not g.diverged or not known.any():
        return np.array([]), np.array([])
    last = float(s.x[known][-1])
    at = [run.summary.get("diverged_at") for run in g.diverged]
    tasks = np.array([last if task is None else min(float(task) + 1, last) for task in at])
    return tasks, np.interp(tasks, s.x[known], s.mean[known])
