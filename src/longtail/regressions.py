r"""The loss of a stack of linear regressions, and its gradient in the same pass.

    L = Σ_p Σ_s Σ_j c_j r²,        r = w_ps · h_sj - y_psj,        ∇_w L = 2 Σ_j c_j r h_sj

with c_j = 1/B, or the weights of rows of which some are padding.

For the synthetic study's models a step is a few small products, and autograd's bookkeeping for one
parameter per policy takes several times as long. Here `backward` hands out parts of one gradient
that is known already.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longtail.factored import Factored
from longtail.objectives import REGRESSION, Objective
from longtail.replicas import Replicas
from longtail.stacked_linear import all_as_one, is_special

_HOST = torch.device("cpu")


def regression_loss(
    model: nn.Module,
    objective: Objective,
    inputs: Any,
    targets: Any,
    row_weights: Tensor | None = None,
    *,
    unread: bool = False,
) -> Tensor | None:
    """What ``objective.loss(model(inputs), targets).mean(-1).sum()`` is, for linear models.

    None where the model is another, or somebody watches it with hooks. `backward` writes the
    parameters' ``grad``; `torch.autograd.grad` has nothing to look at.

    Args:
        unread: give NaN for the value, which costs a GPU as much as a product. It is on the host,
            so that the factor one of its `backward` is known there and need not be multiplied by.
    """
    if not isinstance(model, Replicas) or objective.loss is not REGRESSION.loss:
        return None
    weights = model.regression_weights()
    if weights is None or not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None
    own_rows = inputs.dim() == 3 and targets.dim() > 1 and inputs.stride(0) != 0
    if not own_rows or inputs.requires_grad or is_special(inputs) or not torch.is_grad_enabled():
        return None
    weight = all_as_one(weights)
    if weight is None or not all(map(_is_plain_leaf, weights)):
        return None
    left, right = (inputs.left, inputs.right) if isinstance(inputs, Factored) else (inputs, None)
    return _Loss.apply(  # pyright: ignore[reportReturnType]
        _anchor(_HOST if unread else weight.device),
        weight,
        left,
        right,
        targets,
        row_weights,
        weights,
        unread,
    )


def _is_plain_leaf(p: Any) -> bool:
    return p.requires_grad and not p._backward_hooks and not p._post_accumulate_grad_hooks


@functools.cache
def _anchor(device: torch.device) -> Tensor:
    """Something that needs a gradient, as autograd calls no `backward` otherwise."""
    return torch.zeros((), device=device, requires_grad=True)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        anchor: Tensor,
        weight: Tensor,
        left: Tensor,
        right: Tensor | None,
        targets: Tensor,
        row_weights: Tensor | None,
        parameters: Sequence[nn.Parameter],
        unread: bool,
    ) -> Tensor:
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
        ctx.grad, ctx.parameters = torch.empty_like(weight), parameters
        torch.mul(grad.transpose(0, 1).unsqueeze(2), 2.0 * scale, out=ctx.grad)
        if unread:
            return torch.full((), math.nan)
        return torch.dot(weighted.view(-1), r.view(-1)) * scale

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[None, ...]:  # pyright: ignore
        grad = ctx.grad
        if scale.is_cuda or scale.item() != 1.0:  # what a GradScaler multiplied the loss with
            grad = grad * scale
        for p, part in zip(ctx.parameters, grad.unbind(0), strict=True):
            p.grad = part if p.grad is None else p.grad + part
        return (None,) * 8
