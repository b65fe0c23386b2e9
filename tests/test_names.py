"""The names in names.py are those that the rooms register: nobody lists them a second time."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from longtail import ContinualAdam, ContinualAdamW, names
from longtail.methods import METHODS
from longtail.metrics import ScoreMatrix, summary
from longtail.report.labels import display
from longtail.runs.loggers import LOGGERS


def test_every_method_has_a_name_for_tables_in_their_order() -> None:
    assert [*METHODS, "multitask"] == list(names.METHOD_NAMES)
    assert all(cls.name == name for name, cls in METHODS.items())
    assert display("method", "derpp") == "DER++"


def test_every_policy_has_a_name_for_tables() -> None:
    assert list(names.POLICIES) == list(names.POLICY_NAMES)
    assert all(policy.name == name for name, policy in names.POLICIES.items())


def test_the_metrics_are_those_of_a_summary() -> None:
    matrix = ScoreMatrix(test_sizes=[1], higher_is_better=True)
    matrix.record(after=0, scores={0: 1.0})
    assert set(summary(matrix)) == set(names.METRICS)


def test_loggers_have_the_names_that_a_shell_offers() -> None:
    assert tuple(LOGGERS) == names.LOGGERS


@pytest.mark.parametrize("cls", [ContinualAdam, ContinualAdamW])
@pytest.mark.parametrize("setting", ["first_moment", "second_moment"])
def test_an_editor_knows_what_may_become_of_a_moment(cls: type, setting: str) -> None:
    """What the type offers is accepted, and nothing else is."""
    offered = get_args(get_type_hints(cls.__init__)[setting])
    assert offered[:3] == ("reset", "ema", "task")
    weights = [nn.Parameter(torch.zeros(1))]
    for value in offered:
        cls(weights, **{setting: value})
    with pytest.raises(ValueError, match=setting):
        cls(weights, **{setting: "keep"})
