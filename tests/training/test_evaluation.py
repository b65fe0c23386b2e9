"""When a run evaluates, and what by."""

import numpy as np
import pytest
import torch
from torch import nn

from longtail.tasks import CLASSIFICATION, Evaluator, from_tensors
from longtail.training.evaluation import as_evaluator, due, evaluate_validation


def test_when_to_evaluate() -> None:
    learned = [after + 1 for after in range(100) if due(after, 100, every=30, at=[7, 31])]
    assert learned == [7, 30, 31, 60, 90, 100]
    assert [after for after in range(5) if due(after, 5)] == [4]


def test_an_evaluator_is_made_of_what_was_given() -> None:
    own = Evaluator()
    assert as_evaluator(own) is own
    assert type(as_evaluator(None)) is type(as_evaluator(True)) is Evaluator
    assert as_evaluator(False) is None
    made = as_evaluator(lambda model, sequence, tasks: list(tasks))
    assert made is not None
    assert made(nn.Linear(1, 1), None, range(2, 4)) == [2, 3]
    assert not made.captured  # it may want more of the model than its outputs


def test_validation_scores_are_averaged_over_what_was_counted() -> None:
    def part(n: int, right: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of class 0 or 1, the first of which are as the model says."""
        x = torch.eye(2)[torch.zeros(n, dtype=torch.long)]
        return x, (torch.arange(n) >= right).long()

    tasks = [
        ("a", part(3, 3), part(2, 2), part(4, 1)),
        ("b", part(3, 3), part(2, 2), part(2, 2)),
    ]
    sequence = from_tensors(tasks, CLASSIFICATION)
    scores = evaluate_validation(nn.Identity(), sequence, Evaluator())
    assert scores is not None
    assert scores.mean == pytest.approx(3 / 6)
    assert scores.tasks == pytest.approx({0: 1 / 4, 1: 1.0})

    class Counting(Evaluator):
        def validation_size(self, sequence, task: int) -> int:
            return 1

    found = evaluate_validation(nn.Identity(), sequence, Counting())
    assert found is not None
    assert found.mean == pytest.approx(np.mean([1 / 4, 1.0]))
    without = from_tensors([task[:3] for task in tasks], CLASSIFICATION)
    assert evaluate_validation(nn.Identity(), without, Evaluator()) is None
