"""What the paper finds on WSD-CL, as claims on our rows.

    "The gap grows with the number of tasks" (Figure 1)  slope of the RP difference, and its ends

and those that it also makes of VQA-CL (`long_sequences.py`).

A single evaluation point swings by what the last few tasks happen to be, so beside RP at the end
stands `late.RP`, the mean over the evaluation points of the last quarter of the tasks.
"""

from __future__ import annotations

from typing import Any

from longtail.report.checks import (
    Claim,
    Margin,
    Row,
    Rows,
    above,
    claim,
    find,
    for_every_value,
    gap_grows,
    margin,
    with_and_without,
)
from longtail.report.labelling import NO_WARM_UP
from longtail_bench.claims.long_sequences import (
    POLICIES,
    above_kept,
    called,
    finetune_beats,
    improves_every,
    methods_with,
    nearer_to_mtl,
)

BASELINES = ("chance", "most_frequent_sense", "wordnet_first_sense")
LATE = "late.RP"


@for_every_value
def wsd(rows: Rows) -> list[Claim]:
    """The claims, as far as the study has the rows for them, and the baselines.

    Where no learning rate was selected, with and without MC are compared at each.

    Raises:
        KeyError: no method has rows that can be compared, at rates that were selected.
    """
    rates = list(dict.fromkeys(r.get("lr") for r in rows if r["method"] != "multitask"))
    claims: list[Claim] = []
    for rate in rates:
        part = [r for r in rows if r["method"] == "multitask" or r.get("lr") == rate]
        prefix = f"lr {rate}, " if len(rates) > 1 else ""
        claims += [{**c, "claim": prefix + c["claim"]} for c in _comparisons(part)]
    if not claims and len(rates) < 2:
        raise KeyError("rows of a method with policy continual and with new or kept")
    return claims + _baselines(rows)


def _comparisons(rows: Rows) -> list[Claim]:
    methods = methods_with(rows, POLICIES)
    claims = [_improves(rows, method) for method in methods]
    if len(methods) > 1:
        claims.append(improves_every(claims))
    if "finetune" in methods:
        claims += [finetune_beats(rows, methods)] if len(methods) > 1 else []
    claims += [c for method in methods for c in _gap_grows(rows, method)]
    if any(row["method"] == "multitask" for row in rows):
        claims += [c for method in methods for c in nearer_to_mtl(rows, method)]
    return claims + [c for method in methods_with(rows) for c in above_kept(rows, method)]


def wsd_diagnosis(rows: Rows) -> list[Claim]:
    """What fresh coordinates do to RP: freezing the embeddings, or giving them Adam's own step.

    And what the moments do without the warm-up, which holds back the few steps of a small task.

    Findings of ours, not claims of the paper; those whose rows are missing are left out.
    """
    claims = []
    for policy in POLICIES:
        free, frozen = (_variant(rows, policy, value) for value in (False, True))
        if free and frozen:
            text = f"Freezing the embeddings changes RP {_with(policy)} by less than a point"
            claims.append(_same(text, [(1.0, frozen), (-1.0, free)], trained=free, frozen=frozen))
    known = [row for value in (False, True) for p in POLICIES if (row := _variant(rows, p, value))]
    if len(known) == 4:
        text = "MC helps as much with frozen embeddings as with trained ones (within a point)"
        signs = (1.0, -1.0, -1.0, 1.0)
        claims.append(_same(text, list(zip(signs, known, strict=True))))
    all_of, seen = (_variant(rows, p, False) for p in ("continual", "continual_seen"))
    if all_of and seen:
        text = "Leaving fresh coordinates out of the average changes RP by less than a point"
        terms = [(1.0, seen), (-1.0, all_of)]
        claims.append(_same(text, terms, in_the_average=all_of, left_out=seen))
    alone, theirs = (_variant(rows, p, False) for p in (NO_WARM_UP, "new"))
    if all_of and alone and theirs:
        text = "Second moments kept without the warm-up raise RP"
        numbers = {"moments_alone": alone["RP"], "with_mc": all_of["RP"]}
        numbers |= {"without_mc": theirs["RP"]}
        late = _late(late_moments_alone=alone, late_with_mc=all_of, late_without_mc=theirs)
        claims.append(above(text, alone, theirs, **numbers, **late))
    if not claims:
        raise KeyError("rows with trained and frozen embeddings, or of another kind of MC")
    return claims


def _same(text: str, terms: list[tuple[float, Row]], **named: Row) -> Claim:
    """That a difference is smaller than a point."""
    change = margin(terms)
    found = Margin(1.0 - abs(change.value), change.se)
    numbers = {name: row["RP"] for name, row in named.items()}
    late = _late(**{f"late_{name}": row for name, row in named.items()})
    return claim(text, found.positive, **numbers, change=change.value, se=change.se, **late)


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
    return {"continual": "with MC", "kept": "with AdamW kept"}.get(policy, "without MC")


def _improves(rows: Rows, method: str) -> Claim:
    ours, theirs = (find(rows, method=method, policy=p) for p in POLICIES)
    numbers = with_and_without(ours, theirs)
    if ours.get(LATE) is not None and theirs.get(LATE) is not None:
        numbers["gain_late"] = ours[LATE] - theirs[LATE]
    return above(f"{called(method)}: MC raises RP", ours, theirs, **numbers)


def _gap_grows(rows: Rows, method: str) -> list[Claim]:
    ours, theirs = (find(rows, method=method, policy=p) for p in POLICIES)
    if "RP_curve" not in ours or "RP_curve" not in theirs or len(ours["RP_curve"]) < 4:
        return []
    text = "The gap between Continual AdamW and AdamW grows with the number of tasks"
    if method != "finetune":  # the paper's figure is of Finetune
        text = f"{called(method)}: the gap between with MC and without grows with the tasks"
    return [gap_grows(text, ours, theirs)]


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
            label = f"{called(best['method'])} {_with(str(best.get('policy')))}"
            found = margin([(1.0, best)], metric, -best[wanted])
            numbers = {"best": best[metric], "baseline": best[wanted], "run": label}
            claims.append(claim(text, found.positive, **numbers, se=found.se))
    return claims
