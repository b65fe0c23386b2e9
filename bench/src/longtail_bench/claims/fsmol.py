"""What the paper's claims become on FS-Mol, a field it never looked at.

Each side has the learning rate that its own validation molecules chose, and there are two other
sides: `new`, a fresh optimizer for every task, and `kept`, Adam that is not told about tasks.
"""

from __future__ import annotations

from typing import Any

from longtail.names import KEPT
from longtail.report.checks import (
    Claim,
    Rows,
    above,
    against_kept,
    claim,
    find,
    gap_grows,
    margin,
    multitask_above,
    with_and_without,
)
from longtail.report.labelling import NO_WARM_UP
from longtail.report.labels import method_names

OURS = "continual"
OTHERS = {"new": "a fresh optimizer for every task", "kept": KEPT}
HALF = 0.5  # of the way from Finetune to multi-task training

Variant = dict[str, Any]  # method, and buffer where it has one


def fsmol(rows: Rows) -> list[Claim]:
    """With MC against both others for every method and buffer, then what is known of the gap."""
    variants = _variants(rows)
    claims = [_raises(rows, v) for v in variants]
    claims += [c for v in variants for c in against_kept(rows, _name(v), **v)]
    claims += [_forgets_less(rows, v) for v in variants]
    claims += [_gap_grows(rows, other) for other in OTHERS]
    claims += [multitask_above(rows), *(_closes_half(rows, v) for v in variants)]
    claims.append(_warm_up(rows))
    claims += [_in_the_tail(rows, other) for other in OTHERS]
    return claims


def _variants(rows: Rows) -> list[Variant]:
    found: list[Variant] = []
    for row in rows:
        labels = {k: row[k] for k in ("method", "buffer") if row.get(k) is not None}
        if row["method"] != "multitask" and labels not in found:
            found.append(labels)
    return found


def _name(variant: Variant) -> str:
    buffer = f" with a buffer of {variant['buffer']}" if "buffer" in variant else ""
    return method_names()[variant["method"]] + buffer


def _raises(rows: Rows, variant: Variant) -> Claim:
    ours, theirs = (find(rows, policy=policy, **variant) for policy in (OURS, "new"))
    text = f"{_name(variant)}: MC raises RP"
    return above(text, ours, theirs, **with_and_without(ours, theirs))


def _forgets_less(rows: Rows, variant: Variant) -> Claim:
    ours, theirs = (find(rows, policy=policy, **variant) for policy in (OURS, "new"))
    text = f"{_name(variant)}: MC forgets less than {OTHERS['new']}"
    numbers = {"with_mc": ours["FGT"], "new": theirs["FGT"]}
    return above(text, ours, theirs, "FGT", lower=True, **numbers)


def _gap_grows(rows: Rows, other: str) -> Claim:
    ours, theirs = (find(rows, method="finetune", policy=p) for p in (OURS, other))
    text = f"Finetune: the gap between MC and {OTHERS[other]} grows with the number of tasks"
    return gap_grows(text, ours, theirs)


def _closes_half(rows: Rows, variant: Variant) -> Claim:
    """Of the way from Finetune without MC to multi-task training; the share is in the numbers.

    ours - start >= HALF (top - start) is what has to be told from zero.
    """
    top, start = find(rows, method="multitask"), find(rows, method="finetune", policy="new")
    ours = find(rows, policy=OURS, **variant)
    found = margin([(1.0, ours), (HALF - 1.0, start), (-HALF, top)])
    way = top["RP"] - start["RP"]
    numbers = {"finetune": start["RP"], "ours": ours["RP"], "multitask": top["RP"]}
    share = (ours["RP"] - start["RP"]) / way if way else None
    text = f"{_name(variant)}: with MC it closes half of the gap to multi-task training"
    return claim(text, found.positive, **numbers, share=share, se=found.se)


def _warm_up(rows: Rows) -> Claim:
    """Most tasks have three steps, of which 1 - 0.9^t leaves 10, 19 and 27 percent."""
    ours, without = (find(rows, method="finetune", policy=p) for p in (OURS, NO_WARM_UP))
    text = "Finetune: the warm-up of MC (beta3 = 0.9) raises RP"
    return above(text, ours, without, with_warm_up=ours["RP"], without=without["RP"])


def _in_the_tail(rows: Rows, other: str) -> Claim:
    """Whether the small tasks gain as well, and not the large ones alone."""
    ours, theirs = (find(rows, method="finetune", policy=p) for p in (OURS, other))
    gains = {
        f"{size}_gain": ours[f"breakdown.{size}.RP"] - theirs[f"breakdown.{size}.RP"]
        for size in ("head", "body", "tail")
    }
    text = f"Finetune: MC retains more than {OTHERS[other]} in the smaller half of the tasks"
    return above(text, ours, theirs, "breakdown.tail.RP", **gains)
