"""What the rivals say of themselves: that a stack gives each run what it would have alone."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from longtail.methods import find
from longtail.runs.config import resolve
from longtail.runs.stacking import try_to_stack
from longtail.tasks import CLASSIFICATION
from longtail.training.boundary import policy_for
from longtail.training.optimizer_class import find_optimizer
from longtail.training.trial import try_method, try_optimizer

# What a snapshot holds of each.
METHODS = {
    "ewc_adam": {"sum_F", "anchor", "steps"},
    "ewc_routed": {"sum_F", "anchor", "tasks"},
    "agem_routed": {"buffer"},
    "cofima": {"anchor", "tasks", "past_F"},
    "reservoir_l2": {"buffer", "anchor", "pull"},
    "reservoir_ewc_adam": {"buffer", "sum_F", "anchor", "steps"},
    "reservoir_coma": {"buffer", "anchor", "tasks"},
    "reservoir_cofima": {"buffer", "anchor", "tasks", "past_F"},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_a_stack_as_it_trains_its_runs(name: str) -> None:
    kind = find(name)
    assert vars(kind)["stackable"] is True  # said by each, inherited by none
    try_method(kind, {})


@pytest.mark.parametrize("name", METHODS)
def test_a_snapshot_holds_what_a_method_remembers_and_no_copy_of_the_model(name: str) -> None:
    method = find(name)(nn.Linear(3, 2), CLASSIFICATION, seed=0)
    assert method.state_dict().keys() == METHODS[name]


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("longtail_bench.rivals.mofo:MoFO", "continual"),
        ("longtail_bench.rivals.mofo:MoFO", "kept"),
        ("longtail_bench.rivals.upgd:UPGD", "kept"),
        ("longtail_bench.rivals.badam:BAdam", "kept"),
        ("adamw", "longtail_bench.rivals.adam_rel:restart_time"),
    ],
)
def test_an_optimizer_or_a_policy_keeps_replicas_apart(name: str, policy: str) -> None:
    chosen = find_optimizer(name)
    assert chosen.elementwise
    try_optimizer(chosen, {}, policy_for(policy, chosen))


def test_they_are_not_tried_before_every_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr("longtail.runs.stacking.try_method", refuse)
    monkeypatch.setattr("longtail.runs.stacking.try_optimizer", refuse)
    sets = ["method=cofima", "optimizer=longtail_bench.rivals.mofo:MoFO"]
    try_to_stack(resolve("toy", sets=sets))
