"""What the paper finds on VQA-CL, as claims on our rows.

With MC every method retains more, forgets less and gains from later tasks (positive backward
transfer); replay with MC is best; multi-task training bounds all. The gap grows with the number of
tasks (its Figure 1, right). What it finds on WSD-CL too stands in `long_sequences.py`.
"""

from __future__ import annotations

import math

from longtail.report.checks import (
    Claim,
    Rows,
    above,
    above_all,
    at_least,
    claim,
    find,
    gap_grows,
    multitask_above,
    some,
    verdict_of,
    with_and_without,
    within,
)
from longtail_bench.claims.long_sequences import (
    POLICIES,
    above_kept,
    called,
    finetune_beats,
    improves_every,
    methods_with,
    nearer_to_mtl,
)

REPLAY = ("reservoir", "derpp")
BOUNDS = (60.0, 90.0)  # of RP in multi-task training: a world that is neither hopeless nor trivial


def vqa(rows: Rows) -> list[Claim]:
    """The claims that the table has rows for; one for each method where the paper makes it so.

    Raises:
        KeyError: no method has rows that can be compared.
    """
    methods = methods_with(rows, POLICIES)
    kept = [c for method in methods_with(rows) for c in above_kept(rows, method)]
    if not methods and not kept:
        raise KeyError("rows of a method with policy continual and with new or kept")
    claims = difficulty(rows)
    raised = [_compare(rows, method, "RP", "raises", 1) for method in methods]
    claims += [*raised, *([improves_every(raised)] if len(methods) > 1 else [])]
    if "finetune" in methods and len(methods) > 1:
        claims.append(finetune_beats(rows, methods))
    claims += [_compare(rows, method, "FGT", "lowers", -1) for method in methods]
    claims += [_compare(rows, method, "BWT", "raises", 1) for method in methods]
    for method in methods:
        row = find(rows, method=method, policy="continual")
        text = f"{called(method)}: backward transfer is positive with MC"
        claims.append(at_least(text, row, 0.0, "BWT", **_paper(row, "BWT")))
    if {method in REPLAY for method in methods} == {True, False}:
        claims.append(_best_is_replay(rows, methods))
    if any(row["method"] == "multitask" for row in rows):
        if any(row["RP"] is not None for row in rows if row["method"] != "multitask"):
            claims.append(multitask_above(rows))
        claims += [c for method in methods for c in nearer_to_mtl(rows, method)]
    claims += [_gap_grows(rows, method) for method in methods if _has_curve(rows, method)]
    return claims + kept


def difficulty(rows: Rows) -> list[Claim]:
    """Whether the generated world can tell methods apart, by multi-task training alone."""
    low, high = BOUNDS
    text = f"Multi-task training has an RP between {low:g} and {high:g}"
    found = [
        within(text, row, (low + high) / 2, (high - low) / 2)
        for row in rows
        if row["method"] == "multitask"
    ]
    if len(found) < 2:
        return found
    # Several worlds were tried: one that fits is enough.
    holds = some(map(verdict_of, found))
    return [claim(text, holds, **{f"RP_{i}": c["numbers"]["RP"] for i, c in enumerate(found)})]


def _compare(rows: Rows, method: str, metric: str, word: str, sign: int) -> Claim:
    ours, theirs = (find(rows, method=method, policy=policy) for policy in POLICIES)
    text = f"{called(method)}: MC {word} {metric}"
    numbers = with_and_without(ours, theirs, metric)
    return above(text, ours, theirs, metric, lower=sign < 0, **numbers)


def _best_is_replay(rows: Rows, methods: list[str]) -> Claim:
    with_mc = {m: find(rows, method=m, policy="continual") for m in methods}
    replay = [row for m, row in with_mc.items() if m in REPLAY]
    best = max(replay, key=lambda row: -math.inf if row["RP"] is None else row["RP"])
    others = [row for m, row in with_mc.items() if m not in REPLAY]
    text = "With MC, the best method is one that replays (Reservoir in the paper)"
    return above_all(text, best, others, **{m: row["RP"] for m, row in with_mc.items()})


def _has_curve(rows: Rows, method: str) -> bool:
    return all("RP_curve" in find(rows, method=method, policy=p) for p in POLICIES)


def _gap_grows(rows: Rows, method: str) -> Claim:
    ours, theirs = (find(rows, method=method, policy=policy) for policy in POLICIES)
    text = f"{called(method)}: the gain of MC grows with the number of tasks"
    return gap_grows(text, ours, theirs)


def _paper(row: dict[str, object], metric: str) -> dict[str, object]:
    return {"paper": row[f"{metric}_paper"]} if f"{metric}_paper" in row else {}
