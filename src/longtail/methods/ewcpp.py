r"""EWC++ (Chaudhry et al., 2018): a running Fisher, one anchor.

    F ← a g² + (1 - a) F                            g: gradient of the task's loss, every batch
    L(θ) = L_task(θ) + λ F_{τ-1} (θ - θ_{τ-1}*)²     F and θ as they were when the last task ended

No pass over the data at the end of a task; in exchange, only the last task's weights pull.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from longtail.methods.base import gradients
from longtail.methods.quadratic import QuadraticPenalty
from longtail.tasks import Examples


class EWCPlusPlus(QuadraticPenalty):
    """A penalty around the last task's weights, with Fisher information averaged on the way."""

    name = "ewcpp"
    stackable = True

    @dataclass(frozen=True)
    class Settings(QuadraticPenalty.Settings):
        decay: float = field(
            default=0.9, metadata={"help": "a in F = a F' + (1 - a) F, weight of the new batch"}
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.decay <= 1:
                raise ValueError(f"Invalid decay: {self.decay}, not in [0, 1]")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.running_F = [torch.zeros_like(p) for p in self.weights]

    def after_backward(self) -> None:
        a, (grads, running_F) = self.settings.decay, gradients(self.parameters, self.running_F)
        torch._foreach_mul_(self.running_F, 1 - a)  # g = 0 where there is no gradient
        if grads:
            torch._foreach_addcmul_(running_F, grads, grads, a)  # before the penalty joins g
        super().after_backward()

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        self.refuse_unfrozen()
        torch._foreach_copy_(self.sum_F, self.running_F)
        torch._foreach_copy_(self.anchor, self.weights)
