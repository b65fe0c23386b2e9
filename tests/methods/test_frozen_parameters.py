"""Layers that are frozen, thawed or added between tasks, as in gradual unfreezing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from longtail.methods import AGEM, EWC, EWCPlusPlus
from longtail.tasks import CLASSIFICATION, TensorExamples


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def examples(n: int = 20) -> TensorExamples:
    return TensorExamples(torch.randn(n, 4), torch.randint(3, (n,)))


def learn(method, task: TensorExamples, steps: int = 3) -> None:
    live = [p for p in method.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(live, lr=0.1)
    method.optimizer = optimizer
    for _ in range(steps):
        batch = task[torch.arange(8)]
        method.model.zero_grad()
        method.loss(batch).backward()
        method.after_backward()
        optimizer.step()
        method.observe(batch)
    method.end_task(task)


@pytest.mark.parametrize("fisher", ["example", "batch", "batch_sum"])
def test_ewc_takes_nothing_from_a_task_for_a_layer_that_it_left_frozen(fisher: str) -> None:
    model = make_model()
    method = EWC(model, CLASSIFICATION, strength=1.0, fisher=fisher)
    learn(method, examples())
    first = [F.clone() for F in method.sum_F]
    model[0].requires_grad_(False)
    learn(method, examples())
    assert all(torch.equal(a, b) for a, b in zip(first[:2], method.sum_F[:2], strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(first[2:], method.sum_F[2:], strict=True))
    model[0].requires_grad_(True)  # and it is guarded by what the first task has said
    learn(method, examples())
    assert all(not torch.equal(a, b) for a, b in zip(first[:2], method.sum_F[:2], strict=True))


def test_agem_projects_what_is_left_to_train() -> None:
    model = make_model()
    method = AGEM(model, CLASSIFICATION, buffer=20)
    learn(method, examples())
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    learn(method, examples())
    assert torch.equal(before, model[0].weight)
    # What is projected is what is trained: a gradient left from before has no part in it.
    batch = examples()[torch.arange(8)]
    projected = []
    for left in (None, torch.randn_like(model[0].weight)):
        model.zero_grad()
        model[0].weight.grad = left
        method.buffer.draws = 0
        torch.manual_seed(3)
        method.loss(batch).backward()
        method.after_backward()
        projected.append([p.grad.clone() for p in model[2].parameters()])
    for a, b in zip(*projected, strict=True):
        torch.testing.assert_close(a, b)
    model[0].requires_grad_(True)
    learn(method, examples())
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("kind", [EWC, EWCPlusPlus, AGEM])
def test_a_layer_that_was_frozen_when_the_method_was_made_has_no_guard_and_is_refused(kind) -> None:
    model = make_model()
    model[0].requires_grad_(False)
    method = kind(model, CLASSIFICATION)
    learn(method, examples())
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"0\.weight was frozen when .* was made"):
        learn(method, examples())


@pytest.mark.parametrize("fisher", ["example", "batch"])
def test_ewc_guards_the_old_weights_of_a_model_that_has_grown(fisher: str) -> None:
    """The Fisher information is that of the model as it is, of the parameters that it knew."""
    model = make_model()
    method = EWC(model, CLASSIFICATION, fisher=fisher)
    task = examples()
    learn(method, task)
    model.append(nn.Linear(3, 3))
    learn(method, task, steps=0)
    fresh = EWC(model, CLASSIFICATION, fisher=fisher)
    expected = fresh.fisher(task, None)
    assert len(expected) == len(method.sum_F) + 2
    again = method.fisher(task, None)
    for a, b in zip(again, expected, strict=False):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("fisher", ["example", "batch"])
def test_a_task_that_trains_a_new_head_alone_leaves_what_is_guarded(fisher: str) -> None:
    """All that the method knows is frozen."""
    model = make_model()
    methods = [EWC(model, CLASSIFICATION, fisher=fisher), AGEM(model, CLASSIFICATION, buffer=10)]
    for method in methods:
        learn(method, examples())
    guarded = [F.clone() for F in methods[0].sum_F]
    model.requires_grad_(False)
    model.append(nn.Linear(3, 3))
    for method in methods:
        learn(method, examples())
    assert all(torch.equal(a, b) for a, b in zip(guarded, methods[0].sum_F, strict=True))
