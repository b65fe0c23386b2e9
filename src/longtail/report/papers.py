"""Published numbers, to be shown beside ours: what packages offer as ``longtail.papers``.

An entry point names a dictionary of tables. A table has its ``unit``, a ``caption`` and ``rows``,
each with the labels of a row of ours and its numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from longtail.names import METRICS
from longtail.support import doors

GROUP = "longtail.papers"


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for _, paper in doors.load_all(GROUP):
        tables |= paper
    return tables


def names() -> list[str]:
    return list(_tables())


def unit(name: str) -> str:
    return _table(name)["unit"]


def caption(name: str) -> str:
    return _table(name)["caption"]


def _table(name: str) -> dict[str, Any]:
    if name not in _tables():
        raise ValueError(
            f"Unknown table of a paper: {name!r}; known: {', '.join(names())}{doors.hint()}"
        )
    return _tables()[name]


def numbers(name: str, row: dict[str, Any]) -> dict[str, float]:
    """What the paper reports for the row that `row` names, {} where it reports nothing.

    A row of the paper matches when all that names it (method and policy, or row and setting) is
    in `row` with the same value.
    """
    for entry in _table(name)["rows"]:
        named = {k: v for k, v in entry.items() if k.partition("_")[0] not in METRICS}
        if all(_same(row.get(k), v) for k, v in named.items()):
            return {k: v for k, v in entry.items() if k not in named}
    return {}


def _same(ours: Any, theirs: Any) -> bool:
    return str(ours) == str(theirs)


def agreement(ours: float, theirs: float, unit: str) -> str:
    """How far apart: "close" and "near" are 1 and 5 points, or a factor of 1.25 and 2."""
    if unit == "percent":
        distance, steps = abs(ours - theirs), (1.0, 5.0)
    elif ours * theirs > 0:
        distance, steps = max(ours / theirs, theirs / ours), (1.25, 2.0)
    else:
        return "far" if abs(ours - theirs) > 0.01 else "close"
    return "close" if distance <= steps[0] else "near" if distance <= steps[1] else "far"
