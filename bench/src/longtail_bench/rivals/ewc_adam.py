r"""EWC with the second moment of Adam as Fisher information (Li et al., 2025; arXiv 2507.18807).

    L(θ) = L_task(θ) + λ Σ_i v̂_i (θ - θ_i*)²        θ_i*: the weights at the end of task i
    v̂_i  = v / (1 - β₂ᵗ)                            Adam's average of squared gradients at its end

Adam has averaged the squared gradients of the task's batches on the way, so there is no pass over
the data; a parameter that the task took no step on has F = 0, whatever v the optimizer still has of
it. v̂ holds gradients of batches where EWC's F holds those of examples, and is about as many
times smaller as a batch has examples; and what the penalty adds to the gradient is in it too.
"""

from __future__ import annotations

from typing import Any

import torch

from longtail.methods import QuadraticPenalty, gradients
from longtail.tasks import Examples
from longtail_bench.rivals.moments import second_moment, states


class EWCAdam(QuadraticPenalty):
    """EWC whose Fisher information is Adam's own second moment: no pass over the data."""

    name = "ewc_adam"
    stackable = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.steps = [p.new_zeros(()) for p in self.weights]  # of this task, by parameter

    def after_backward(self) -> None:
        _, steps = gradients(self.parameters, self.steps)
        if steps:
            torch._foreach_add_(steps, 1)
        super().after_backward()

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        self.refuse_unfrozen()
        found = {
            id(p): second_moment(state, group) for p, state, group in states(self, "exp_avg_sq")
        }
        F = [
            found[id(p)].to(p.dtype) * (steps > 0) if id(p) in found else torch.zeros_like(p)
            for p, steps in zip(self.parameters, self.steps, strict=True)
        ]
        self.include(F)
        torch._foreach_zero_(self.steps)
