"""Claims on rivals: each holds on rows made for it, fails on the opposite, and may be undecided."""

from __future__ import annotations

from typing import Any

import pytest

from longtail.report.checks import run
from longtail_bench.claims.rivals import extra_bytes, stores_examples

SCORES, ERRORS = (
    ["longtail_bench.claims.rivals:scores"],
    ["longtail_bench.claims.rivals:errors"],
)
RP = {
    ("finetune", "continual"): 60.0,
    ("finetune", "kept"): 55.0,
    ("finetune", "MoFO"): 56.0,
    ("finetune", "BAdam"): 58.0,
    ("l2", "kept"): 57.0,
    ("l2", "continual"): 61.0,
    ("ewc", "kept"): 58.0,
    ("si", "kept"): 90.0,  # in five buffers: it does not count
    ("coma", "kept"): 59.0,
    ("reservoir", "continual"): 64.0,
    ("reservoir", "kept"): 62.0,
    ("reservoir_coma", "kept"): 63.0,
    ("multitask", "multitask"): 70.0,
}


def rows(change: dict[tuple[str, str], float] | None = None, se: float = 0.1, sign: float = 1.0):
    found: list[dict[str, Any]] = []
    for (method, policy), value in {**RP, **(change or {})}.items():
        found.append({"method": method, "policy": policy, "RP": sign * value, "RP_se": se})
    return found


def verdicts(found: list[dict], check: list[str] = SCORES) -> dict[str, str]:
    return {c["claim"]: c["verdict"] for c in run(check, found)}


def told(claims: dict[str, str], words: str) -> str:
    (found,) = [verdict for text, verdict in claims.items() if words in text]
    return found


def test_a_rival_that_is_noisier_than_the_best_leaves_it_undecided() -> None:
    found = rows()
    (noisy,) = [row for row in found if (row["method"], row["policy"]) == ("l2", "kept")]
    noisy["RP_se"] = 9.0
    claims = verdicts(found)
    assert told(claims, "no rival without data retains more in one buffer") == "undecided"


@pytest.mark.parametrize(("check", "sign"), [(SCORES, 1.0), (ERRORS, -1.0)])
def test_mc_against_the_best_that_fits(check: list[str], sign: float) -> None:
    claims = verdicts(rows(sign=sign), check)
    assert told(claims, "Finetune with MC: no rival without data retains more in one") == "holds"
    assert told(claims, "(the best is CoMA, Adam kept)") == "holds"
    # with MC it is another 4 bytes, so L2 with MC needs two
    assert told(claims, "no rival without data retains more in two") == "fails"
    assert told(claims, "no rival with a buffer retains more in one") == "holds"
    better = verdicts(rows({("l2", "kept"): 62.0}, sign=sign), check)
    assert (
        told(better, "retains more in one buffer of the weights' size (the best is L2") == "fails"
    )
    near = verdicts(rows({("l2", "kept"): 60.1}, sign=sign), check)
    assert (
        told(near, "retains more in one buffer of the weights' size (the best is L2") == "undecided"
    )


def test_parts_of_rivals_are_compared_under_one_policy() -> None:
    claims = verdicts(rows())
    assert told(claims, "EWC's Fisher information retains more than L2") == "holds"
    assert told(claims, "CoMA retains more than no average, Adam kept") == "holds"
    assert told(claims, "Replay with CoMA retains more than replay alone, Adam kept") == "holds"
    worse = verdicts(rows({("ewc", "kept"): 56.0}))
    assert told(worse, "EWC's Fisher information retains more than L2") == "fails"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_half_of_the_way_to_multitask(sign: float) -> None:
    check = SCORES if sign > 0 else ERRORS
    words = "without data in two buffers"
    assert told(verdicts(rows(sign=sign), check), words) == "fails"
    change = {("l2", "continual"): 66.0}
    assert told(verdicts(rows(change, sign=sign), check), words) == "holds"
    numbers = next(c for c in run(check, rows(change, sign=sign)) if words in c["claim"])["numbers"]
    assert numbers["share"] == pytest.approx(0.6)


def test_without_a_gap_nothing_is_halved() -> None:
    claims = verdicts(rows({("multitask", "multitask"): 50.0}))
    assert told(claims, "without data in two buffers") == "undecided"


def test_the_joined_table_says_what_holds_everywhere() -> None:
    def of(name: str, sign: float, **changes) -> list[dict]:
        about = {"benchmark": name, "higher_is_better": sign > 0}
        return [{**about, **row} for row in rows(sign=sign, **changes)]

    check = ["longtail_bench.claims.rivals:table"]
    both = verdicts([*of("mnist", 1.0), *of("synthetic", -1.0)], check)
    assert told(both, "On every benchmark no rival with a buffer retains more") == "holds"
    assert (
        told(both, "mnist: Finetune with MC: no rival without data retains more in one") == "holds"
    )
    worse = of("mnist", 1.0, change={("reservoir_coma", "kept"): 66.0})
    both = verdicts([*worse, *of("synthetic", -1.0)], check)
    assert told(both, "On every benchmark no rival with a buffer retains more") == "fails"


