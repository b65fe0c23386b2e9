"""What the paper finds on WSD-CL, as claims on our rows.

    "Continual AdamW improves every method"              RP with MC above RP without, each method
    "Finetune with MC beats every method without"        the largest RP without MC is below it
    "The gap grows with the number of tasks" (Figure 1)  slope of the RP difference, and its ends
    "The gap to MTL is less significant with MC"         MTL minus RP is smaller with than without

A single evaluation point swings by what the last few tasks happen to be, so beside RP at the end
stands `late.RP`, the mean over the evaluation points of the last quarter of the tasks.
"""

from __future__ import annotations

import math
from typing import Any

from longtail.names import METHOD_NAMES
from longtail.report.checks import Claim, Rows, claim, find, gap_grows

POLICIES = ("continual", "reset")
NO_WARM_UP = "continual without warm-up"  # a row of studies/wsd_diagnosis.toml
BASELINES = ("chance", "most_frequent_sense", "wordnet_first_sense")
LATE = "late.RP"


def wsd(rows: Rows) -> list[Claim]:
    """All four claims, as far as the study has the rows for them, and the baselines.

    Where no learning rate was selected, with and without MC are compared at each.
    """
    rates = list(dict.fromkeys(r.get("lr") for r in rows if r["method"] != "multitask"))
    claims: list[Claim] = []
    for rate in rates:
        part = [r for r in rows if r["method"] == "multitask" or r.get("lr") == rate]
        prefix = f"lr {rate}, " if len(rates) > 1 else ""
        claims += [{**c, "claim": prefix + c["claim"]} for c in _comparisons(part)]
    return claims + _baselines(rows)


def _comparisons(rows: Rows) -> list[Claim]:
    methods = _methods(rows)
    claims = [_improves(rows, method) for method in methods]
    if len(methods) > 1:
        claims.append(_every(claims))
    if "finetune" in methods:
        claims += [_finetune_beats(rows, methods)] if len(methods) > 1 else []
        claims += _gap_grows(rows)
    if any(row["method"] == "multitask" for row in rows):
        claims += [_nearer_to_mtl(rows, method) for method in methods]
    return claims


def wsd_diagnosis(rows: Rows) -> list[Claim]:
    """What fresh coordinates do to RP: freezing the embeddings, or giving them Adam's own step.

    And what the moments do without the warm-up, which holds back the few steps of a small task.

    Findings of ours, not claims of the paper; those whose rows are missing are left out.
    """
    claims = []
    for policy in POLICIES:
        free, frozen = (_variant(rows, policy, value) for value in (False, True))
        if free and frozen:
            change = frozen["RP"] - free["RP"]
            text = f"Freezing the embeddings changes RP {_with(policy)} by less than a point"
            numbers = {"trained": free["RP"], "frozen": frozen["RP"], "change": change}
            late = _late(late_trained=free, late_frozen=frozen)
            claims.append(claim(text, abs(change) < 1.0, **numbers, **late))
    gains = {}
    for name, value in (("trained", False), ("frozen", True)):
        ours, theirs = (_variant(rows, policy, value) for policy in POLICIES)
        if ours and theirs:
            gains[name] = ours["RP"] - theirs["RP"]
    if len(gains) == 2:
        text = "MC helps as much with frozen embeddings as with trained ones (within a point)"
        claims.append(claim(text, abs(gains["trained"] - gains["frozen"]) < 1.0, **gains))
    all_of, seen = (_variant(rows, p, False) for p in ("continual", "continual_seen"))
    if all_of and seen:
        change = seen["RP"] - all_of["RP"]
        text = "Leaving fresh coordinates out of the average changes RP by less than a point"
        numbers = {"in_the_average": all_of["RP"], "left_out": seen["RP"], "change": change}
        late = _late(late_in_the_average=all_of, late_left_out=seen)
        claims.append(claim(text, abs(change) < 1.0, **numbers, **late))
    alone, theirs = (_variant(rows, p, False) for p in (NO_WARM_UP, "reset"))
    if all_of and alone and theirs:
        text = "Second moments kept without the warm-up raise RP"
        numbers = {"moments_alone": alone["RP"], "with_mc": all_of["RP"]}
        numbers |= {"without_mc": theirs["RP"], "gain": alone["RP"] - theirs["RP"]}
        late = _late(late_moments_alone=alone, late_with_mc=all_of, late_without_mc=theirs)
        claims.append(claim(text, numbers["gain"] > 0, **numbers, **late))
    if not claims:
        raise KeyError("rows with trained and frozen embeddings, or of another kind of MC")
    return claims


