"""Weights of the best epoch: which one it is, for a plain model and for every replica."""

import math

import pytest
import torch
from torch import nn

from longtail.replicas import Replicas
from longtail.training.best_epoch import keep_best, restore_best


def after_epochs(model: nn.Module, scores: list, higher_is_better: bool = True) -> None:
    """Epoch i leaves weights of i; the best of them come back."""
    best = None
    for epoch, score in enumerate(scores):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(epoch)
        best = keep_best(best, model, score, higher_is_better)
    restore_best(best, model)


@pytest.mark.parametrize(
    ("scores", "higher", "best"),
    [
        ([0.1, 0.7, 0.5], True, 1),
        ([0.1, 0.7, 0.5], False, 0),
        ([0.7, 0.7, 0.7], True, 0),  # of equals the first
        ([math.nan, 0.2, 0.1], True, 1),  # NaN is worse than any number, wherever it comes
        ([0.2, math.nan, 0.1], True, 0),
        ([math.nan, math.nan, 0.9], False, 2),
    ],
)
def test_the_best_epoch_comes_back(scores: list[float], higher: bool, best: int) -> None:
    model = nn.Linear(2, 2)
    after_epochs(model, scores, higher)
    assert all((p == best).all() for p in model.parameters())


def test_every_replica_has_its_own_and_buffers_come_too() -> None:
    stack = Replicas([nn.Linear(2, 2) for _ in range(3)], policies=2)
    scores = [
        torch.tensor([[0.1, 0.9, math.nan], [0.5, 0.5, 0.5]]),
        torch.tensor([[0.2, 0.1, 0.3], [0.4, 0.6, math.nan]]),
    ]
    after_epochs(stack, scores)
    found = [[int(stack.replica(p, s).weight[0, 0]) for s in range(3)] for p in range(2)]
    assert found == [[1, 0, 1], [0, 1, 0]]
    norm = nn.BatchNorm1d(2)
    best = keep_best(None, norm, 0.5, True)
    norm(torch.randn(8, 2) + 3)
    restore_best(best, norm)
    assert torch.equal(norm.running_mean, torch.zeros(2))
