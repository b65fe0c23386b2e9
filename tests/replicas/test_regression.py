"""The gradient of a stack of linear regressions, written without autograd."""

import copy

import pytest
import torch
from torch import Tensor, nn

from longtail.replicas import Replicas
from longtail.replicas.factored import Factored
from longtail.replicas.regression import RegressionGradient
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


@pytest.mark.parametrize("policies", [1, P])
@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("shared_targets", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_are_autograds(
    policies: int, factored: bool, shared_targets: bool, padded: bool
) -> None:
    stack = make(policies)
    other, gradient = copy.deepcopy(stack), RegressionGradient(stack)
    weights = torch.tensor([0.25] * 4 + [0.0] * 2).double() if padded else None
    for fresh, share in ((True, 1.0), (True, 0.5), (False, 1.0), (False, 0.25), (True, 1.0)):
        x, y = batch((S, B) if shared_targets else (policies, S, B), factored)
        if fresh:  # the others add to the gradients there are
            stack.zero_grad()
            other.zero_grad()
        assert gradient(x, y, weights, share)
        (by_autograd(other, x, y, weights) * share).backward()
        for mine, theirs in zip(stack.parameters(), other.parameters(), strict=True):
            assert mine.grad.is_contiguous()
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_gradients_follow_a_model_that_is_changed() -> None:
    stack, other = make(), make()
    gradient = RegressionGradient(stack)
    x, y = batch((P, S, B), False)
    assert gradient(x, y)
    stack.zero_grad()
    stack.float()
    assert gradient(x.float(), y.float())
    assert RegressionGradient(other)(x, y)
    for mine, theirs in zip(stack.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad.float())


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
    gradient = RegressionGradient(stack)
    assert gradient(x, y)
    stack.zero_grad()
    change(stack)
    assert not gradient(x, y)
    assert all(p.grad is None for p in stack.parameters())


def test_other_models_and_objectives_are_none_of_its_business() -> None:
    linear = [nn.Sequential(nn.Linear(D, 1), nn.Flatten(-2)).double() for _ in range(S)]
    deep = [nn.Sequential(nn.Linear(D, 2), nn.Linear(2, 1), nn.Flatten(-2)).double()] * S
    assert RegressionGradient.applies(make(), REGRESSION)
    for models in (linear, deep):
        assert not RegressionGradient.applies(Replicas(models, P), REGRESSION)
    assert not RegressionGradient.applies(linear[0], REGRESSION)
    assert not RegressionGradient.applies(make(), CLASSIFICATION)


def test_other_batches_go_through_autograd() -> None:
    stack = make()
    gradient = RegressionGradient(stack)
    x, y = batch((P, S, B), factored=False)
    assert not gradient(x[0].expand(S, B, D), y)
    with torch.no_grad():
        assert not gradient(x, y)
    stack.eval()
    assert not gradient(x, y)
