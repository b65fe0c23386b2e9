r"""The loss of a stack of linear regressions, and its gradient in the same pass.

    L = Σ_p Σ_s Σ_j c_j r²,        r = w_ps · h_sj - y_psj,        ∇_w L = 2 Σ_j c_j r h_sj

with c_j = 1/B, or the weights of rows of which some are padding.

For the synthetic study's models a step is a few small products, and autograd's bookkeeping for one
parameter per policy takes several times as long. Here `backward` hands out parts of one gradient
that is known already, and where nobody wants the loss there is no autograd at all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from longtail.replicas import Replicas
from longtail.replicas.factored import Factored
from longtail.replicas.linear import all_as_one, is_special
from longtail.tasks.objectives import REGRESSION, Objective


class _Problem(NamedTuple):
    """What is differentiated, and the policies' parameters: parts of ``weight`` [P, S, 1, d]."""

    weight: Tensor
    left: Tensor
    right: Tensor | None  # the inputs are left right, or left
    targets: Tensor
    row_weights: Tensor | None
    parameters: Sequence[nn.Parameter]


def regression_loss(
    model: nn.Module,
    objective: Objective,
    inputs: Any,
    targets: Any,
    row_weights: Tensor | None = None,
) -> Tensor | None:
    """What ``objective.loss(model(inputs), targets).mean(-1).sum()`` is, for linear models.

    None where the model is another, or somebody watches it with hooks. `backward` writes the
    parameters' ``grad``; `torch.autograd.grad` has nothing to look at.
    """
    problem = _problem(model, objective, inputs, targets, row_weights)
    if problem is None:
        return None
    return _Loss.apply(_anchor(problem.weight.device), problem)  # pyright: ignore


def write_gradients(
    model: nn.Module,
    objective: Objective,
    inputs: Any,
    targets: Any,
    row_weights: Tensor | None = None,
) -> bool:
    """Add the gradient of `regression_loss` to the parameters' ``grad``, without autograd.

    False, with nothing done, where there is no such loss. On a CPU the gradients are at one place
    in all steps: making thirty of them takes as long as the products.
    """
    problem = _problem(model, objective, inputs, targets, row_weights)
    if problem is None:
        return False
    weight, parameters = problem.weight, problem.parameters
    if weight.is_cuda or any(p.grad is not None for p in parameters):
        grad = torch.empty_like(weight)
        _differentiate(problem, grad)
        _hand_out(grad, parameters)
        return True
    grad, parts = _kept.get(model, (None, ()))
    kind = (weight.shape, weight.dtype, weight.device)
    if grad is None or (grad.shape, grad.dtype, grad.device) != kind:
        grad = torch.empty_like(weight)
        parts = grad.unbind(0)
        _kept[model] = grad, parts
    _differentiate(problem, grad)
    for p, part in zip(parameters, parts, strict=True):
        p.grad = part
    return True


_kept: WeakKeyDictionary[nn.Module, tuple[Tensor, tuple[Tensor, ...]]] = WeakKeyDictionary()


def _problem(
    model: nn.Module, objective: Objective, inputs: Any, targets: Any, row_weights: Tensor | None
) -> _Problem | None:
    if not isinstance(model, Replicas) or objective.loss is not REGRESSION.loss:
        return None
    weights = model.regression_weights()
    if weights is None or not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None
    own_rows = inputs.dim() == 3 and targets.dim() > 1 and inputs.stride(0) != 0
    if not own_rows or inputs.requires_grad or is_special(inputs) or not torch.is_grad_enabled():
        return None
    weight = all_as_one(weights)
    if weight is None or not all(map(_needs_gradient, weights)):
        return None
    if any(map(_hooks, weights)) or any(map(_later_hooks, weights)):
        return None
    left, right = (inputs.left, inputs.right) if isinstance(inputs, Factored) else (inputs, None)
    return _Problem(weight, left, right, targets, row_weights, weights)


# Thirty times a step: as functions in Python these would take as long as a product.
_needs_gradient = attrgetter("requires_grad")
_hooks = attrgetter("_backward_hooks")
_later_hooks = attrgetter("_post_accumulate_grad_hooks")


@functools.cache
def _anchor(device: torch.device) -> Tensor:
    """Something that needs a gradient, as autograd calls no `backward` otherwise."""
    return torch.zeros((), device=device, requires_grad=True)


def _differentiate(problem: _Problem, out: Tensor) -> tuple[Tensor, Tensor, float]:
    """Write the gradient [P, S, 1, d] to ``out``; returns r, the weighted r and 1 or 1/B."""
    weight, left, right, targets, row_weights, _ = problem
    w = weight.squeeze(2).transpose(0, 1)  # [S, P, d]
    if right is not None:
        w = torch.bmm(w, right.transpose(1, 2))
    r = torch.bmm(w, left.transpose(1, 2))
    r.sub_(targets.unsqueeze(1) if targets.dim() == 2 else targets.transpose(0, 1))
    weighted = r if row_weights is None else r * row_weights
    scale = 1.0 / left.shape[1] if row_weights is None else 1.0
    grad = torch.bmm(weighted, left)
    if right is not None:
        grad = torch.bmm(grad, right)
    torch.mul(grad.transpose(0, 1).unsqueeze(2), 2.0 * scale, out=out)
    return r, weighted, scale


def _hand_out(grad: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for p, part in zip(parameters, grad.unbind(0), strict=True):
        p.grad = part if p.grad is None else p.grad + part


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, problem: _Problem) -> Tensor:  # pyright: ignore
        ctx.grad, ctx.parameters = torch.empty_like(problem.weight), problem.parameters
        r, weighted, scale = _differentiate(problem, ctx.grad)
        return torch.dot(weighted.view(-1), r.view(-1)) * scale

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[None, ...]:  # pyright: ignore
        grad = ctx.grad
        if scale.is_cuda or scale.item() != 1.0:  # what a GradScaler multiplied the loss with
            grad = grad * scale
        _hand_out(grad, ctx.parameters)
        return None, None
