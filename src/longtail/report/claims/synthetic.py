"""What the paper finds in its synthetic study, as claims on our rows.

Rows 1 to 10 of Table 1 are the policies (first moment, second moment, learning-rate adjustment):

    1, 2  reset, reset    3, 4  reset, EA    5, 6  EA, EA    7, 8  reset, TA    9, 10  TA, TA

odd rows with the adjustment, even ones without; row 7 is Continual Adam, row 2 Adam, row 11 MTL.
"Not above" and "equal" are read with the standard errors of the two means: a claim holds unless
they are further apart than `NOISE` standard errors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from longtail.report.checks import Claim, Rows, claim, find, gap_grows

SETTINGS = ("same", "perturb", "shift")
RELATED = ("same", "perturb")
LEARNERS = (1, 2, 3, 4, 7, 8)  # rows that reset the first moment
KEEPERS = (3, 4, 7, 8)  # those of them that keep the second
NOISE = 3.0
RATIO_BAR, LP_BAR = 0.35, 0.03


def table1(rows: Rows) -> list[Claim]:
    """Agreement with the paper's Table 1, and its findings."""
    claims = [_ratio(rows), *(_learned(rows, setting) for setting in SETTINGS)]
    for setting in RELATED:
        claims += _ablation(rows, setting)
    shift = {row: _rp(rows, row, "shift") for row in range(1, 12)}
    worst = min(shift[row] for row in range(1, 11))
    claims.append(
        claim(
            "shift: MTL is far below every row (at most half)",
            shift[11] <= 0.5 * worst,
            mtl=shift[11],
            best_row=worst,
        )
    )
    kept = [shift[row] for row in KEEPERS]
    claims.append(
        claim(
            "shift: rows 3, 4, 7 and 8 are within 10% of each other",
            max(kept) <= 1.1 * min(kept),
            **_named(shift, KEEPERS),
        )
    )
    claims += [_same_lp(rows, setting) for setting in SETTINGS]
    if "RP_curve" in find(rows, row=7, setting="same"):
        pairs = {s: (find(rows, row=7, setting=s), find(rows, row=2, setting=s)) for s in RELATED}
        claims += [_gap_grows(setting, *pair) for setting, pair in pairs.items()]
    return claims


def figure2(rows: Rows) -> list[Claim]:
    """Figure 2: the gap between Continual Adam and Adam grows with the number of tasks."""
    return [
        _gap_grows(s, *(find(rows, policy=p, setting=s) for p in ("continual", "reset")))
        for s in RELATED
    ]


def methods(rows: Rows) -> list[Claim]:
    """MC lowers the error of every method, and the best of all is a replay method with MC."""
    names = list(dict.fromkeys(r["method"] for r in rows if r["method"] != "multitask"))
    claims = []
    for method in names:
        ours, theirs = (find(rows, method=method, policy=p) for p in ("continual", "reset"))
        numbers = {"with_mc": ours["RP"], "without_mc": theirs["RP"]}
        claims.append(claim(f"{method}: MC lowers RP", ours["RP"] < theirs["RP"], **numbers))
    with_mc = {m: find(rows, method=m, policy="continual")["RP"] for m in names}
    best = min(with_mc, key=lambda m: with_mc[m])
    claims.append(claim("Reservoir with MC is the best of all", best == "reservoir", **with_mc))
    return claims


def _ablation(rows: Rows, setting: str) -> list[Claim]:
    rp = {row: _rp(rows, row, setting) for row in range(1, 11)}
    claims = [
        claim(
            f"{setting}: keeping the second moment (rows 3, 4, 7, 8) is below resetting it (1, 2)",
            max(rp[r] for r in KEEPERS) < min(rp[1], rp[2]),
            **_named(rp, (*KEEPERS, 1, 2)),
        ),
        claim(f"{setting}: row 1 is below row 2", rp[1] < rp[2], **_named(rp, (1, 2))),
        claim(
            f"{setting}: row 7 is not above row 3",
            rp[7] - rp[3] <= NOISE * _se(rows, (7, 3), setting, "RP"),
            **_named(rp, (7, 3)),
        ),
    ]
    for kept, reset in ((5, 3), (6, 4), (9, 7), (10, 8)):
        text = f"{setting}: keeping the first moment is worse (row {kept} above row {reset})"
        claims.append(claim(text, rp[kept] > rp[reset], **_named(rp, (kept, reset))))
    text = f"{setting}: rows 9 and 10 are worse by orders of magnitude (a hundred times rows 7, 8)"
    holds = rp[9] > 100 * rp[7] and rp[10] > 100 * rp[8]
    claims.append(claim(text, holds, **_named(rp, (7, 9, 8, 10))))
    text = f"{setting}: row 6 is far above row 5 (five times)"
    claims.append(claim(text, rp[6] > 5 * rp[5], **_named(rp, (5, 6))))
    return claims


def _ratio(rows: Rows) -> Claim:
    """Mean |log(ours / paper)| over the thirty RPs and the three of MTL."""
    pairs = [(r["RP"], r["RP_paper"]) for r in rows if "RP_paper" in r]
    if len(pairs) < 33:
        raise KeyError(f"33 rows with the paper's RP, got {len(pairs)}")
    ratio = float(np.mean([abs(math.log(ours / theirs)) for ours, theirs in pairs]))
    text = f"RP is near the paper's: mean absolute log ratio at most {RATIO_BAR}"
    return claim(text, ratio <= RATIO_BAR, mean_absolute_log_ratio=ratio, numbers=len(pairs))


def _learned(rows: Rows, setting: str) -> Claim:
    lp = {row: find(rows, row=row, setting=setting)["LP"] for row in LEARNERS}
    text = f"{setting}: LP of rows 1-4, 7 and 8 is at most {LP_BAR}"
    return claim(text, max(lp.values()) <= LP_BAR, **_named(lp, LEARNERS))


def _same_lp(rows: Rows, setting: str) -> Claim:
    """In the paper all six read 0.01 (in print), so "equal" is to its two decimals or the noise."""
    lp = {row: find(rows, row=row, setting=setting)["LP"] for row in LEARNERS}
    high, low = max(lp, key=lambda r: lp[r]), min(lp, key=lambda r: lp[r])
    allowed = max(0.01, NOISE * _se(rows, (high, low), setting, "LP"))
    text = f"{setting}: LP of rows 1-4, 7 and 8 is equal within noise, or to 0.01"
    return claim(text, lp[high] - lp[low] <= allowed, **_named(lp, LEARNERS), allowed=allowed)


def _gap_grows(setting: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Claim:
    text = f"{setting}: the gap between Continual Adam and Adam grows with the number of tasks"
    return gap_grows(text, ours, theirs, sign=-1)


def _rp(rows: Rows, row: int, setting: str) -> float:
    value = find(rows, row=row, setting=setting)["RP"]
    return math.inf if value is None else value  # every run of it diverged


def _se(rows: Rows, pair: tuple[int, int], setting: str, metric: str) -> float:
    """Standard error of a difference of two means; 0 where there is one seed."""
    errors = [find(rows, row=row, setting=setting).get(f"{metric}_se") or 0.0 for row in pair]
    return math.hypot(*errors)


def _named(values: dict[int, float], rows: tuple[int, ...]) -> dict[str, float]:
    return {f"row_{row}": values[row] for row in rows}
