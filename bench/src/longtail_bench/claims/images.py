"""What the paper's appendix says about the short image sequences, as claims on our rows.

The bars: multi-task training within a point of the paper, replay within three, forgetting methods
at the share of one task in five, and MC an improvement for the methods that replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longtail.names import POLICY_NAMES
from longtail.report.checks import (
    Claim,
    Rows,
    above,
    against_kept,
    at_least,
    claim,
    every,
    find,
    some,
    verdict_of,
    with_and_without,
    within,
)
from longtail.report.labels import method_names

POLICIES = ("continual", "new")
DERPP_ELSEWHERE = 85.6  # DER++ (Buzzega et al., 2020), S-MNIST, class-incremental, buffer 200
ONE_TASK = (18.0, 21.0)  # all of the last task and nothing else: 19 to 20


def seq_mnist(rows: Rows) -> list[Claim]:
    """Split MNIST: one learning rate each, chosen on validation images."""
    buffers = sorted({int(r["buffer"]) for r in rows if r.get("buffer") is not None})
    claims = [_multitask(rows, 1.0)]
    claims += [_near_paper(rows, m, buffers, 3.0) for m in ("reservoir", "derpp", "agem")]
    claims.append(_near_paper(rows, "ewc", [None], 5.0))
    best = max(
        (find(rows, method="derpp", policy=p, buffer=200) for p in POLICIES), key=lambda r: r["RP"]
    )
    text = (
        f"DER++ with a buffer of 200 is at least as good as published elsewhere ({DERPP_ELSEWHERE})"
    )
    claims.append(at_least(text, best, DERPP_ELSEWHERE))
    for method in ("finetune", "ewcpp"):
        for policy in POLICIES:
            row = find(rows, method=method, policy=policy)
            name = f"{method_names()[method]} {POLICY_NAMES[policy]}"
            text = f"{name} keeps about one task of five (RP near 19 to 20)"
            middle, half = sum(ONE_TASK) / 2, (ONE_TASK[1] - ONE_TASK[0]) / 2
            claims.append(within(text, row, middle, half))
    for method in ("reservoir", "derpp", "agem"):
        claims += [_improves(rows, method=method, buffer=buffer) for buffer in buffers]
    for method in ("reservoir", "derpp", "agem"):
        claims += [c for b in buffers for c in _above_kept(rows, method=method, buffer=b)]
    return claims


def seq_cifar10(rows: Rows) -> list[Claim]:
    """Split CIFAR-10: as far as the epochs go."""
    top = find(rows, method="multitask")
    claims = [at_least("Multi-task training reaches 90", top, 90.0)]
    present = {r["method"] for r in rows}
    replay = [m for m in ("reservoir", "derpp", "agem") if m in present]
    claims += [_improves(rows, method=method) for method in replay]
    finetune = find(rows, method="finetune", policy="continual")
    for method in replay:
        row = find(rows, method=method, policy="continual")
        text = f"{method_names()[method]} with MC retains more than Finetune with MC"
        claims.append(above(text, row, finetune, RP=row["RP"], finetune=finetune["RP"]))
    for method in replay:
        claims += _above_kept(rows, method=method)
    for method in ("ewc", "ewcpp"):
        if method in present:
            claims.append(_near_paper(rows, method, [None], 5.0))
    return claims


def _multitask(rows: Rows, tolerance: float) -> Claim:
    row = find(rows, method="multitask")
    text = f"Multi-task training is within {tolerance:g} of the paper"
    return within(text, row, row["RP_paper"], tolerance, paper=row["RP_paper"])


def _near_paper(rows: Rows, method: str, buffers: Sequence[int | None], tolerance: float) -> Claim:
    """At one of the buffers, both with and without MC."""
    numbers: dict[str, Any] = {}
    verdicts = []
    for buffer in buffers:
        each = []
        for policy in POLICIES:
            labels = {"method": method, "policy": policy}
            row = find(rows, **labels if buffer is None else {**labels, "buffer": buffer})
            numbers[policy if buffer is None else f"{policy}_{buffer}"] = row["RP"]
            numbers[f"{policy}_paper"] = row["RP_paper"]
            each.append(verdict_of(within("", row, row["RP_paper"], tolerance)))
        verdicts.append(every(each))
    where = "" if list(buffers) == [None] else " at one buffer"
    text = f"{method_names()[method]} is within {tolerance:g} of the paper{where}, both policies"
    return claim(text, some(verdicts), **numbers)


def _improves(rows: Rows, **labels: Any) -> Claim:
    """RP with MC above RP without."""
    ours, theirs = (find(rows, policy=policy, **labels) for policy in POLICIES)
    return above(f"{_name(labels)}: MC raises RP", ours, theirs, **with_and_without(ours, theirs))


def _above_kept(rows: Rows, **labels: Any) -> list[Claim]:
    """The same against an Adam that is kept."""
    return against_kept(rows, _name(labels), **labels)


def _name(labels: dict[str, Any]) -> str:
    """The method, and its buffer where a table has rows of several."""
    buffer = f", buffer {labels['buffer']}" if "buffer" in labels else ""
    return method_names()[labels["method"]] + buffer
