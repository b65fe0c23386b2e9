"""Weights of the best epoch: which one it is, for a plain model and for every replica."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail.replicas import Replicas, lead_of
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail.tasks import Evaluator
from longtail.training import loop, train
from longtail.training.best_epoch import keep_best, load_best, restore_best


def after_epochs(
    model: nn.Module, scores: list, higher_is_better: bool = True, tie: str = "first", losses=()
) -> None:
    """Epoch i leaves weights of i; the best of them come back."""
    best, ties = None, tie.split()
    ties *= len(getattr(model, "members", [model])) // len(ties)  # one for all, or one for each
    for epoch, score in enumerate(scores):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(epoch)
        loss = losses[epoch] if losses else None
        best = keep_best(best, model, score, higher_is_better, ties, loss)
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


@pytest.mark.parametrize(
    ("tie", "scores", "losses", "best"),
    [
        ("last", [0.7, 0.7, 0.5], (), 1),
        ("last", [0.2, math.nan, 0.1], (), 0),
        ("loss", [0.7, 0.7, 0.7], [3.0, 1.0, 2.0], 1),
        ("loss", [0.7, 0.7, 0.9], [3.0, 1.0, 9.0], 2),  # the score comes first
        ("loss", [0.7, 0.9, 0.9], [1.0, 3.0, 2.0], 2),  # 2.0 is against the kept epoch's 3.0
        ("loss", [0.7, 0.7, 0.7], [1.0, 1.0, math.nan], 0),
    ],
)
def test_which_of_equal_epochs_is_kept_is_a_setting(tie, scores, losses, best) -> None:
    model = nn.Linear(2, 2)
    after_epochs(model, scores, tie=tie, losses=losses)
    assert all((p == best).all() for p in model.parameters())


def test_ties_are_of_each_replica() -> None:
    stack = Replicas([nn.Linear(2, 2) for _ in range(2)])
    scores = [torch.tensor([[0.5, 0.5]])] * 2
    losses = [torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 1.0]])]
    after_epochs(stack, scores, tie="loss", losses=losses)
    assert [int(stack.replica(0, s).weight[0, 0]) for s in range(2)] == [0, 1]


def test_every_policy_of_a_stack_has_a_rule_of_its_own() -> None:
    stack = Replicas([nn.Linear(2, 2) for _ in range(2)], policies=3)
    scores = [torch.tensor([[0.5, 0.5]] * 3), torch.tensor([[0.5, 0.6]] * 3)]
    losses = [torch.tensor([[1.0, 1.0]] * 3), torch.tensor([[0.5, 2.0]] * 3)]
    after_epochs(stack, scores, tie="first last loss", losses=losses)
    found = [[int(stack.replica(p, s).weight[0, 0]) for s in range(2)] for p in range(3)]
    assert found == [[0, 1], [1, 1], [1, 1]]
    after_epochs(stack, scores, tie="loss first last", losses=losses[::-1])
    found = [[int(stack.replica(p, s).weight[0, 0]) for s in range(2)] for p in range(3)]
    assert found == [[0, 1], [0, 1], [1, 1]]


def test_runs_that_differ_in_their_ties_train_as_one_stack(tmp_path: Path, monkeypatch) -> None:
    """As each does alone, where all epochs tie: the first learns little, the last much."""
    constant = lambda _, model, *__: torch.full(lead_of(model), 0.5)  # noqa: E731
    monkeypatch.setattr(Evaluator, "validation", constant)
    flags = {"data.miniature": True, "data.tasks": 1, "train.lr": 1e-3}
    flags |= {"train.epochs": 12, "train.validation": 0.2}
    each = [
        resolve("mnist", flags={**flags, "train.tie": tie, "seed": seed})
        for tie in ("first", "last", "loss")
        for seed in (0, 1)
    ]
    options = RunOptions(quiet=True)
    together = [run["summary"]["RP"] for run in train_stack(each, tmp_path / "stack", options)]
    alone = [train_run(c, tmp_path / c.id, options)["RP"] for c in each]
    assert together == pytest.approx(alone, abs=0.02)
    assert min(alone[2:4]) > max(alone[:2]) + 0.1


@pytest.mark.parametrize("tie", ["first", "last", "loss"])
@pytest.mark.parametrize("benchmark", ["toy", "wsd"])
def test_a_run_keeps_the_epoch_its_setting_names(benchmark, tie, monkeypatch) -> None:
    """Every epoch has the same score: the first is left, the last, or one chosen by loss."""
    flags = {"data.miniature": True, "data.cap": 12} if benchmark == "wsd" else {}
    flags |= {"data.tasks": 2, "train.epochs": 3, "train.validation": 0.2, "train.tie": tie}
    run = build_run(resolve(benchmark, flags=flags))
    run.evaluate = Evaluator() if benchmark == "toy" else run.evaluate
    monkeypatch.setattr(type(run.evaluate), "validation", lambda *_: torch.tensor(0.5))
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
            assert ("loss" in best) is (tie == "loss")

    monkeypatch.setattr(loop, "compare_epoch", comparing)
    monkeypatch.setattr(loop, "restore_best", restoring)
    train(run)
    assert kept
    assert tie == "loss" or set(kept) == {{"first": 0, "last": 2}[tie]}


def test_runs_from_before_the_setting_keep_their_ids() -> None:
    assert "tie" not in resolve("toy").as_dict()["train"]
    ids = {resolve("toy", flags={"train.tie": tie}).id for tie in ("first", "last", "loss")}
    assert len(ids) == 3
    with pytest.raises(ValueError, match="tie"):
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
