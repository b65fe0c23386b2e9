"""The body of a step, and how a run gets its gradients, which is decided when it is built."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail.methods import EWC, Finetune, Method
from longtail.replicas import Replicas
from longtail.replicas.regression import RegressionGradient
from longtail.tasks import REGRESSION, Batch, Segments, StackedExamples, TableSequence
from longtail.training import POLICIES, Run, TrainSettings, cuda_graphs, step, train
from longtail.training.cuda_graphs import GraphStep

P, S, D = 2, 3, 5


def make_run(kind: type[Method] = Finetune, bias: bool = False, **settings: Any) -> Run:
    """Linear models with data of their own, of which those without a bias are regressions."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(D, 1, bias), nn.Flatten(-2)) for _ in range(S)]
    bounds, seeds = [0, 7, 12, 16], torch.arange(S)
    table = StackedExamples(torch.randn(S, 16, D), torch.randn(S, 16))
    sequence = TableSequence(table, Segments(bounds), Segments(bounds), REGRESSION)
    model = Replicas(models, P)
    method = kind(model, REGRESSION, seed=seeds)
    given = TrainSettings(**{"batch_size": 4, "lr": 1e-2, "fused": False, **settings})
    policies = [POLICIES["continual"], POLICIES["reset"]]
    return Run(sequence, model, method, policies, given, seeds, evaluate=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What was answered each time somebody asked for gradients without autograd."""
    answers: list[bool] = []
    ask = RegressionGradient.__call__

    def note(self: RegressionGradient, *args: Any) -> bool:
        answers.append(ask(self, *args))
        return answers[-1]

    monkeypatch.setattr(RegressionGradient, "__call__", note)
    return answers


def refuse(*_: object) -> Tensor:
    raise AssertionError("the loss was asked for")


def test_regressions_learn_without_a_loss_that_nobody_reads(
    asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Method, "mean_loss", refuse)
    train(make_run())
    assert asked == [True] * 5


class Adding(Finetune):
    def loss(self, batch: Batch) -> Tensor:
        return super().loss(batch) * 2.0


class Looking(Finetune):
    def observe(self, batch: Batch) -> None:
        assert self.outputs.shape == (P, *batch[1].shape)


@pytest.mark.parametrize(
    ("kind", "bias"), [(Finetune, True), (EWC, False), (Adding, False), (Looking, False)]
)
def test_nobody_is_asked_at_every_step_where_it_can_never_apply(
    asked: list[bool], kind: type[Method], bias: bool
) -> None:
    train(make_run(kind, bias))
    assert asked == []


@pytest.mark.parametrize("accumulate", [1, 2])
def test_both_ways_learn_the_same(accumulate: int) -> None:
    class Plain(Finetune):
        def loss(self, batch: Batch) -> Tensor:
            return super().loss(batch)

    written, autograd = (make_run(k, accumulate=accumulate) for k in (Finetune, Plain))
    train(written)
    train(autograd)
    for mine, theirs in zip(written.parameters, autograd.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_who_wraps_the_loss_of_a_method_is_asked_for_it() -> None:
    run = make_run()
    loss, seen = run.method.loss, []

    def logged(batch: Batch) -> Tensor:
        seen.append(value := loss(batch))
        return value

    run.method.loss = logged
    train(run)
    assert [value.item() > 0 for value in seen] == [True] * 5


def test_hooks_that_come_later_are_called() -> None:
    run, seen = make_run(), []
    run.model.register_forward_hook(lambda *_: seen.append(1))
    train(run)
    assert len(seen) == 5


@pytest.mark.parametrize("captured", [False, True])
def test_eager_and_padded_steps_go_through_one_body(
    captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = make_run(clip=0.5), []
    if captured:
        run.take_step = GraphStep(run, capture=False)
    body = step.update
    for module in (step, cuda_graphs):
        monkeypatch.setattr(module, "update", lambda *args: (calls.append(1), body(*args))[1])
    train(run)
    assert len(calls) == 5
