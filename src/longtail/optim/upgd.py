r"""UPGD: utility-based perturbed gradient descent (Elsayed and Mahmood, 2024; arXiv 2404.00781).

    u ← β_u u + (1 - β_u) (-g θ)                          what the loss would lose with the weight
    Ū = sigmoid(û / max û),   û = u / (1 - β_uᵗ)          the maximum is over the whole model
    θ ← (1 - γ λ) θ - 2 γ (m̂ / (√v̂ + ε) + ξ) (1 - Ū)      ξ ~ N(0, σ²)

A useful weight is moved less, by the gradient and by the noise ξ, which brings useless ones back to
life. This is the form with Adam's moments, which the authors use with Adam-sized rates; with
``adaptive=False`` it is the paper's Algorithm 1, θ ← (1 - γ λ) θ - γ (g + ξ) (1 - Ū), without m
and v. The factor 2 gives a weight of no utility, Ū = 1/2, the step that Adam would make.

The noise is a function of seed, parameter and step, so that a resumed run and a replica in a stack
see what the single run sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from longtail.support.random import Seed, normal


class UPGD(Optimizer):
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

    elementwise = True  # replicas do not meet: a stack says which dimension they are

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        utility_decay: float = 0.999,
        noise: float = 0.001,
        adaptive: bool = True,
        lead: tuple[int, ...] = (),
        seed: Seed = 0,
    ) -> None:
        for name, value in (("betas[0]", betas[0]), ("betas[1]", betas[1])):
            if not 0 <= value < 1:
                raise ValueError(f"Invalid {name}: {value}, not in [0, 1)")
        if not 0 <= utility_decay < 1:
            raise ValueError(f"Invalid utility_decay: {utility_decay}, not in [0, 1)")
        if not 0 <= noise < math.inf:
            raise ValueError(f"Invalid noise: {noise}, it must be zero or more")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "utility_decay": utility_decay,
            "noise": noise,
            "adaptive": adaptive,
            "lead": len(lead),
            "seed": seed,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Perform a single optimization step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tops = [self._measure(group) for group in self.param_groups]
        if not self.param_groups[0]["lead"]:  # all groups are parts of one model
            known = [top for top in tops if top is not None]
            together = (
                torch.stack([t.to(known[0].device) for t in known]).max(0).values if known else None
            )
            tops = [top if top is None else together.to(top.device) for top in tops]  # pyright: ignore
        for group, top in zip(self.param_groups, tops, strict=True):
            if top is not None:
                self._move(group, top)
        return loss

    def _measure(self, group: dict[str, Any]) -> Tensor | None:
        """Update u, m and v; the largest utility of each replica, [*lead]."""
        largest: list[Tensor] = []
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                kinds = ("utility", "exp_avg", "exp_avg_sq") if group["adaptive"] else ("utility",)
                state["step"] = torch.zeros(())
                state |= {kind: torch.zeros_like(p) for kind in kinds}
            state["step"] += 1
            state["utility"].lerp_(-p.grad * p, 1 - group["utility_decay"])
            if group["adaptive"]:
                beta1, beta2 = group["betas"]
                state["exp_avg"].lerp_(p.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            correction = 1 - group["utility_decay"] ** state["step"].item()
            flat = state["utility"].reshape(*p.shape[: group["lead"]], -1)
            largest.append(flat.max(-1).values / correction)
        return torch.stack(largest).max(0).values if largest else None

    def _move(self, group: dict[str, Any], top: Tensor) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        for i, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            state = self.state[p]
            t = int(state["step"])
            utility = state["utility"] / (1 - group["utility_decay"] ** t)
            scale = top.clamp(min=torch.finfo(top.dtype).tiny)
            scale = scale.reshape(top.shape + (1,) * (p.dim() - top.dim()))
            free = 1 - torch.sigmoid(utility / scale)
            direction, rate = p.grad, lr
            if group["adaptive"]:
                root = (state["exp_avg_sq"] / (1 - beta2**t)).sqrt_()
                direction = state["exp_avg"] / (1 - beta1**t) / root.add_(group["eps"])
                rate = 2 * lr
            if group["noise"]:
                direction = direction + group["noise"] * noise_like(p, group, "upgd", i, t)
            p.mul_(1 - lr * group["weight_decay"]).sub_(rate * direction * free)


def noise_like(p: Tensor, group: dict[str, Any], name: str, number: int, step: int) -> Tensor:
    """Standard normal numbers in the shape of a group's parameter, each replica's its own."""
    count = math.prod(p.shape[group["lead"] :])
    drawn = normal(count, group["seed"], name, number, step, device=p.device)
    return drawn.reshape(p.shape).to(p.dtype)
