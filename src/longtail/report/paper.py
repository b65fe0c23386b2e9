"""The paper's numbers, to be shown beside ours."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from longtail.names import METRICS


@cache
def _tables() -> dict[str, Any]:
    text = resources.files("longtail.report").joinpath("paper_tables.json").read_text("utf-8")
    return json.loads(text)


def names() -> list[str]:
    return list(_tables())


def unit(name: str) -> str:
    return _table(name)["unit"]


def caption(name: str) -> str:
    return _table(name)["caption"]


def _table(name: str) -> dict[str, Any]:
    if name not in _tables():
        raise ValueError(f"Unknown table of the paper: {name!r}; known: {', '.join(names())}")
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
