r"""UPGD: utility-based perturbed gradient descent (Elsayed and Mahmood, 2024; arXiv 2404.00781).

    u ← β_u u + (1 - β_u) (-g θ)                          what the loss would lose with the weight
    Ū = sigmoid(û / max û),   û = u / (1 - β_uᵗ)          the maximum is over the whole model
    θ ← (1 - γ λ) θ - 2 γ (m̂ / (√v̂ + ε) + ξ) (1 - Ū)      ξ ~ N(0, σ²)

A useful weight is moved less, by the gradient and by the noise ξ, which brings useless ones back to
life. This is the form with Adam's moments, which the authors use with Adam-sized rates; with
``adaptive=False`` it is the paper's Algorithm 1, θ ← (1 - γ λ) θ - γ (g + ξ) (1 - Ū), without m
and v. The factor 2 gives a weight of no utility, Ū = 1/2, the step that Adam would make.

Where no weight is useful, max û ≤ 0, we take the smallest positive number for the maximum, so that
all harmful weights move freely, Ū = 0. Divided by a negative maximum, as the formula has it, the
most harmful weight would count as the most useful one.

The noise is a function of seed, parameter and step, so that a resumed run and a replica in a stack
see what the single run sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from longtail.optim._torch import graph_capture_health_check
from longtail.support.random import Seed
from longtail_bench.rivals.noise import (
    DrawingOptimizer,
    Member,
    corrected,
    counts_of,
    new_count,
    scale,
)


class UPGD(DrawingOptimizer):
    r"""Steps that are smaller where a weight is useful, with noise where it is not.

    Keeps u beside Adam's m and v, or u alone with ``adaptive=False``. Knows of no boundary.

    Args:
        params: parameters or parameter groups.
        lr: learning rate :math:`\gamma`.
        betas, eps: of Adam's moments.
        weight_decay: decoupled.
        utility_decay: :math:`\beta_u`.
        noise: :math:`\sigma`.
        adaptive: whether steps are Adam's; otherwise they follow the gradient.
        capturable: keep the step counts on the device, for CUDA graphs.
        lead: the leading dimensions of replicas in a stack; each group is then one policy's.
        seed: an int, or one per replica.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
        >>> optimizer = UPGD([weight], lr=0.1, noise=0.0)
        >>> weight.grad = torch.tensor([-1.0, 1e-3])  # without the first one the loss would grow
        >>> optimizer.step()
        >>> (weight - 1).abs().argmin()
        tensor(0)

    References:
        Addressing Loss of Plasticity and Catastrophic Forgetting in Continual Learning,
        https://arxiv.org/abs/2404.00781
    """

    stream = "upgd"
    not_negative = ("noise",)
    elementwise = True  # replicas do not meet: a stack says which dimension they are

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        utility_decay: float = 0.999,
        noise: float = 0.001,
        adaptive: bool = True,
        capturable: bool = False,
        lead: tuple[int, ...] = (),
        seed: Seed = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "utility_decay": utility_decay,
            "noise": noise,
            "adaptive": adaptive,
            "capturable": capturable,
            "lead": len(lead),
            "seed": seed,
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not 0 <= group["utility_decay"] < 1:
            raise ValueError(f"Invalid utility_decay: {group['utility_decay']}, not in [0, 1)")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Perform a single optimization step."""
        graph_capture_health_check(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [(self._members(group), group) for group in self.param_groups]
        found = [(members, group) for members, group in found if members]
        tops = [self._measure(members, group) for members, group in found]
        if tops and not self.param_groups[0]["lead"]:  # all groups are parts of one model
            together = torch.stack([top.to(tops[0].device) for top in tops]).max(0).values
            tops = [together.to(top.device) for top in tops]
        for (members, group), top in zip(found, tops, strict=True):
            self._move(members, group, top)
        return loss

    def restart(self, params: Iterable[Tensor]) -> None:
        """Make the state of some parameters that of new ones, in the tensors that are there."""
        held = [x for p in params for x in self.state.get(p, {}).values()]
        if held:
            torch._foreach_zero_(held)

    def _members(self, group: dict[str, Any]) -> list[Member]:
        """The parameters that have a gradient, with their state, made where it is missing."""
        kinds = ("utility", "exp_avg", "exp_avg_sq") if group["adaptive"] else ("utility",)
        found: list[Member] = []
        for i, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = new_count(p, group)
                state |= {kind: torch.zeros_like(p) for kind in kinds}
            found.append(Member(i, p, state))
        return found

    def _measure(self, members: list[Member], group: dict[str, Any]) -> Tensor:
        """Update u, m and v; the largest utility of each replica, [*lead]."""
        params, grads = _with_gradients(members)
        utility = [m.state["utility"] for m in members]
        torch._foreach_add_([m.state["step"] for m in members], 1)
        useful = torch._foreach_mul(torch._foreach_neg(grads), params)
        torch._foreach_lerp_(utility, useful, 1 - group["utility_decay"])
        if group["adaptive"]:
            beta1, beta2 = group["betas"]
            second = [m.state["exp_avg_sq"] for m in members]
            torch._foreach_lerp_([m.state["exp_avg"] for m in members], grads, 1 - beta1)
            scale(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        lead = group["lead"]
        largest = [u.reshape(*u.shape[:lead], -1).max(-1).values for u in utility]
        counts = counts_of(members, group)
        found = torch.stack(corrected(largest, group["utility_decay"], counts)).max(0).values
        return found.to(utility[0].dtype)  # one number, by a count in float64, would be that too

    def _move(self, members: list[Member], group: dict[str, Any], top: Tensor) -> None:
        lr, (beta1, beta2), counts = group["lr"], group["betas"], counts_of(members, group)
        params, direction = _with_gradients(members)
        top = top.clamp(min=torch.finfo(top.dtype).tiny)
        tops = [top.reshape(top.shape + (1,) * (p.dim() - top.dim())) for p in params]
        utility = [m.state["utility"] for m in members]
        free = corrected(utility, group["utility_decay"], counts)
        torch._foreach_div_(free, tops)
        torch._foreach_sigmoid_(free)
        torch._foreach_neg_(free)
        torch._foreach_add_(free, 1)  # 1 - Ū
        if group["adaptive"]:
            root = corrected([m.state["exp_avg_sq"] for m in members], beta2, counts)
            torch._foreach_sqrt_(root)
            torch._foreach_add_(root, group["eps"])
            direction = corrected([m.state["exp_avg"] for m in members], beta1, counts)
            torch._foreach_div_(direction, root)
        if group["noise"]:
            noise = self._noise.draw(members, group)
            scale(noise, group["noise"])
            direction = torch._foreach_add(direction, noise)
        moves = torch._foreach_mul(direction, 2 * lr if group["adaptive"] else lr)
        torch._foreach_mul_(moves, free)
        scale(params, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(params, moves)


def _with_gradients(members: list[Member]) -> tuple[list[Tensor], list[Tensor]]:
    return [m.param for m in members], [m.param.grad for m in members]  # pyright: ignore
