"""An optimizer by name or by `module:Class`, its settings, and what it allows."""

from __future__ import annotations

from dataclasses import MISSING

import pytest
import torch

from helpers import own_optimizers
from longtail import ContinualAdamW
from longtail.training.optimizer_class import find_function, find_optimizer, function_settings

OWN = "helpers.own_optimizers"


def test_names_are_those_of_torch_and_two_are_ours() -> None:
    assert find_optimizer("SGD").kind is find_optimizer("sgd").kind is torch.optim.SGD
    assert find_optimizer("adamw").kind is ContinualAdamW
    assert find_optimizer("torch.optim:AdamW").kind is torch.optim.AdamW
    for name in ("adafactor", "adagrad", "rmsprop", "nadam", "radam", "adadelta"):
        assert find_optimizer(name).kind.__name__.lower() == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "unknown optimizer 'nope'; known: .*sgd"),
        ("lbfgs", "unknown optimizer 'lbfgs'"),
        (f"{OWN}:NeedsClosure", "needs a closure"),
        (f"{OWN}:soften", "is not a subclass of torch.optim.Optimizer"),
        (f"{OWN}:Missing", "cannot be imported: module .* has no 'Missing'"),
        ("nowhere_at_all:Class", "cannot be imported"),
    ],
)
def test_what_is_no_optimizer_for_a_run_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_optimizer(name)


def test_settings_are_the_arguments_of_the_constructor() -> None:
    def settings(name: str) -> dict:
        return {s.name: s.default for s in find_optimizer(name).settings()}

    assert settings("adamw") == {}  # all of its are settings of training or of the policy
    sgd = settings("sgd")
    assert sgd == {
        "momentum": 0, "dampening": 0, "nesterov": False, "foreach": None, "fused": None
    }  # fmt: skip
    assert settings("rmsprop")["alpha"] == 0.99
    assert settings(f"{OWN}:Sign") == {"share": 0.9, "nothing": None}
    # `**kwargs` reaches the base, and an argument without a default has to be given
    assert settings(f"{OWN}:Ending") == {"power": MISSING, "share": 0.9, "nothing": None}


def test_elementwise_optimizers_are_known_and_others_can_say_so() -> None:
    assert all(find_optimizer(name).elementwise for name in ("adamw", "sgd", "rmsprop", "nadam"))
    assert not find_optimizer("adafactor").elementwise
    assert not find_optimizer("muon").elementwise
    assert find_optimizer(f"{OWN}:Sign").elementwise
    assert not find_optimizer(f"{OWN}:Ending").elementwise  # a subclass may do more


def test_a_captured_step_is_asked_only_of_who_can() -> None:
    assert find_optimizer("nadam").capture_options({}) == {"capturable": True}
    assert find_optimizer("sgd").capture_options({}) == {"fused": True}
    assert find_optimizer("sgd").capture_options({"foreach": True}) is None
    assert find_optimizer("adafactor").capture_options({}) is None


def test_a_boundary_is_a_function_of_three_whose_keywords_are_settings() -> None:
    (keep,) = function_settings(f"{OWN}:soften")
    assert (keep.name, keep.type, keep.default) == ("keep", float, 0.5)
    assert find_function(f"{OWN}:halve_weights") is own_optimizers.halve_weights
    with pytest.raises(ValueError, match=r"function of \(optimizer, model, task\)"):
        find_function("json:loads")
    with pytest.raises(ValueError, match="is not a function"):
        find_function(f"{OWN}:Sign")
