"""What the paper's appendix says about the short image sequences, as claims on our rows.

The bars: multi-task training within a point of the paper, replay within three, forgetting methods
at the share of one task in five, and MC an improvement for the methods that replay.
"""

from __future__ import annotations

import math
from typing import Any

from longtail.names import METHOD_NAMES
from longtail.report.checks import Claim, Rows, claim, find

POLICIES = ("continual", "reset")
DERPP_ELSEWHERE = 85.6  # DER++ (Buzzega et al., 2020), S-MNIST, class-incremental, buffer 200
ONE_TASK = (18.0, 21.0)  # all of the last task and nothing else: 19 to 20


def seq_mnist(rows: Rows) -> list[Claim]:
    """Split MNIST: one learning rate each, chosen on validation images."""
    buffers = sorted({int(r["buffer"]) for r in rows if r.get("buffer") is not None})
    claims = [_multitask(rows, within=1.0)]
    claims += [_near_paper(rows, method, buffers, 3.0) for method in ("reservoir", "derpp")]
    best = {p: find(rows, method="derpp", policy=p, buffer=200)["RP"] for p in POLICIES}
    text = (
        f"DER++ with a buffer of 200 is at least as good as published elsewhere ({DERPP_ELSEWHERE})"
    )
    claims.append(claim(text, max(best.values()) >= DERPP_ELSEWHERE, **best))
    for method in ("finetune", "ewcpp"):
        scores = {p: find(rows, method=method, policy=p)["RP"] for p in POLICIES}
        holds = all(ONE_TASK[0] <= score <= ONE_TASK[1] for score in scores.values())
        text = f"{METHOD_NAMES[method]} keeps about one task of five (RP near 19 to 20)"
        claims.append(claim(text, holds, **scores))
    for method in ("reservoir", "derpp", "agem"):
        claims += [_improves(rows, method=method, buffer=buffer) for buffer in buffers]
    return claims


def seq_cifar10(rows: Rows) -> list[Claim]:
    """Split CIFAR-10: as far as the epochs go."""
    top = find(rows, method="multitask")["RP"]
    claims = [
        claim("Multi-task training reaches 90", top >= 90, RP=top),
        *(_improves(rows, method=method) for method in ("reservoir", "derpp", "agem")),
    ]
    finetune = find(rows, method="finetune", policy="continual")["RP"]
    for method in ("reservoir", "derpp"):
        score = find(rows, method=method, policy="continual")["RP"]
        text = f"{METHOD_NAMES[method]} retains more than Finetune"
        claims.append(claim(text, score > finetune, RP=score, finetune=finetune))
    return claims


def _multitask(rows: Rows, within: float) -> Claim:
    row = find(rows, method="multitask")
    ours, paper = row["RP"], row["RP_paper"]
    text = f"Multi-task training is within {within:g} of the paper"
    return claim(text, abs(ours - paper) <= within, RP=ours, paper=paper)


def _near_paper(rows: Rows, method: str, buffers: list[int], within: float) -> Claim:
    """At one of the buffers, both with and without MC."""
    numbers: dict[str, Any] = {}
    holds = False
    for buffer in buffers:
        gaps = []
        for policy in POLICIES:
            row = find(rows, method=method, policy=policy, buffer=buffer)
            numbers[f"{policy}_{buffer}"] = row["RP"]
            numbers[f"{policy}_paper"] = row["RP_paper"]
            gaps.append(abs(row["RP"] - row["RP_paper"]))
        holds = holds or max(gaps) <= within
    text = f"{METHOD_NAMES[method]} is within {within:g} of the paper at one buffer, both policies"
    return claim(text, holds, **numbers)


def _improves(rows: Rows, **labels: Any) -> Claim:
    """RP with MC above RP without; the standard error is that of two independent means."""
    ours, theirs = (find(rows, policy=policy, **labels) for policy in POLICIES)
    gain = ours["RP"] - theirs["RP"]
    errors = [row["RP_se"] for row in (ours, theirs) if row.get("RP_se") is not None]
    se = math.hypot(*errors) if len(errors) == 2 else None
    name = METHOD_NAMES[labels["method"]]
    text = f"MC improves {name}" + (f", buffer {labels['buffer']}" if "buffer" in labels else "")
    return claim(text, gain > 0, with_mc=ours["RP"], without_mc=theirs["RP"], gain=gain, gain_se=se)