def test_rows_of_something_else_fail_loudly() -> None:
    (found,) = run(SCORES, [{"method": "finetune", "policy": "kept", "RP": 1.0}])
    assert not found["holds"]


def test_what_is_kept_follows_from_the_names() -> None:
    assert extra_bytes({"method": "l2", "policy": "continual, one warm-up"}) == 8
    assert extra_bytes({"method": "finetune", "policy": "Adam-Rel"}) == 0
    assert stores_examples({"method": "agem_routed"})
    assert not stores_examples({"method": "lwf"})


def test_one_buffer_on_every_benchmark_is_not_decided_by_two() -> None:
    check = ["longtail_bench.claims.rivals:table"]
    found = [
        {**row, "benchmark": name, "higher_is_better": True}
        for name in ("fsmol", "mnist")
        for row in rows()
    ]
    claims = run(check, found)
    (whole,) = [c for c in claims if c["claim"].startswith("On every benchmark no rival without")]
    assert (whole["verdict"], whole["numbers"]["benchmarks"]) == ("holds", 2)
    two = [c["verdict"] for c in claims if "without data retains more in two" in c["claim"]]
    assert two == ["fails", "fails"]
    alone = [c for c in run(check, found[: len(RP)]) if c["claim"].startswith("On every")]
    assert alone == []


def test_mc_with_another_schedule_or_a_filter_is_no_rival_of_it() -> None:
    more = {("finetune", "continual, constant rate"): 69.0, ("finetune", "MoFO with MC"): 68.0}
    claims = verdicts(rows(more))
    assert told(claims, "no rival without data retains more in one") == "holds"
    assert told(claims, "(the best is CoMA, Adam kept)") == "holds"
    averaged = verdicts(rows({("finetune", "continual, task average"): 69.0}))
    assert told(averaged, "no rival without data retains more in one") == "holds"
    assert told(averaged, "no rival without data retains more in two") == "fails"


def test_mc_without_its_warm_up_is_no_rival_of_it_and_costs_the_same() -> None:
    bare = "continual without warm-up"
    assert extra_bytes({"method": "finetune", "policy": bare}) == 4
    assert extra_bytes({"method": "finetune", "policy": f"{bare}, task average"}) == 8
    claims = verdicts(rows({("finetune", bare): 69.0, ("finetune", f"{bare}, task average"): 72.0}))
    assert told(claims, "no rival without data retains more in one") == "holds"
    assert told(claims, "Finetune: MC without its warm-up retains more than with it") == "holds"
    words = "Finetune, with MC but no warm-up: the average of the weights (task average)"
    assert told(claims, words) == "holds"
    assert told(claims, "(the best is Finetune, with MC but no warm-up, task average)") == "fails"


def test_mc_that_diverged_loses() -> None:
    claims = verdicts([r | ({"RP": None} if r["policy"] == "continual" else {}) for r in rows()])
    assert told(claims, "no rival without data retains more in one") == "fails"
    assert told(claims, "no rival with a buffer retains more in one") == "fails"


def test_an_average_is_compared_with_the_weights_under_its_policy() -> None:
    claims = verdicts(rows({("finetune", "kept, ema"): 56.0, ("reservoir", "kept, ema"): 61.0}))
    words = "Adam kept: the average of the weights (ema) retains more than the weights"
    assert told(claims, f"Finetune, {words}") == "holds"
    assert told(claims, f"Reservoir, {words}") == "fails"
    assert not any("task average" in text for text in claims)


def test_a_constant_rate_is_compared_with_one_that_decays() -> None:
    constant = "continual, constant rate"
    more = {("finetune", constant): 58.0, ("finetune", f"{constant}, task average"): 66.0}
    claims = verdicts(rows({**more, ("finetune", "continual, task average"): 65.0}))
    words = "a constant rate retains more than one that decays"
    assert told(claims, f"Finetune, with MC: {words}") == "fails"
    assert told(claims, f"Finetune, with MC, task average: {words}") == "holds"
    average = "constant rate: the average of the weights (task average) retains more"
    assert told(claims, f"Finetune, with MC, {average}") == "holds"
    assert not any(words in text for text in verdicts(rows(more)) if "average" in text)


def test_mc_beside_every_method_is_one_claim() -> None:
    words = "MC retains more than Adam kept with every method"
    assert told(verdicts(rows()), words) == "holds"  # Finetune, L2 and Reservoir have both
    assert told(verdicts(rows({("l2", "continual"): 56.0})), words) == "fails"
    assert told(verdicts(rows({("l2", "continual"): 57.1})), words) == "undecided"
    errors = {("l2", "continual"): 57.0 - 4.0}
    found = run(ERRORS, rows({key: -value for key, value in (RP | errors).items()}))
    (claim,) = [c for c in found if words in c["claim"]]
    assert claim["verdict"] == "fails"
    assert claim["numbers"]["L2: difference"] == 4.0
