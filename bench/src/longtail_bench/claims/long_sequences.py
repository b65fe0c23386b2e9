"""What the paper finds on both of its long sequences, WSD-CL and VQA-CL, as claims on our rows.

    "Continual AdamW improves every method"              RP with MC above RP without, each method
    "Finetune with MC beats every method without"        each RP without MC is below it
    "The gap to MTL is less significant with MC"         MTL minus RP is smaller with than without

"Without" is an AdamW that starts anew with every task, as the paper has it. On an AdamW that is
kept across tasks, of which the paper does not speak, there is one claim of ours for each method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from longtail.report.checks import (
    Claim,
    Rows,
    above_all,
    against_kept,
    claim,
    every,
    find,
    margin,
    verdict_of,
)
from longtail.report.labels import method_names

POLICIES = ("continual", "new")
METHOD_COUNT = 6  # of the paper's tables, but for multi-task training


def methods_with(rows: Rows, policies: Sequence[str] = ()) -> list[str]:
    """Methods that have rows of all these; multi-task training is no sequence of tasks."""
    found = dict.fromkeys(r["method"] for r in rows if r["method"] != "multitask")
    having = {p: {r["method"] for r in rows if r.get("policy") == p} for p in policies}
    return [m for m in found if all(m in having[p] for p in policies)]


def improves_every(claims: Sequence[Claim]) -> Claim:
    """That all of these hold, which say of one method each that MC raises its RP."""
    gains = {c["claim"].rpartition(": ")[0]: c["numbers"]["difference"] for c in claims}
    text = f"Continual AdamW improves every method{_of(len(claims))}"
    return claim(text, every(map(verdict_of, claims)), **gains)


def finetune_beats(rows: Rows, methods: Sequence[str]) -> Claim:
    """Finetune with MC against each of these methods without."""
    ours = find(rows, method="finetune", policy="continual")
    others = {called(m): find(rows, method=m, policy="new") for m in methods}
    numbers = {name: row["RP"] for name, row in others.items()}
    text = f"Finetune with MC beats every method without{_of(len(methods))}"
    return above_all(text, ours, [*others.values()], finetune_with_mc=ours["RP"], **numbers)


def nearer_to_mtl(rows: Rows, method: str) -> list[Claim]:
    """That multi-task training is less far from a method with MC than without.

    The gap is |MTL - RP|. Where both are below MTL, which is the rule, the gaps differ as RP does.
    """
    known = [r for r in rows if r["method"] == "multitask" and r["RP"] is not None]
    ours, theirs = (find(rows, method=method, policy=p) for p in POLICIES)
    if not known or ours["RP"] is None or theirs["RP"] is None:
        return []
    mtl = max(known, key=lambda r: r["RP"])
    gap, gap_without = (mtl["RP"] - row["RP"] for row in (ours, theirs))
    near, far = (math.copysign(1.0, distance) for distance in (gap, gap_without))
    terms = [(far - near, mtl), (-far, theirs), (near, ours)]
    found = margin([(sign, row) for sign, row in terms if sign])
    return [
        claim(
            f"{called(method)}: the gap to MTL shrinks with MC",
            found.positive,
            mtl=mtl["RP"],
            gap_with_mc=gap,
            gap_without_mc=gap_without,
            difference=found.value,
            se=found.se,
        )
    ]


def above_kept(rows: Rows, method: str) -> list[Claim]:
    """With MC against an Adam that is kept, where a method has both rows."""
    return against_kept(rows, called(method), method=method)


def called(method: str) -> str:
    """What tables call a method; a user's own has its own name."""
    return method_names().get(method, method)


def _of(count: int) -> str:
    """What a claim on every method adds where not all of the paper's have rows."""
    return "" if count == METHOD_COUNT else f", of the {count} that have rows"
