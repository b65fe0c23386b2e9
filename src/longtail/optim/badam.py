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
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from longtail.optim.upgd import noise_like
from longtail.support.random import Seed


class BAdam(Optimizer):
    r"""Adam over the means of Gaussian weights, whose widths shrink where the loss is curved.

    Keeps mean and width of each weight beside Adam's two moments. Knows of no boundary.

    Args:
        params: parameters or parameter groups; their values are the means to start from.
        lr: learning rate :math:`\gamma` at the initial width.
        betas, eps: of Adam's moments.
        weight_decay: decoupled, of the means.
        width: :math:`\sigma_0`.
        examples: n, how many examples a gradient stands for in the update of the widths.
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

    elementwise = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        width: float = 0.01,
        examples: float = 1.0,
        lead: tuple[int, ...] = (),
        seed: Seed = 0,
    ) -> None:
        for name, value in (("betas[0]", betas[0]), ("betas[1]", betas[1])):
            if not 0 <= value < 1:
                raise ValueError(f"Invalid {name}: {value}, not in [0, 1)")
        if not 0 < width < math.inf:
            raise ValueError(f"Invalid width: {width}, it must be above zero")
        if not 0 <= examples < math.inf:
            raise ValueError(f"Invalid examples: {examples}, it must be zero or more")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "width": width,
            "examples": examples,
            "lead": len(lead),
            "seed": seed,
            "drawn": False,  # whether the parameters are a draw, or the means
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore
        """Perform a single optimization step, and make the next draw."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if p.grad is not None:
                    self._update(p, i, group)
                    self._draw(p, i, group)
            group["drawn"] = True
        return loss

    def _update(self, p: Tensor, number: int, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            state["step"] = torch.zeros(())
            state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state |= {"mean": p.detach().clone(), "std": torch.full_like(p, group["width"])}
        g, mean, std = p.grad, state["mean"], state["std"]
        assert g is not None
        if group["drawn"] and state["step"] > 0:
            half = g * self._noise(p, number, group)
            half.mul_(std).mul_(group["examples"] / 2)  # n σ g ε / 2
            shrunk = torch.sqrt(1 + half.square()).sub_(half).mul_(std)
        else:  # at the mean ε is 0
            shrunk = std.clone()
        state["step"] += 1
        t = state["step"].item()
        state["exp_avg"].lerp_(g, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (state["exp_avg_sq"] / (1 - beta2**t)).sqrt_().add_(group["eps"])
        rate = group["lr"] * (std / group["width"]).square_()
        mean.mul_(1 - group["lr"] * group["weight_decay"])
        mean.sub_(rate * state["exp_avg"] / (1 - beta1**t) / root)
        std.copy_(shrunk)

    def _noise(self, p: Tensor, number: int, group: dict[str, Any]) -> Tensor:
        return noise_like(p, group, "badam", number, int(self.state[p]["step"]))

    def _draw(self, p: Tensor, number: int, group: dict[str, Any]) -> None:
        state = self.state[p]
        p.copy_(torch.addcmul(state["mean"], state["std"], self._noise(p, number, group)))

    @torch.no_grad()
    def train(self) -> None:
        """Put a draw into the parameters; nothing where it is there."""
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if not group["drawn"] and self.state[p]:
                    self.state[p]["mean"].copy_(p)  # somebody may have changed them
                    self._draw(p, i, group)
            group["drawn"] = True

    @torch.no_grad()
    def eval(self) -> None:
        """Put the means into the parameters; nothing where they are there."""
        for group in self.param_groups:
            for p in group["params"]:
                if group["drawn"] and self.state[p]:
                    p.copy_(self.state[p]["mean"])
            group["drawn"] = False
