r"""The synthetic study's model, f(x) = θ · x, and how a stack of it runs in one operation.

Inputs that are a product, h = left right, are never made:

    W hᵀ = (W rightᵀ) leftᵀ        gᵀ h = (gᵀ left) right
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longtail.replicas import all_as_one, is_special, linear
from longtail_bench.synthetic.factored import Factored


class Regressor(nn.Sequential):
    """One number per example: [B, d] -> [B]."""

    def __init__(self, d: int) -> None:
        super().__init__(nn.Linear(d, 1, bias=False), nn.Flatten(-2))

    @staticmethod
    def forward_stacked(members: Sequence[Regressor], inputs: Tensor) -> Tensor:
        """Inputs [S, B, d] to [P, S, B]."""
        layers: list[Any] = [member[0] for member in members]
        weights: list[Tensor] = [layer.weight for layer in layers]
        whole = None if len(members) == 1 or _plainly(inputs) else all_as_one(weights)
        if whole is None:
            return linear(layers, inputs).flatten(-2)
        factored = isinstance(inputs, Factored)
        left, right = (inputs.left, inputs.right) if factored else (inputs, None)
        outputs: Any = _Regressions.apply(left, right, whole, *weights)
        return outputs.flatten(-2)


def _plainly(inputs: Tensor) -> bool:
    """Whether the product is one of rows that replicas share, or somebody wants to see it."""
    return is_special(inputs) or inputs.requires_grad or inputs.stride(0) == 0


class _Regressions(torch.autograd.Function):
    """P layers of one output each and no bias, in one operation instead of a dozen.

    [S, B, d] -> [P, S, B, 1]. With ten thousands of steps on a few numbers each, what costs time is
    the number of operations.
    """

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, left: Tensor, right: Tensor | None, whole: Tensor, *weights: Tensor
    ) -> Tensor:
        """`whole` [P, S, 1, d] are the `weights`, whose gradients are wanted, as one tensor."""
        ctx.save_for_backward(left, right)
        weight = whole.squeeze(2).transpose(0, 1)  # [S, P, d]
        if right is not None:
            weight = torch.bmm(weight, right.transpose(1, 2))
        return torch.bmm(weight, left.transpose(1, 2)).transpose(0, 1).unsqueeze(3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        left, right = ctx.saved_tensors
        product = torch.bmm(grad.squeeze(3).transpose(0, 1), left)
        if right is not None:
            product = torch.bmm(product, right)  # [S, P, d]
        parts = product.transpose(0, 1).contiguous().unsqueeze(2).unbind(0)
        return None, None, None, *parts
