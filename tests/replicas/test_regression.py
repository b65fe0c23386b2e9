"""The loss of a stack of linear regressions, with its gradient in the same pass."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from longtail.methods import Finetune
from longtail.methods.finetune import backward
from longtail.replicas import Replicas
from longtail.replicas.factored import Factored
from longtail.replicas.regression import regression_loss, write_gradients
from longtail.tasks.objectives import CLASSIFICATION, REGRESSION

P, S, B, D = 3, 4, 6, 5


def make(policies: int = P) -> Replicas:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(D, 1, bias=False), nn.Flatten(-2)).double() for _ in range(S)]
    stack = Replicas(models, policies)
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(torch.randn_like(p))
    return stack


def batch(targets: tuple[int, ...], factored: bool) -> tuple[Tensor, Tensor]:
    left, right = torch.randn(S, B, 2).double(), torch.randn(S, 2, D).double()
    x = Factored(left, right) if factored else left @ right
    return x, torch.randn(*targets).double()


def by_autograd(stack: Replicas, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    losses = (stack(inputs * 1.0) - targets).square()
    return losses.mean(-1).sum() if weights is None else (losses * weights).sum()


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_without_a_loss_are_the_same(factored: bool, padded: bool) -> None:
    stack, other = make(), make()
    weights = torch.tensor([0.25] * 4 + [0.0] * 2).double() if padded else None
    for fresh in (True, True, False):  # the last adds to the gradients there are
        x, y = batch((P, S, B), factored)
        if fresh:
            stack.zero_grad()
            other.zero_grad()
        assert write_gradients(stack, REGRESSION, x, y, weights)
        loss = regression_loss(other, REGRESSION, x, y, weights)
        assert loss is not None
        loss.backward()
        for mine, theirs in zip(stack.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


def test_gradients_follow_a_model_that_is_changed() -> None:
    stack, other = make(), make()
    x, y = batch((P, S, B), False)
    assert write_gradients(stack, REGRESSION, x, y)
    stack.zero_grad()
    stack.float()
    assert write_gradients(stack, REGRESSION, x.float(), y.float())
    assert write_gradients(other, REGRESSION, x, y)
    for mine, theirs in zip(stack.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad.float())


def test_a_subclass_that_adds_to_the_loss_is_asked_for_it() -> None:
    class Doubled(Finetune):
        def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return super().loss(batch) * 2.0

    x, y = batch((P, S, B), False)
    found = []
    for kind in (Finetune, Doubled):
        method = kind(make(), REGRESSION, seed=torch.arange(S))
        backward(method, (x, y), nullcontext())
        found.append([p.grad.clone() for p in method.model.parameters()])
    for once, twice in zip(*found, strict=True):
        torch.testing.assert_close(2.0 * once, twice)


def test_finetune_makes_no_loss_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("the loss was asked for")

    monkeypatch.setattr("longtail.methods.finetune.regression_loss", refuse)
    method = Finetune(make(), REGRESSION, seed=torch.arange(S))
    backward(method, batch((P, S, B), False), nullcontext())
    assert all(p.grad is not None for p in method.model.parameters())


def test_who_wraps_the_loss_of_a_method_is_asked_for_it() -> None:
    method = Finetune(make(), REGRESSION, seed=torch.arange(S))
    loss, seen = method.loss, []

    def logged(batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(value := loss(batch))
        return value

    method.loss = logged
    backward(method, batch((P, S, B), False), nullcontext())
    assert [value.item() > 0 for value in seen] == [True]


@pytest.mark.parametrize("policies", [1, P])
@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("shared_targets", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_loss_and_gradients_are_autograds(
    policies: int, factored: bool, shared_targets: bool, padded: bool
) -> None:
    stack = make(policies)
    other = copy.deepcopy(stack)
    x, y = batch((S, B) if shared_targets else (policies, S, B), factored)
    weights = torch.tensor([0.25] * 4 + [0.0] * 2).double() if padded else None
    for scale in (1.0, 8.0):  # the second accumulates, as a GradScaler would have it
        loss = regression_loss(stack, REGRESSION, x, y, weights)
        expected = by_autograd(other, x, y, weights)
        assert loss is not None
        torch.testing.assert_close(loss, expected)
        (loss * scale).backward()
        (expected * scale).backward()
    for mine, theirs in zip(stack.parameters(), other.parameters(), strict=True):
        assert mine.grad.is_contiguous()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_finetune_uses_it_and_others_do_not_lose_their_outputs() -> None:
    stack = make()
    x, y = batch((P, S, B), factored=True)
    method = Finetune(stack, REGRESSION, seed=torch.arange(S))
    assert method.loss((x, y)).grad_fn.name().startswith("_Loss")
    stack.eval()
    assert not method.loss((x, y)).grad_fn.name().startswith("_Loss")
    assert method.outputs is not None


def watch_parameter(stack: Replicas) -> None:
    next(stack.parameters()).register_hook(lambda grad: grad)


def watch_accumulation(stack: Replicas) -> None:
    next(stack.parameters()).register_post_accumulate_grad_hook(lambda p: None)


def watch_model(stack: Replicas) -> None:
    stack.register_forward_hook(lambda *_: None)


def watch_backward(stack: Replicas) -> None:
    stack.register_full_backward_hook(lambda *_: None)


def watch_before_backward(stack: Replicas) -> None:
    stack.register_full_backward_pre_hook(lambda *_: None)


def freeze(stack: Replicas) -> None:
    next(stack.parameters()).requires_grad_(False)


def move_apart(stack: Replicas) -> None:
    p = stack.policy_parameters(1)[0]
    p.data = p.data.clone()


@pytest.mark.parametrize(
    "change",
    [
        watch_parameter,
        watch_accumulation,
        watch_model,
        watch_backward,
        watch_before_backward,
        freeze,
        move_apart,
    ],
)
def test_a_stack_that_is_watched_or_changed_goes_through_autograd(change) -> None:
    stack = make()
    x, y = batch((P, S, B), factored=False)
    assert regression_loss(stack, REGRESSION, x, y) is not None
    change(stack)
    assert regression_loss(stack, REGRESSION, x, y) is None


def test_other_models_objectives_and_batches_go_through_autograd() -> None:
    x, y = batch((P, S, B), factored=False)
    linear = [nn.Sequential(nn.Linear(D, 1), nn.Flatten(-2)).double() for _ in range(S)]
    deep = [nn.Sequential(nn.Linear(D, 2), nn.Linear(2, 1), nn.Flatten(-2)).double()] * S
    for models in (linear, deep):
        assert regression_loss(Replicas(models, P), REGRESSION, x, y) is None
    assert regression_loss(linear[0], REGRESSION, x[0], y[0, 0]) is None
    assert regression_loss(make(), CLASSIFICATION, x, y) is None
    shared = x[0].expand(S, B, D)
    assert regression_loss(make(), REGRESSION, shared, y) is None
    with torch.no_grad():
        assert regression_loss(make(), REGRESSION, x, y) is None
