r"""Synaptic Intelligence (Zenke, Poole and Ganguli, 2017; arXiv 1703.04200).

    ω ← ω - g (θ' - θ)                       every step: g the task's gradient, θ' after, θ before
    Ω ← max(0, Ω + ω / ((θ_τ* - θ_{τ-1}*)² + ξ))        at the end of task τ, where ω = 0 again
    L(θ) = L_task(θ) + c Ω (θ - θ_τ*)²       around the last task's weights

ω is what a weight has contributed to the fall of the loss along its way, to first order. The sum
may come out negative, and a penalty with a negative weight would push, hence the maximum. g is the
gradient of the task's loss alone, before the penalty joins it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longtail.methods.base import gradients
from longtail.methods.quadratic import QuadraticPenalty
from longtail.tasks import Batch, Examples


class SynapticIntelligence(QuadraticPenalty):
    """A penalty around the last task's weights, by what each weight did for the losses so far."""

    name = "si"
    stackable = True
    unsaved = ("task_gradient", "before")

    @dataclass(frozen=True)
    class Settings(QuadraticPenalty.Settings):
        damping: float = field(
            default=0.1, metadata={"help": "ξ, added to the squared way of a weight in a task"}
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.damping > 0:
                raise ValueError(f"Invalid damping: {self.damping}, it must be above zero")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        torch._foreach_copy_(self.anchor, self.weights)
        self.omega, self.task_gradient, self.before = (
            [torch.zeros_like(p) for p in self.weights] for _ in range(3)
        )

    def after_backward(self) -> None:
        torch._foreach_zero_(self.task_gradient)  # g = 0 where there is no gradient
        grads, own = gradients(self.parameters, self.task_gradient)
        if grads:
            torch._foreach_copy_(own, grads)
        torch._foreach_copy_(self.before, self.weights)
        super().after_backward()

    def observe(self, batch: Batch) -> None:
        """ω -= g (θ' - θ); the second batch of a step of several finds the weights unmoved."""
        inner = getattr(self.optimizer, "optimizer", self.optimizer)  # Accelerate wraps all of them
        if callable(getattr(inner, "eval", None)):
            raise ValueError(
                f"SynapticIntelligence follows the way of the weights, and what "
                f"{type(inner).__name__} trains is not what it has learned"
            )
        way = torch._foreach_sub(self.weights, self.before)
        torch._foreach_addcmul_(self.omega, self.task_gradient, way, -1.0)
        torch._foreach_copy_(self.before, self.weights)

    def beside_weights(self) -> list[list[Tensor]]:
        """ω: the way to the best epoch is the one that counts."""
        omega = iter(self.omega)
        return [list(itertools.islice(omega, size)) for size in self.sizes]

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        self.refuse_unfrozen()
        way = torch._foreach_sub(self.weights, self.anchor)
        torch._foreach_mul_(way, way)
        torch._foreach_add_(way, self.settings.damping)
        torch._foreach_addcdiv_(self.sum_F, self.omega, way)
        torch._foreach_clamp_min_(self.sum_F, 0.0)
        torch._foreach_copy_(self.anchor, self.weights)
        torch._foreach_zero_(self.omega)
