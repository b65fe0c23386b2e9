"""The claims follow the rows."""

from __future__ import annotations

from typing import Any

import pytest

from longtail.report.claims.nlp5 import METHODS, nlp5, nlp5_long_tail


def rows(gains: list[float], multitask: float = 80.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"method": "multitask", "policy": "reset", "RP": multitask}]
    for number, (method, gain) in enumerate(zip(METHODS, gains, strict=True)):
        base = 40.0 + number
        found.append({"method": method, "policy": "reset", "RP": base})
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
    assert holds(nlp5_long_tail(rows([5.0, 1.0, 1.0, 1.0, -1.0, 2.0]))) == [
        True, True, True, True, True, False, True, True,
    ]  # fmt: skip
    assert holds(nlp5_long_tail(rows([-1.0] * 6)))[0] is False


@pytest.mark.parametrize("ask", [nlp5, nlp5_long_tail])
def test_an_optimizer_that_is_kept_is_compared_with_where_it_was_run(ask: Any) -> None:
    some = rows([1.0] * 6)
    kept = {"method": "ewc", "policy": "carry", "RP": 30.0, "RP_se": 0.01}
    (added,) = [c for c in ask([*some, kept]) if c not in ask(some)]
    assert added["claim"] == "EWC: RP with MC is above that of an AdamW kept across tasks"
    assert added["verdict"] == "holds"
    assert added["numbers"]["difference"] == pytest.approx(42.0 - 30.0)
    (added,) = [c for c in ask([*some, {**kept, "RP": 42.0}]) if c not in ask(some)]
    assert added["verdict"] == "undecided"


def test_missing_rows_are_missed() -> None:
    with pytest.raises(KeyError):
        nlp5([{"method": "finetune", "policy": "continual", "RP": 1.0}])
