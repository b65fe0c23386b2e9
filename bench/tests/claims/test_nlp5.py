"""The claims follow the rows."""

from __future__ import annotations

from typing import Any

import pytest

from longtail_bench.claims.nlp5 import nlp5, nlp5_long_tail

METHODS = ("finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem")


def rows(gains: list[float], multitask: float = 80.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"method": "multitask", "policy": "new", "RP": multitask}]
    for number, (method, gain) in enumerate(zip(METHODS, gains, strict=True)):
        base = 40.0 + number
        found.append({"method": method, "policy": "new", "RP": base})
        found.append({"method": method, "policy": "continual", "RP": base + gain})
    return [{**row, "RP_se": 0.01} for row in found]


def holds(claims: list[dict[str, Any]]) -> list[bool]:
    return [claim["holds"] for claim in claims]


def test_mixed_and_small_differences() -> None:
    claims = nlp5(rows([-8.4, 0.8, -2.2, 0.7, -1.2, -5.0]))  # the paper's
    assert holds(claims[:4]) == [True, True, True, True]
    assert holds(claims[4:]) == [False, True, False, True, False, False]  # method by method
    assert claims[4]["claim"] == "Finetune: MC raises RP"
    assert claims[0]["numbers"]["mean_gain"] == pytest.approx(-2.55)
    assert holds(nlp5(rows([4.0] * 6, multitask=41.0)))[:4] == [False, False, False, True]


def test_without_rows_of_replay_nothing_is_said_of_it() -> None:
    some = [row for row in rows([1.0] * 6) if row["method"] not in ("reservoir", "derpp", "agem")]
    claims = nlp5(some)
    assert len(claims) == 3 + 3
    assert not [c for c in claims if "Replay" in c["claim"]]


def test_the_long_tail_asks_whether_mc_helps() -> None:
    claims = nlp5_long_tail(rows([5.0, 1.0, 1.0, 1.0, -1.0, 2.0]))
    assert holds(claims) == [True, True, True, True, True, True, False, True]
    assert claims[6]["claim"] == "DER++: MC raises RP"
    assert holds(nlp5_long_tail(rows([-1.0] * 6)))[0] is False


@pytest.mark.parametrize("ask", [nlp5, nlp5_long_tail])
def test_an_optimizer_that_is_kept_is_compared_with_where_it_was_run(ask: Any) -> None:
    some = rows([1.0] * 6)
    kept = {"method": "ewc", "policy": "kept", "RP": 30.0, "RP_se": 0.01}
    (added,) = [c for c in ask([*some, kept]) if c not in ask(some)]
    assert added["claim"] == "EWC: RP with MC is above that of an Adam that is kept across tasks"
    assert added["verdict"] == "holds"
    assert added["numbers"]["difference"] == pytest.approx(42.0 - 30.0)
    (added,) = [c for c in ask([*some, {**kept, "RP": 42.0}]) if c not in ask(some)]
    assert added["verdict"] == "undecided"


def test_a_method_without_all_its_rows_costs_the_others_nothing() -> None:
    some = rows([1.0] * 6)
    whole = [c["claim"] for c in nlp5(some)]
    others = [row for row in some if (row["method"], row["policy"]) != ("ewc", "new")]
    assert [c["claim"] for c in nlp5(others)] == [c for c in whole if not c.startswith("EWC:")]
    diverged = [{**r, "RP": None} if r["method"] == "ewc" else r for r in some]
    claims = nlp5(diverged)
    assert [c["claim"] for c in claims] == whole
    assert [c["verdict"] for c in claims if c["claim"].startswith("EWC:")] == ["undecided"]
    assert claims[1]["numbers"]["methods"] == 5
    mine = [{**row, "method": "mine"} for row in some if row["method"] == "ewc"]
    assert "mine: MC raises RP" in [c["claim"] for c in nlp5([*some, *mine])]


def test_without_the_paper_s_comparison_that_with_an_optimizer_that_is_kept_stays() -> None:
    some = [
        {"method": "finetune", "policy": policy, "RP": score, "RP_se": 0.1}
        for policy, score in (("continual", 5.0), ("kept", 3.0))
    ]
    (found,) = nlp5(some)
    assert (found["claim"].partition(":")[0], found["verdict"]) == ("Finetune", "holds")
    assert nlp5_long_tail(some) == [found]


@pytest.mark.parametrize("ask", [nlp5, nlp5_long_tail])
def test_missing_rows_are_missed(ask: Any) -> None:
    with pytest.raises(KeyError):
        ask([{"method": "finetune", "policy": "continual", "RP": 1.0}])
