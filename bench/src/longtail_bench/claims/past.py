"""What is asked of a past in fewer bytes: that RP is that of one in float32, within a tolerance.

Rows differ in how v_c is kept and in nothing else, so they are compared seed by seed:

    |RP of fewer bytes - RP of float32| < tolerance

with the tolerance two standard errors of the difference away. A comparison too noisy to see so
little is undecided, however small its difference is. Whether there is any difference at all is
another question: the difference and its standard error stand beside each claim.
"""

from __future__ import annotations

from longtail.report.checks import Claim, Margin, Row, Rows, claim, margin
from longtail.report.groups import measured

FULL = "float32"
POINT = 1.0  # of a score in percent
SHARE = 0.05  # of an error
_NOT_NAMES = ("policy", "past_dtype", "lr_adjust", "seeds", "tasks", "diverged", "selected")


def past_dtype(rows: Rows) -> list[Claim]:
    """Of scores in percent: each type against float32, within a point."""
    return [_same(row, full, POINT, "a point") for row, full in _pairs(rows)]


def past_dtype_errors(rows: Rows) -> list[Claim]:
    """Of errors: each type against float32, within a twentieth of the latter's error."""
    words = f"{SHARE:.0%} of its error"
    return [_same(row, full, SHARE * (full["RP"] or 0.0), words) for row, full in _pairs(rows)]


def _pairs(rows: Rows) -> list[tuple[Row, Row]]:
    """Each row of fewer bytes, and that of float32 of the same name."""
    full = {_name(row): row for row in rows if row["policy"] == FULL}
    if not full:
        raise KeyError(f"rows with policy {FULL}")
    others = (row for row in rows if row["policy"] != FULL)
    return [(row, full[_name(row)]) for row in others if _name(row) in full]


def _same(row: Row, full: Row, tolerance: float, words: str) -> Claim:
    gap = margin([(1.0, row), (-1.0, full)])
    numbers = {row["policy"]: row.get("RP"), FULL: full.get("RP"), "difference": gap.value}
    text = f"{_name(row)}: RP with {row['policy']} is that of {FULL} within {words}"
    return claim(text, Margin(tolerance - abs(gap.value), gap.se).positive, **numbers, se=gap.se)


def _name(row: Row) -> str:
    named = {k: v for k, v in row.items() if k not in _NOT_NAMES and not measured(k)}
    return " ".join(str(v) if k == "method" else f"{k}={v}" for k, v in named.items())
