"""The paper's claims on WSD-CL hold on rows that say so, and fail on rows that do not."""

from dataclasses import replace
from typing import Any

import pytest

from longtail.report import checks
from longtail.report.labelling import NO_WARM_UP
from longtail.runs.config import stack_key
from longtail.study.expand import expand
from longtail.study.file import read_study
from longtail.study.named import named_studies
from longtail_bench.claims.wsd import wsd, wsd_diagnosis

PAPER = {"finetune": (78.8, 61.6), "reservoir": (79.8, 74.5), "derpp": (79.1, 78.3)}
OTHERS = {"ewc": (78.3, 72.5), "ewcpp": (78.1, 71.0), "agem": (79.0, 69.4)}


def rows(scores: dict[str, tuple[float, float]], slope: float = 1.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"method": "multitask", "policy": "continual", "RP": 83.7}]
    for method, (ours, theirs) in scores.items():
        for policy, rp in (("continual", ours), ("new", theirs)):
            gap = [slope * k for k in range(8)] if policy == "continual" else [0.0] * 8
            row = {
                "method": method,
                "policy": policy,
                "RP": rp,
                "RP_se": 0.1,
                "polysemous.RP_se": 0.3,
                **{f"RP_{part}_se": 0.01 for part in ("slope", "first", "last", "growth")},
                "late.RP": rp - 1,
                "RP_after": [1000 * k for k in range(1, 9)],
                "RP_curve": [60 + g for g in gap],
                "baselines.most_frequent_sense.RP": 71.0,
                "polysemous.RP": rp - 9,
                "baselines.most_frequent_sense.polysemous": 75.0,
            }
            found.append(row)
    return found


def by_claim(found: list[dict[str, Any]]) -> dict[str, bool]:
    return {entry["claim"]: entry["holds"] for entry in found}


def test_the_papers_numbers_bear_out_its_claims() -> None:
    found = by_claim(wsd(rows(PAPER | OTHERS)))
    assert found["Continual AdamW improves every method"]
    assert found["Finetune with MC beats every method without"]
    assert found["The gap between Continual AdamW and AdamW grows with the number of tasks"]
    assert found["Finetune: the gap to MTL shrinks with MC"]
    assert found["The best run is above most frequent sense"]
    assert not found["The best run is above most frequent sense, polysemous tasks alone"]


def test_learning_rates_are_compared_each_with_itself() -> None:
    slow, fast = {"finetune": (59.6, 59.7)}, {"finetune": (68.0, 60.4)}
    union, *few = rows(slow, slope=-1.0)
    both = [union, *({**r, "lr": 1e-6} for r in few), *({**r, "lr": 1e-5} for r in rows(fast)[1:])]
    found = by_claim(wsd(both))
    assert not found["lr 1e-06, Finetune: MC raises RP"]
    assert found["lr 1e-05, Finetune: MC raises RP"]
    grows = "The gap between Continual AdamW and AdamW grows with the number of tasks"
    assert not found[f"lr 1e-06, {grows}"]
    assert found[f"lr 1e-05, {grows}"]
    assert found["lr 1e-05, Finetune: the gap to MTL shrinks with MC"]
    assert sum(claim.startswith("The best run is above") for claim in found) == 2


def test_claims_fail_where_the_rows_say_otherwise() -> None:
    worse = {**PAPER, **OTHERS, "derpp": (78.0, 79.5)}
    found = by_claim(wsd(rows(worse, slope=-1.0)))
    assert not found["DER++: MC raises RP"]
    assert not found["Continual AdamW improves every method"]
    assert not found["Finetune with MC beats every method without"]
    assert not found["The gap between Continual AdamW and AdamW grows with the number of tasks"]
    assert not found["DER++: the gap to MTL shrinks with MC"]


