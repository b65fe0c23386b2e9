"""What our methods and optimizers say: that a stack gives each run what it would have alone."""

from __future__ import annotations

from typing import Any

import pytest

from longtail.methods import METHODS
from longtail.names import POLICIES
from longtail.runs.config import resolve
from longtail.runs.stacking import try_to_stack
from longtail.training.boundary import policy_for
from longtail.training.optimizer_class import find_optimizer
from longtail.training.trial import try_method, try_optimizer

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ewc": [{"fisher": "batch"}, {"fisher": "batch_sum"}, {"fisher_cap": 9}],
    "reservoir": [{"buffer": 12}],
    "derpp": [{"buffer": 12}],
    "agem": [{"buffer": 12, "draw": 5}],
    "coma": [{"history": 3.0}],
}
CASES = [
    (name, settings) for name in METHODS for settings in ({}, *SETTINGS.get(name, ()))
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_a_method_of_ours_trains_a_stack_as_it_trains_its_runs(
    name: str, settings: dict[str, Any]
) -> None:
    kind = METHODS[name]
    assert vars(kind)["stackable"] is True  # said by each, inherited by none
    try_method(kind, settings)


OPTIMIZERS = ["adamw", "adam", "sgd", "rmsprop", "adagrad", "nadam", "adamax", "rprop"]
STEPPED = [
    (name, policy)
    for name in OPTIMIZERS
    for policy in ("continual", "new", "kept")
    if (name, policy) != ("rprop", "continual")  # it has no second moment to keep
]


@pytest.mark.parametrize(("name", "policy"), STEPPED)
def test_an_optimizer_that_is_known_to_be_elementwise_is(name: str, policy: str) -> None:
    chosen = find_optimizer(name)
    assert chosen.elementwise
    try_optimizer(chosen, {}, policy_for(policy, chosen))


def test_one_that_is_not_elementwise_fails() -> None:
    with pytest.raises(ValueError, match=r"optimizer adafactor .* in a stack of 2 weight"):
        try_optimizer(find_optimizer("adafactor"), {}, POLICIES["kept"])


def test_ours_are_not_tried_before_every_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr("longtail.runs.stacking.try_method", refuse)
    monkeypatch.setattr("longtail.runs.stacking.try_optimizer", refuse)
    for optimizer in ("adamw", "sgd"):
        try_to_stack(resolve("toy", sets=["method=derpp", f"optimizer={optimizer}"]))
