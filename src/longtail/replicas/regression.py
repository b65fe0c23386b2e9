r"""The gradient of a stack of linear regressions, written without autograd.

    L = Σ_p Σ_s Σ_j c_j r²,        r = w_ps · h_sj - y_psj,        ∇_w L = 2 Σ_j c_j r h_sj

with c_j = 1/B, or the weights of rows of which some are padding.

For the synthetic study's models a step is a few small products, and autograd's bookkeeping for one
parameter per policy takes several times as long.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from longtail.replicas.factored import Factored
from longtail.replicas.linear import all_as_one, is_special
from longtail.replicas.program import Replicas
from longtail.tasks.objectives import REGRESSION, Objective


class RegressionGradient:
    """Adds the gradient of the mean loss of linear models to their parameters' ``grad``.

    Args:
        model: a stack for which `applies` holds.
    """

    def __init__(self, model: Replicas) -> None:
        self.model = model
        self._parts: tuple[Tensor, ...] = ()
        self._whole: Tensor | None = None

    @staticmethod
    def applies(model: nn.Module, objective: Objective) -> bool:
        """Whether these are linear models and squared errors, which is known before any batch."""
        linear = isinstance(model, Replicas) and model.regressions is not None
        return linear and objective.loss is REGRESSION.loss

    def __call__(
        self, inputs: Any, targets: Any, row_weights: Tensor | None = None, share: float = 1.0
    ) -> bool:
        """Add the gradient of `share` times ``loss(model(inputs), targets).mean(-1).sum()``.

        False, with nothing done, where somebody watches the model with hooks, or where a batch is
        another kind of problem: autograd is the way then.
        """
        found = self._weights(inputs, targets)
        if found is None:
            return False
        parameters, weight = found
        if weight.is_cuda or share != 1.0 or any(p.grad is not None for p in parameters):
            grad = torch.empty_like(weight)
            _differentiate(weight, inputs, targets, row_weights, grad)
            if share != 1.0:
                grad.mul_(share)
            for p, part in zip(parameters, grad.unbind(0), strict=True):
                p.grad = part if p.grad is None else p.grad + part
            return True
        _differentiate(weight, inputs, targets, row_weights, self._kept(weight))
        for p, part in zip(parameters, self._parts, strict=True):
            p.grad = part
        return True

    def _weights(self, inputs: Any, targets: Any) -> tuple[list[nn.Parameter], Tensor] | None:
        """The policies' parameters, and the tensor [P, S, 1, d] that they are parts of."""
        weights = self.model.regression_weights()
        if weights is None or not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            return None
        own_rows = inputs.dim() == 3 and targets.dim() > 1 and inputs.stride(0) != 0
        watched = inputs.requires_grad or is_special(inputs)
        if not own_rows or watched or not torch.is_grad_enabled():
            return None
        weight = all_as_one(weights)
        if weight is None or not all(map(_needs_gradient, weights)):
            return None
        if any(map(_hooks, weights)) or any(map(_later_hooks, weights)):
            return None
        return weights, weight

    def _kept(self, weight: Tensor) -> Tensor:
        """Gradients at one place in all steps: making thirty takes as long as the products."""
        kind = (weight.shape, weight.dtype, weight.device)
        kept = self._whole
        if kept is None or (kept.shape, kept.dtype, kept.device) != kind:
            kept = self._whole = torch.empty_like(weight)
            self._parts = kept.unbind(0)
        return kept


# Thirty times a step: as functions in Python these would take as long as a product.
_needs_gradient = attrgetter("requires_grad")
_hooks = attrgetter("_backward_hooks")
_later_hooks = attrgetter("_post_accumulate_grad_hooks")


def _differentiate(
    weight: Tensor, inputs: Tensor, targets: Tensor, row_weights: Tensor | None, out: Tensor
) -> None:
    """Write the gradient [P, S, 1, d] to ``out``; the inputs may be a product, left right."""
    left, right = (inputs.left, inputs.right) if isinstance(inputs, Factored) else (inputs, None)
    w = weight.squeeze(2).transpose(0, 1)  # [S, P, d]
    if right is not None:
        w = torch.bmm(w, right.transpose(1, 2))
    r = torch.bmm(w, left.transpose(1, 2))
    r.sub_(targets.unsqueeze(1) if targets.dim() == 2 else targets.transpose(0, 1))
    if row_weights is not None:
        r.mul_(row_weights)
    scale = 1.0 / left.shape[1] if row_weights is None else 1.0
    grad = torch.bmm(r, left)
    if right is not None:
        grad = torch.bmm(grad, right)
    torch.mul(grad.transpose(0, 1).unsqueeze(2), 2.0 * scale, out=out)