def test_an_adam_that_is_kept_has_a_claim_of_its_own() -> None:
    def kept(rp: float) -> list[dict[str, Any]]:
        ours = [row for row in rows({"finetune": (60.0, 50.0)}) if row["policy"] == "continual"]
        return [*ours, {**ours[-1], "policy": "kept", "RP": rp}]

    text = "Finetune: RP with MC is above that of an Adam that is kept across tasks"
    assert by_claim(wsd(kept(58.0)))[text]
    assert not by_claim(wsd(kept(62.0)))[text]
    assert "Finetune: MC raises RP" not in by_claim(wsd(kept(58.0)))
    with pytest.raises(KeyError, match="new or kept"):
        wsd(kept(58.0)[:-1])


def test_finetune_alone_claims_nothing_of_other_methods() -> None:
    some = [row for row in rows(PAPER) if row["method"] == "finetune"]
    found = by_claim(wsd(some))
    assert found["Finetune: MC raises RP"]
    assert "Continual AdamW improves every method" not in found
    gain = wsd(some)[0]["numbers"]
    assert abs(gain["gain_late"] - gain["difference"]) < 1e-9


def test_a_study_without_finetune_is_judged_by_what_it_has() -> None:
    some = [row for row in rows(PAPER) if row["method"] in ("reservoir", "derpp")]
    found = by_claim(wsd(some))
    assert found["Continual AdamW improves every method, of the 2 that have rows"]
    assert not any("Finetune" in text or "gap to" in text for text in found)
    assert found["Reservoir: the gap between with MC and without grows with the tasks"]
    less = by_claim(wsd([r for r in rows(PAPER, slope=-1.0) if r["method"] == "reservoir"]))
    assert not less["Reservoir: the gap between with MC and without grows with the tasks"]


def test_a_claim_on_every_method_says_of_how_many() -> None:
    found = by_claim(wsd(rows(PAPER)))
    assert found["Continual AdamW improves every method, of the 3 that have rows"]
    assert found["Finetune with MC beats every method without, of the 3 that have rows"]
    assert "Continual AdamW improves every method" not in found


def test_the_diagnosis_compares_frozen_with_trained() -> None:
    found = [
        {
            "method": "finetune",
            "policy": p,
            "freeze_embeddings": f,
            "RP": rp,
            "RP_se": 0.1,
            "late.RP": rp,
        }
        for p, f, rp in (
            ("continual", False, 60.0),
            ("continual", True, 60.4),
            ("new", False, 55.0),
            ("new", True, 58.0),
            ("continual_seen", False, 61.5),
            ("continual without warm-up", False, 55.5),
        )
    ]
    claims = by_claim(wsd_diagnosis(found))
    assert list(claims.values()) == [True, False, False, False, True]
    found[-1]["RP"] = 54.5  # below AdamW's 55
    assert not by_claim(wsd_diagnosis(found))["Second moments kept without the warm-up raise RP"]
    assert list(by_claim(wsd_diagnosis(found[:2])).values()) == [True]  # what has its rows
    with pytest.raises(KeyError):
        wsd_diagnosis(found[:1])


def test_the_diagnosis_has_the_runs_of_finetune_on_the_capped_variant() -> None:
    """So that the diagnosis is one of that very variant, but for an average it does not score."""
    capped, diagnosis = (
        {run.id: run for run in expand(read_study(named_studies()[name], "0"))}
        for name in ("wsd_capped", "wsd_diagnosis")
    )
    finetune = [
        replace(run.config, train=replace(run.config.train, average="none")).id
        for run in capped.values()
        if run.config.method == "finetune" and run.labels["policy"] != "kept"
        if run.config.seed == 0 and run.config.train.lr == 1e-5
    ]
    assert len(finetune) == 3
    assert [diagnosis[i].labels["policy"] for i in finetune] == ["continual", "new", NO_WARM_UP]
    trained = [run for run in diagnosis.values() if not run.labels["freeze_embeddings"]]
    assert len({stack_key(run.config) for run in trained}) == 1
    kept = {run.labels["policy"]: run.config.moments for run in trained}
    plain, alone = kept["continual"], kept[NO_WARM_UP]
    assert (alone.second_moment, alone.beta3) == (plain.second_moment, 0.0)


def test_missing_rows_are_a_failed_claim() -> None:
    found = checks.run(["longtail_bench.claims.wsd:wsd"], [{"method": "finetune", "policy": "x"}])
    assert [entry["holds"] for entry in found] == [False]
