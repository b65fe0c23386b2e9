"""What is asked of a past in fewer bytes: that nobody can tell it from one in float32 by its RP.

Rows differ in how v_c is kept and in nothing else, so they are compared seed by seed. Two standard
errors are looked at: that of the difference, which tells whether there is any, and float32's own,
which tells whether it is more than what another seed does.
"""

from __future__ import annotations

from typing import Any

from longtail.report.checks import Claim, Margin, Row, Rows, claim, margin
from longtail.report.groups import measured

FULL = "float32"
_NOT_NAMES = ("policy", "past_dtype", "lr_adjust", "seeds", "tasks", "diverged", "selected")


def past_dtype(rows: Rows) -> list[Claim]:
    """Of everything that was trained with several types, each against float32."""
    full = {_name(row): row for row in rows if row["policy"] == FULL}
    if not full:
        raise KeyError(f"rows with policy {FULL}")
    found = []
    for row in rows:
        if row["policy"] != FULL and _name(row) in full:
            found += _same(row, full[_name(row)])
    return found


def _same(row: Row, full: Row) -> list[Claim]:
    """That RP differs by no more than one standard error, of the difference and of float32."""
    gap = margin([(1.0, row), (-1.0, full)])
    numbers = {row["policy"]: row.get("RP"), FULL: full.get("RP"), "difference": gap.value}
    what = f"{_name(row)}: RP with {row['policy']} is within one standard error"
    own = full.get("RP_se")
    near = None if own is None else abs(gap.value) <= own
    return [
        claim(f"{what} of the paired difference from {FULL}", _near(gap), **numbers, se=gap.se),
        claim(f"{what} of {FULL}'s own RP", near, **numbers, se=own),
    ]


def _near(gap: Margin) -> bool | None:
    """Within one standard error; beyond two it is not, and between them nobody knows."""
    if gap.se is None:
        return None
    if abs(gap.value) <= gap.se:
        return True
    return None if gap.positive is None else False


def _name(row: dict[str, Any]) -> str:
    named = {k: v for k, v in row.items() if k not in _NOT_NAMES and not measured(k)}
    return " ".join(str(v) if k == "method" else f"{k}={v}" for k, v in named.items())
