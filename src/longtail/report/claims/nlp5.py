"""What the paper says about five unlike tasks, and what it conjectures, as claims on our rows.

The paper: "in the NLP tasks, Continual AdamW has similar performance compared to AdamW ... this may
suggest that Continual Adam [is] more suitable for the scenario where tasks are similar". The first
half is asked of the five tasks, the second of the same five cut into many small ones.
"""

from __future__ import annotations

import math

from longtail.names import METHOD_NAMES
from longtail.report.checks import Claim, Rows, claim, find

METHODS = ("finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem")
SMALL = 3.0  # points of RP: the paper's mean difference is -2.6, its largest -8.4


def nlp5(rows: Rows) -> list[Claim]:
    """Five tasks in a row."""
    gains = _gains(rows)
    mean = sum(gains.values()) / len(gains)
    better = sum(gain > 0 for gain in gains.values())
    text = f"MC changes RP by less than {SMALL:g} points on average over the methods"
    mixed = "The effect of MC is mixed: some methods retain more with it, some less"
    return [
        claim(text, abs(mean) < SMALL, mean_gain=mean, **gains),
        claim(mixed, 0 < better < len(gains), better=better, methods=len(gains)),
        *_upper_bound(rows),
        _replay(rows),
    ]


def nlp5_long_tail(rows: Rows) -> list[Claim]:
    """The same five tasks in many small parts, in long-tail order."""
    gains = _gains(rows)
    mean = sum(gains.values()) / len(gains)
    better = sum(gain > 0 for gain in gains.values())
    text = "In many small tasks MC raises RP on average over the methods"
    return [
        claim(text, mean > 0, mean_gain=mean, better=better, methods=len(gains)),
        *(
            claim(f"In many small tasks MC improves {METHOD_NAMES[name]}", gain > 0, gain=gain)
            for name, gain in gains.items()
        ),
        *_upper_bound(rows),
    ]


def _gains(rows: Rows) -> dict[str, float]:
    """RP with MC minus RP without, of the methods that were run."""
    present = [m for m in METHODS if any(row.get("method") == m for row in rows)]
    found = {
        method: find(rows, method=method, policy="continual")["RP"]
        - find(rows, method=method, policy="reset")["RP"]
        for method in present
    }
    if not found or any(not math.isfinite(gain) for gain in found.values()):
        raise KeyError("RP of a method with and without MC")
    return found


def _upper_bound(rows: Rows) -> list[Claim]:
    top = [row["RP"] for row in rows if row.get("method") == "multitask"]
    if not top:
        return []
    best = max(row["RP"] for row in rows if row.get("method") != "multitask")
    text = "Multi-task training retains more than any method"
    return [claim(text, max(top) > best, multitask=max(top), best=best)]


def _replay(rows: Rows) -> Claim:
    """The one difference that is large in the paper: 76 against 41 points."""
    names = ("reservoir", "finetune")
    scores = {name: find(rows, method=name, policy="continual")["RP"] for name in names}
    text = "Replay (Reservoir) retains more than Finetune"
    return claim(text, scores["reservoir"] > scores["finetune"], **scores)
