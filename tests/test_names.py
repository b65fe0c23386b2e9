"""The names in names.py are those that the rooms register: nobody lists them a second time."""

from __future__ import annotations

from longtail import names
from longtail.methods import METHODS
from longtail.metrics import ScoreMatrix, summary
from longtail.report.groups import display


def test_every_method_has_a_name_for_tables_in_their_order() -> None:
    assert [*METHODS, "multitask"] == list(names.METHODS)
    assert all(cls.name == name for name, cls in METHODS.items())
    assert display("method", "derpp") == "DER++"


def test_every_policy_has_a_name_for_tables() -> None:
    assert list(names.POLICIES) == list(names.POLICY_NAMES)
    assert all(policy.name == name for name, policy in names.POLICIES.items())


def test_the_metrics_are_those_of_a_summary() -> None:
    matrix = ScoreMatrix(test_sizes=[1], higher_is_better=True)
    matrix.record(after=0, scores={0: 1.0})
    assert set(summary(matrix)) == set(names.METRICS)
