r"""BAdam: Bayesian adaptive moment regularization (Foster and Brintrup, 2023; arXiv 2309.08546).

    θ = μ + σ ε,   ε ~ N(0, 1)                                    the weights a gradient is taken at
    m ← β₁ m + (1 - β₁) g        v ← β₂ v + (1 - β₂) g²
    μ ← μ - γ (σ / σ₀)² m̂ / (√v̂ + δ)
    σ ← σ √(1 + (n σ g ε / 2)²) - n σ² g ε / 2

Each weight has a mean and a width, the width shrinks where the loss is curved, and a narrow weight
moves little from then on. The update of σ is that of Bayesian gradient descent (Zeno et al., 2018),
whose g is the gradient of a sum over n examples. The paper's rate η is γ / σ₀²: written so, γ is
the rate of Adam at the start, whatever σ₀. The paper averages g and g ε over ten draws of ε; here
one draw is made a step, at the cost of a step.

`eval()` puts the means into the parameters, `train()` a draw: a run does so by itself, as with any
optimizer that has the two modes. The draws are a function of seed, parameter and step.
"""

from __future__ import annotations

import math
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


class BAdam(DrawingOptimizer):
    r"""Adam over the means of Gaussian weights, whose widths shrink where the loss is curved.

    Keeps mean and width of each weight beside Adam's two moments. Knows of no boundary.

    Args:
        params: parameters or parameter groups; their values are the means to start from.
        lr: learning rate :math:`\gamma` at the initial width.
        betas, eps: of Adam's moments.
        weight_decay: decoupled, of the means.
        width: :math:`\sigma_0`.
        examples: n, how many examples a gradient stands for in the update of the widths.
        capturable: keep the step counts on the device, for CUDA graphs.
        lead: the leading dimensions of replicas in a stack.
        seed: an int, or one per replica.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = BAdam([weight], lr=0.1, width=0.1, examples=100)
        >>> for _ in range(50):
        ...     loss = 50 * (weight[0] - 1) ** 2  # curved in the first weight alone
        ...     optimizer.zero_grad()
        ...     (loss + 0 * weight[1]).backward()
        ...     optimizer.step()
        >>> optimizer.eval()
        >>> widths = optimizer.state[weight]["std"]
        >>> bool(widths[0] < 0.1 * widths[1])
        True

    References:
        Towards Robust Continual Learning with Bayesian Adaptive Moment Regularization,
        https://arxiv.org/abs/2309.08546

        Task Agnostic Continual Learning Using Online Variational Bayes,
        https://arxiv.org/abs/1803.10123
    """

    stream = "badam"
    not_negative = ("examples",)
    elementwise = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        width: float = 0.01,
        examples: float = 1.0,
        capturable: bool = False,
        lead: tuple[int, ...] = (),
        seed: Seed = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "width": width,
            "examples": examples,
            "capturable": capturable,
            "lead": len(lead),
            "seed": seed,
            "drawn": False,  # whether the parameters are a draw, or the means
        }
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not 0 < group["width"] < math.inf:
            raise ValueError(f"Invalid width: {group['width']}, it must be above zero")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Perform a single optimization step, and make the next draw."""
        graph_capture_health_check(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            members = self._members(group)
            if members:
                self._update(members, group)
                self._draw(members, group)
            group["drawn"] = True
        return loss

    def restart(self, params: Iterable[Tensor]) -> None:
        """Make the state of some parameters that of new ones, in the tensors that are there."""
        width = {id(p): group["width"] for group in self.param_groups for p in group["params"]}
        for p in params:
            state = self.state.get(p)
            if state:
                torch._foreach_zero_([state[name] for name in ("step", "exp_avg", "exp_avg_sq")])
                state["mean"].copy_(p.detach())
                state["std"].fill_(width[id(p)])

    def _members(self, group: dict[str, Any]) -> list[Member]:
        """The parameters that have a gradient, with their state, made where it is missing."""
        found: list[Member] = []
        for i, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = new_count(p, group)
                state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                state |= {"mean": p.detach().clone(), "std": torch.full_like(p, group["width"])}
            found.append(Member(i, p, state))
        return found

    def _update(self, members: list[Member], group: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        grads: list[Tensor] = [m.param.grad for m in members]  # pyright: ignore
        mean, std, first, second = (
            [m.state[name] for m in members] for name in ("mean", "std", "exp_avg", "exp_avg_sq")
        )
        rate = list(torch._foreach_div(std, group["width"]))
        torch._foreach_mul_(rate, rate)
        scale(rate, lr)
        self._narrow(members, group)
        torch._foreach_add_([m.state["step"] for m in members], 1)
        counts = counts_of(members, group)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        scale(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        root = corrected(second, beta2, counts)
        torch._foreach_sqrt_(root)
        torch._foreach_add_(root, group["eps"])
        scale(mean, 1 - lr * group["weight_decay"])
        torch._foreach_mul_(rate, first)
        moves = corrected(rate, beta1, counts)
        torch._foreach_div_(moves, root)
        torch._foreach_sub_(mean, moves)

    def _narrow(self, members: list[Member], group: dict[str, Any]) -> None:
        """Update the widths by the gradient at the draw; where that was the mean, ε is 0."""
        if not group["capturable"]:
            members = [m for m in members if m.state["step"] > 0]
        if not group["drawn"] or not members:
            return
        std = [m.state["std"] for m in members]
        grads: list[Tensor] = [m.param.grad for m in members]  # pyright: ignore
        half = list(torch._foreach_mul(grads, self._epsilon(members, group)))
        torch._foreach_mul_(half, std)
        scale(half, group["examples"] / 2)  # n σ g ε / 2
        root = torch._foreach_mul(half, half)
        torch._foreach_add_(root, 1)
        torch._foreach_sqrt_(root)
        torch._foreach_add_(root, torch._foreach_abs(half))
        # √(1 + h²) - h is 1 / (√(1 + h²) + |h|) for h > 0: the difference would round to 0, and a
        # width of 0 stays 0.
        factor = [torch.where(h > 0, 1 / r, r) for h, r in zip(half, root, strict=True)]
        torch._foreach_mul_(std, factor)

    def _epsilon(self, members: list[Member], group: dict[str, Any]) -> list[Tensor]:
        """ε of the draw that the parameters are: none has been made of one that took no step."""
        noise = self._noise.draw(members, group)
        if group["capturable"]:
            drawn = torch.stack([m.state["step"] for m in members]).sign()
            torch._foreach_mul_(noise, [x.to(n.dtype) for x, n in zip(drawn, noise, strict=True)])
        return noise

    def _draw(self, members: list[Member], group: dict[str, Any]) -> None:
        mean, std = ([m.state[name] for m in members] for name in ("mean", "std"))
        drawn = torch._foreach_addcmul(mean, std, self._epsilon(members, group))
        torch._foreach_copy_([m.param for m in members], drawn)

    @torch.no_grad()
    def train(self) -> None:
        """Put a draw into the parameters; nothing where it is there."""
        for group in self.param_groups:
            members = [] if group["drawn"] else self._known(group)
            if members:  # somebody may have changed the means
                torch._foreach_copy_([m.state["mean"] for m in members], [m.param for m in members])
                self._draw(members, group)
            group["drawn"] = True

    @torch.no_grad()
    def eval(self) -> None:
        """Put the means into the parameters; nothing where they are there."""
        for group in self.param_groups:
            members = self._known(group) if group["drawn"] else []
            if members:
                torch._foreach_copy_([m.param for m in members], [m.state["mean"] for m in members])
            group["drawn"] = False

    def _known(self, group: dict[str, Any]) -> list[Member]:
        """The parameters that have a state."""
        found = [Member(i, p, self.state.get(p, {})) for i, p in enumerate(group["params"])]
        return [member for member in found if member.state]