def _variant(rows: Rows, policy: str, frozen: bool) -> dict[str, Any] | None:
    try:
        return find(rows, method="finetune", policy=policy, freeze_embeddings=frozen)
    except KeyError:
        return None


def _late(**rows: dict[str, Any]) -> dict[str, Any]:
    if any(row.get(LATE) is None for row in rows.values()):
        return {}
    return {name: row[LATE] for name, row in rows.items()}


def _with(policy: str) -> str:
    return "with MC" if policy == "continual" else "without MC"


def _methods(rows: Rows) -> list[str]:
    """Methods that have rows with and without MC; multi-task training is no sequence of tasks."""
    found = dict.fromkeys(r["method"] for r in rows if r["method"] != "multitask")
    both = {p: {r["method"] for r in rows if r["policy"] == p} for p in POLICIES}
    methods = [m for m in found if all(m in both[p] for p in POLICIES)]
    if not methods:
        raise KeyError("rows of a method with policy continual and reset")
    return methods


def _improves(rows: Rows, method: str) -> Claim:
    ours, theirs = (find(rows, method=method, policy=p) for p in POLICIES)
    numbers: dict[str, Any] = {"with_mc": ours["RP"], "without_mc": theirs["RP"]}
    gain = ours["RP"] - theirs["RP"]
    errors = [row["RP_se"] for row in (ours, theirs) if row.get("RP_se") is not None]
    numbers |= {"gain": gain, "gain_se": math.hypot(*errors) if len(errors) == 2 else None}
    if ours.get(LATE) is not None and theirs.get(LATE) is not None:
        numbers["gain_late"] = ours[LATE] - theirs[LATE]
    for name, row in (("paper_with_mc", ours), ("paper_without_mc", theirs)):
        if "RP_paper" in row:
            numbers[name] = row["RP_paper"]
    return claim(f"{METHOD_NAMES[method]}: MC raises RP", gain > 0, **numbers)


def _every(claims: list[Claim]) -> Claim:
    gains = {c["claim"].partition(":")[0]: c["numbers"]["gain"] for c in claims}
    return claim("Continual AdamW improves every method", min(gains.values()) > 0, **gains)


def _finetune_beats(rows: Rows, methods: list[str]) -> Claim:
    ours = find(rows, method="finetune", policy="continual")["RP"]
    others = {METHOD_NAMES[m]: find(rows, method=m, policy="reset")["RP"] for m in methods}
    text = "Finetune with MC beats every method without"
    return claim(text, ours > max(others.values()), finetune_with_mc=ours, **others)


def _gap_grows(rows: Rows) -> list[Claim]:
    ours, theirs = (find(rows, method="finetune", policy=p) for p in POLICIES)
    if "RP_curve" not in ours or "RP_curve" not in theirs or len(ours["RP_curve"]) < 4:
        return []
    text = "The gap between Continual AdamW and AdamW grows with the number of tasks"
    return [gap_grows(text, ours, theirs)]


def _nearer_to_mtl(rows: Rows, method: str) -> Claim:
    top = max(r["RP"] for r in rows if r["method"] == "multitask" and r["RP"] is not None)
    gaps = {p: top - find(rows, method=method, policy=p)["RP"] for p in POLICIES}
    text = f"{METHOD_NAMES[method]}: the gap to MTL shrinks with MC"
    numbers = {"mtl": top, "gap_with_mc": gaps["continual"], "gap_without_mc": gaps["reset"]}
    return claim(text, abs(gaps["continual"]) < abs(gaps["reset"]), **numbers)


def _baselines(rows: Rows) -> list[Claim]:
    """Whether the best run is above each baseline, overall and for polysemous tasks alone."""
    claims = []
    for part, metric, key in (
        ("", "RP", "RP"),
        (", polysemous tasks alone", "polysemous.RP", "polysemous"),
    ):
        known = [r for r in rows if r.get(metric) is not None and r["method"] != "multitask"]
        for name in BASELINES:
            wanted = f"baselines.{name}.{key}"
            if not known or known[0].get(wanted) is None:
                continue
            best = max(known, key=lambda r: r[metric])
            text = f"The best run is above {name.replace('_', ' ')}{part}"
            label = f"{METHOD_NAMES[best['method']]} {_with(str(best.get('policy')))}"
            numbers = {"best": best[metric], "baseline": best[wanted], "run": label}
            claims.append(claim(text, best[metric] > best[wanted], **numbers))
    return claims
