"""Weights of the best epoch: which one it is, for a plain model and for every replica."""

import math

import pytest
import torch
from torch import nn

from longtail.replicas import Replicas
from longtail.runs.build import build_run
from longtail.runs.config import resolve, stack_key
from longtail.tasks import Evaluator
from longtail.training import loop, train
from longtail.training.best_epoch import keep_best, load_best, restore_best


def after_epochs(
    model: nn.Module, scores: list, higher_is_better: bool = True, tie: str = "first"
) -> None:
    """Epoch i leaves weights of i; the best of them come back."""
    best = None
    for epoch, score in enumerate(scores):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(epoch)
        best = keep_best(best, model, score, higher_is_better, tie)
        best = load_best(best, torch.device("cpu"))  # as from a snapshot
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


def test_of_equal_epochs_the_last_is_kept_where_that_is_asked_for() -> None:
    model = nn.Linear(2, 2)
    for scores, best in (([0.7, 0.7, 0.5], 1), ([0.2, math.nan, 0.1], 0)):
        after_epochs(model, scores, tie="last")
        assert all((p == best).all() for p in model.parameters())
    stack = Replicas([nn.Linear(2, 2) for _ in range(2)])
    after_epochs(stack, [torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.4]])], tie="last")
    assert [int(stack.replica(0, s).weight[0, 0]) for s in range(2)] == [1, 0]


@pytest.mark.parametrize("tie", ["first", "last"])
def test_a_run_keeps_the_epoch_its_setting_names(tie, monkeypatch) -> None:
    """Every epoch has the same score: the first is left, or the last."""
    flags = {"data.tasks": 2, "train.epochs": 3, "train.validation": 0.2, "train.tie": tie}
    run = build_run(resolve("toy", flags=flags))
    monkeypatch.setattr(Evaluator, "validation", lambda *_: torch.tensor(0.5))
    seen, kept = [], []
    compare, restore = loop.compare_epoch, loop.restore_best

    def comparing(run):
        seen.append(next(run.model.parameters()).detach().clone())
        compare(run)

    def restoring(best, model, beside):
        restore(best, model, beside)
        if best is not None:
            now = next(model.parameters()).detach()
            kept.append([torch.equal(now, w) for w in seen[-3:]].index(True))

    monkeypatch.setattr(loop, "compare_epoch", comparing)
    monkeypatch.setattr(loop, "restore_best", restoring)
    train(run)
    assert set(kept) == {{"first": 0, "last": 2}[tie]}


def test_runs_of_other_ties_are_other_runs_and_other_stacks() -> None:
    first, last = (resolve("toy", flags={"train.tie": tie}) for tie in ("first", "last"))
    assert first.id != last.id
    assert stack_key(first) != stack_key(last)
    with pytest.raises(ValueError, match="tie must be first"):
        resolve("toy", flags={"train.tie": "both"})


@pytest.mark.parametrize("best", [0, 2])
def test_what_si_has_summed_goes_back_with_the_weights(best, monkeypatch) -> None:
    """Its importance after three epochs, of which one is kept, is that of the way to that one."""

    def importance(epochs: int, scores: list[float]) -> list[torch.Tensor]:
        config = resolve(
            "toy",
            None,
            {"method": "si", "data.tasks": 1, "train.validation": 0.3, "epochs": epochs},
        )
        run = build_run(config)
        told = iter(scores)
        monkeypatch.setattr(Evaluator, "validation", lambda *_: next(told))
        train(run)
        return run.method.sum_F

    scores = [0.1, 0.1, 0.1]
    scores[best] = 0.9
    found, wanted = importance(3, scores), importance(best + 1, scores[: best + 1])
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert any((F > 0).any() for F in found)
