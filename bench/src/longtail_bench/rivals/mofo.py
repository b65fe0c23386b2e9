r"""MoFO: move only the largest momentum entries (Chen et al., 2024; arXiv 2407.20999).

    θ_i ← Adam's step     where |m_i| is among the α n largest of its block's n entries
    θ_i ← θ_i             elsewhere

A block is a parameter tensor. Both moments see every gradient; only the weights stay where the
filter says so, weight decay included. What is not moved is not forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, _use_grad_for_differentiable

from longtail.optim._torch import light_step
from longtail.optim.continual_adam import ContinualAdamW

# The step of the class below, without torch's wrapper: hooks are run by MoFO's own.
adamw_step: Callable[[ContinualAdamW], None] = ContinualAdamW.step.__wrapped__  # pyright: ignore
HALF = 2  # bytes of the numbers that NumPy has no type for, or is slow with


class MoFO(ContinualAdamW):
    r"""AdamW, or Continual AdamW, that moves the entries with the largest momentum alone.

    Nothing is kept beyond the optimizer's own state; while a step lasts, a copy of the weights.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr, betas, eps, weight_decay: as for :class:`ContinualAdamW`.
        fraction: :math:`\alpha`, the share of each tensor's entries that a step moves.
        lead: the leading dimensions of replicas in a stack, each of which is a block of its own.
        settings: further ones of :class:`ContinualAdamW`; ``second_moment="reset"`` and
            ``beta3=0`` make it the AdamW of the paper with a fresh state for every task.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(4))
        >>> optimizer = MoFO([weight], lr=0.1, weight_decay=0.0, fraction=0.25)
        >>> weight.grad = torch.tensor([0.1, -3.0, 0.2, 0.0])
        >>> optimizer.step()
        >>> weight.nonzero().flatten()
        tensor([1])

    References:
        MoFO: Momentum-Filtered Optimizer for Mitigating Forgetting in LLM Fine-Tuning,
        https://arxiv.org/abs/2407.20999
    """

    elementwise = True  # replicas do not meet: a stack says which dimension they are

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        fraction: float = 0.1,
        lead: tuple[int, ...] = (),
        **settings: Any,
    ) -> None:
        self._own = {"fraction": fraction, "lead": len(lead)}
        _check_fraction(fraction)
        super().__init__(params, lr, betas, eps, weight_decay, **settings)
        self.defaults |= self._own

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with a fraction of its own or the one of all groups."""
        own: Any = getattr(self, "_own", self.defaults)  # which come later
        whole = {**own, **param_group}
        _check_fraction(whole["fraction"])
        super().add_param_group(whole)

    @light_step
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Perform a single optimization step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [
            (p, p.detach().clone(), group)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        adamw_step(self)
        with torch.no_grad():
            for p, before, group in moved:
                keep = largest(self.state[p]["exp_avg"], group["fraction"], group["lead"])
                p.copy_(torch.where(keep, p, before))
        return loss


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(f"Invalid fraction: {fraction}, not in (0, 1]")


def largest(m: Tensor, fraction: float, lead: int) -> Tensor:
    """Which entries of m are among the largest `fraction` of a replica's; at least one.

    None without momentum is: it would be moved by weight decay alone.
    """
    size = m.abs()
    if not size.numel():
        return size > 0
    flat = size.reshape(*size.shape[:lead], -1)
    count = max(1, round(fraction * flat.shape[-1]))
    if flat.device.type == "cpu":  # NumPy's partition takes a tenth of the time of kthvalue
        place = flat.shape[-1] - count
        numbers = flat.float() if flat.element_size() == HALF else flat
        found = np.partition(numbers.numpy(), place, -1)[..., place]
        least = torch.from_numpy(np.asarray(found)).to(flat.dtype)
    else:  # where kthvalue is the work of one block a replica, however large that is
        least = flat.topk(count, -1, sorted=False).values.amin(-1)
    return (size >= least.reshape(least.shape + (1,) * (m.dim() - lead))) & (size > 0)
