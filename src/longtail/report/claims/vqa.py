"""What the paper finds on VQA-CL, as claims on our rows.

With MC every method retains more, forgets less and gains from later tasks (positive backward
transfer); replay with MC is best; multi-task training bounds all. The gap grows with the number of
tasks (its Figure 1, right).
"""

from __future__ import annotations

from longtail.names import METHOD_NAMES
from longtail.report.checks import Claim, Rows, claim, find, gap_grows

POLICIES = ("continual", "reset")
REPLAY = ("reservoir", "derpp")
BOUNDS = (60.0, 90.0)  # of RP in multi-task training: a world that is neither hopeless nor trivial


def vqa(rows: Rows) -> list[Claim]:
    """All claims; one for each method where the paper makes it of every method."""
    methods = list(dict.fromkeys(r["method"] for r in rows if r["method"] != "multitask"))
    claims = difficulty(rows)
    claims += [_compare(rows, method, "RP", "raises", 1) for method in methods]
    claims += [_compare(rows, method, "FGT", "lowers", -1) for method in methods]
    claims += [_compare(rows, method, "BWT", "raises", 1) for method in methods]
    for method in methods:
        row = find(rows, method=method, policy="continual")
        text = f"{METHOD_NAMES[method]}: backward transfer is positive with MC"
        claims.append(claim(text, row["BWT"] > 0, BWT=row["BWT"], **_paper(row, "BWT")))
    claims.append(_best_is_replay(rows, methods))
    top = find(rows, method="multitask")["RP"]
    best = max(r["RP"] for r in rows if r["method"] != "multitask")
    text = "Multi-task training retains more than any method"
    claims.append(claim(text, top > best, multitask=top, best=best))
    claims += [_gap_grows(rows, method) for method in methods if _has_curve(rows, method)]
    return claims


def difficulty(rows: Rows) -> list[Claim]:
    """Whether the generated world can tell methods apart, by multi-task training alone."""
    scores = [row["RP"] for row in rows if row["method"] == "multitask"]
    low, high = BOUNDS
    text = f"Multi-task training has an RP between {low:g} and {high:g}"
    fits = [low <= score <= high for score in scores]
    named = {f"RP_{i}" if i else "RP": score for i, score in enumerate(scores)}
    return [claim(text, any(fits), **named)]


def _compare(rows: Rows, method: str, metric: str, word: str, sign: int) -> Claim:
    ours, theirs = (find(rows, method=method, policy=policy) for policy in POLICIES)
    gain = ours[metric] - theirs[metric]
    numbers = {"with_mc": ours[metric], "without_mc": theirs[metric]}
    paper = [_paper(row, metric).get("paper") for row in (ours, theirs)]
    if None not in paper:
        numbers |= {"paper_with_mc": paper[0], "paper_without_mc": paper[1]}
    text = f"{METHOD_NAMES[method]}: MC {word} {metric}"
    return claim(text, sign * gain > 0, **numbers, difference=gain)


def _best_is_replay(rows: Rows, methods: list[str]) -> Claim:
    with_mc = {m: find(rows, method=m, policy="continual")["RP"] for m in methods}
    best = max(with_mc, key=lambda m: with_mc[m])
    text = "With MC, the best method is one that replays (Reservoir in the paper)"
    return claim(text, best in REPLAY, **with_mc)


def _has_curve(rows: Rows, method: str) -> bool:
    return all("RP_curve" in find(rows, method=method, policy=p) for p in POLICIES)


def _gap_grows(rows: Rows, method: str) -> Claim:
    ours, theirs = (find(rows, method=method, policy=policy) for policy in POLICIES)
    text = f"{METHOD_NAMES[method]}: the gain of MC grows with the number of tasks"
    return gap_grows(text, ours, theirs)


def _paper(row: dict[str, object], metric: str) -> dict[str, object]:
    return {"paper": row[f"{metric}_paper"]} if f"{metric}_paper" in row else {}
