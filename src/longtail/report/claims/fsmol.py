"""What the paper's claims become on FS-Mol, a field it never looked at.

Each side has the learning rate that its own validation molecules chose, and there are two other
sides: `reset`, a fresh optimizer for every task, and `carry`, Adam that is not told about tasks. A
claim about a difference holds where it is larger than two standard errors; the other direction, or
a difference that ten seeds cannot tell from none, does not hold.
"""

from __future__ import annotations

import math
from typing import Any

from longtail.names import METHOD_NAMES
from longtail.report.checks import Claim, Rows, claim, find, gap_grows

OURS = "continual"
OTHERS = {"reset": "a fresh optimizer for every task", "carry": "Adam kept as it is"}
NO_WARM_UP = "continual without warm-up"
ERRORS = 2.0  # standard errors that a difference has to exceed


def fsmol(rows: Rows) -> list[Claim]:
    """With MC against both others for every method and buffer, then what is known of the gap."""
    variants = _variants(rows)
    claims = [_more(rows, v, other) for v in variants for other in OTHERS]
    claims += [_forgets_less(rows, v) for v in variants]
    claims += [_gap_grows(rows, other) for other in OTHERS]
    claims += [_bounded(rows), *(_closes(rows, v) for v in variants)]
    claims.append(_warm_up(rows))
    claims += [_by_size(rows, other) for other in OTHERS]
    return claims


def _variants(rows: Rows) -> list[dict[str, Any]]:
    """Method, and buffer where it has one, of every line but multi-task training."""
    found = []
    for row in rows:
        labels = {k: row[k] for k in ("method", "buffer") if row.get(k) is not None}
        if row["method"] != "multitask" and labels not in found:
            found.append(labels)
    return found


def _name(variant: dict[str, Any]) -> str:
    buffer = f" with a buffer of {variant['buffer']}" if "buffer" in variant else ""
    return METHOD_NAMES[variant["method"]] + buffer


def _difference(a: dict[str, Any], b: dict[str, Any], metric: str = "RP") -> tuple[float, float]:
    """a - b and its standard error; infinite where one seed gives none."""
    errors = [row.get(f"{metric}_se") for row in (a, b)]
    known = [e for e in errors if e is not None]
    return a[metric] - b[metric], math.hypot(*known) if len(known) == 2 else math.inf


def _more(rows: Rows, variant: dict[str, Any], other: str) -> Claim:
    ours, theirs = (find(rows, policy=policy, **variant) for policy in (OURS, other))
    gain, error = _difference(ours, theirs)
    text = f"{_name(variant)}: MC retains more than {OTHERS[other]}"
    numbers = {"with_mc": ours["RP"], other: theirs["RP"], "gain": gain, "gain_se": error}
    return claim(text, gain > ERRORS * error, **numbers)


def _forgets_less(rows: Rows, variant: dict[str, Any]) -> Claim:
    ours, theirs = (find(rows, policy=policy, **variant) for policy in (OURS, "reset"))
    change, error = _difference(ours, theirs, "FGT")
    text = f"{_name(variant)}: MC forgets less than {OTHERS['reset']}"
    numbers = {"with_mc": ours["FGT"], "reset": theirs["FGT"], "change": change}
    return claim(text, change < -ERRORS * error, **numbers, change_se=error)


def _gap_grows(rows: Rows, other: str) -> Claim:
    ours, theirs = (find(rows, method="finetune", policy=p) for p in (OURS, other))
    text = f"Finetune: the gap between MC and {OTHERS[other]} grows with the number of tasks"
    return gap_grows(text, ours, theirs)


def _bounded(rows: Rows) -> Claim:
    top = find(rows, method="multitask")
    best = max((r for r in rows if r["method"] != "multitask"), key=lambda row: row["RP"])
    gap, error = _difference(top, best)
    text = "Multi-task training retains more than any method"
    name = f"{best['method']}, {best['policy']}"
    numbers = {"multitask": top["RP"], "best": best["RP"], "best_is": name}
    return claim(text, gap > ERRORS * error, **numbers, gap=gap, gap_se=error)


def _closes(rows: Rows, variant: dict[str, Any]) -> Claim:
    """How much of the way from Finetune without MC to multi-task training a method goes with it."""
    top = find(rows, method="multitask")["RP"]
    start = find(rows, method="finetune", policy="reset")["RP"]
    ours = find(rows, policy=OURS, **variant)["RP"]
    share = (ours - start) / (top - start) if top != start else math.nan
    text = f"{_name(variant)}: with MC it closes half of the gap to multi-task training"
    return claim(text, share >= 0.5, finetune=start, ours=ours, multitask=top, share=share)


def _warm_up(rows: Rows) -> Claim:
    """Most tasks have three steps an epoch, of which 1 - 0.9^t leaves 10, 19 and 27 percent."""
    ours, without = (find(rows, method="finetune", policy=p) for p in (OURS, NO_WARM_UP))
    gain, error = _difference(ours, without)
    text = "Finetune: the warm-up of MC (beta3 = 0.9) raises RP"
    numbers = {"with_warm_up": ours["RP"], "without": without["RP"], "gain": gain}
    return claim(text, gain > ERRORS * error, **numbers, gain_se=error)


def _by_size(rows: Rows, other: str) -> Claim:
    """Whether what is gained is gained in the tail, and not in the large tasks alone."""
    ours, theirs = (find(rows, method="finetune", policy=p) for p in (OURS, other))
    key = "breakdown.tail.RP"
    gain, error = _difference(ours, theirs, key)
    numbers = {
        f"{size}_gain": ours[f"breakdown.{size}.RP"] - theirs[f"breakdown.{size}.RP"]
        for size in ("head", "body", "tail")
    }
    text = f"Finetune: MC retains more than {OTHERS[other]} in the smaller half of the tasks"
    return claim(text, gain > ERRORS * error, **numbers, tail_gain_se=error)
