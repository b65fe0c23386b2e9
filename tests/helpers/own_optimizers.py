"""Optimizers and boundaries as a user might write them."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer


class Sign(Optimizer):
    """m <- share m + (1 - share) g;  w <- w - lr sign(m)."""

    elementwise = True

    def __init__(self, params, lr: float = 1e-3, *, share: float = 0.9, nothing=None) -> None:
        super().__init__(params, {"lr": lr, "share": share})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                state["average"].lerp_(p.grad, 1 - group["share"])
                p.add_(state["average"].sign(), alpha=-group["lr"])


class Ending(Sign):
    """Knows what to do at a boundary; its further arguments are those of its base."""

    def __init__(self, params, *, power: int, **kwargs) -> None:
        super().__init__(params, **kwargs)
        self.power = power
        self.ends = 0

    def end_task(self) -> None:
        self.ends += 1
        for state in self.state.values():
            state["average"].mul_(0.5**self.power)


class NeedsClosure(Optimizer):
    def step(self, closure): ...


def soften(optimizer: Optimizer, model: nn.Module, task: int, *, keep: float = 0.5) -> None:
    """Shrinks what the optimizer has kept; elementwise, so stacks may have it."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.mul_(keep)


soften.elementwise = True  # pyright: ignore[reportFunctionMemberAccess]


def halve_weights(optimizer: Optimizer, model: nn.Module, task: int) -> None:
    for p in model.parameters():
        p.mul_(0.5)
