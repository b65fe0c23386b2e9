"""The body of a step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail.methods import Finetune
from longtail.replicas import Replicas
from longtail.tasks import REGRESSION, Batch, Segments, StackedExamples, TableSequence
from longtail.training import POLICIES, Run, TrainSettings, cuda_graphs, step, train
from longtail.training.cuda_graphs import GraphStep

P, S, D = 2, 3, 5


def make_run(**settings: Any) -> Run:
    """Linear models with data of their own."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(D, 1), nn.Flatten(-2)) for _ in range(S)]
    bounds, seeds = [0, 7, 12, 16], torch.arange(S)
    table = StackedExamples(torch.randn(S, 16, D), torch.randn(S, 16))
    sequence = TableSequence(table, Segments(bounds), Segments(bounds), REGRESSION)
    model = Replicas(models, P)
    method = Finetune(model, REGRESSION, seed=seeds)
    given = TrainSettings(**{"batch_size": 4, "lr": 1e-2, "fused": False, **settings})
    policies = [POLICIES["continual"], POLICIES["new"]]
    return Run(sequence, model, method, policies, given, seeds, evaluate=False)


def test_who_wraps_the_loss_of_a_method_is_asked_for_it() -> None:
    run = make_run()
    loss, seen = run.method.loss, []

    def logged(batch: Batch) -> Tensor:
        seen.append(value := loss(batch))
        return value

    run.method.loss = logged
    train(run)
    assert [value.item() > 0 for value in seen] == [True] * 5


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
