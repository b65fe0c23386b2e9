r"""EWC with the second moment of Adam as Fisher information (Li et al., 2025; arXiv 2507.18807).

    L(θ) = L_task(θ) + λ Σ_i v̂_i (θ - θ_i*)²        θ_i*: the weights at the end of task i
    v̂_i  = v / (1 - β₂ᵗ)                            Adam's average of squared gradients at its end

Adam has averaged the squared gradients of the task's batches on the way, so there is no pass over
the data. v̂ holds gradients of batches where EWC's F holds those of examples, and is about as many
times smaller as a batch has examples; and what the penalty adds to the gradient is in it too.
"""

from __future__ import annotations

import torch

from longtail.methods.moments import second_moment, states
from longtail.methods.quadratic import QuadraticPenalty
from longtail.tasks import Examples


class EWCAdam(QuadraticPenalty):
    """EWC whose Fisher information is Adam's own second moment: no pass over the data."""

    name = "ewc_adam"

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        found = {
            id(p): second_moment(state, group) for p, state, group in states(self, "exp_avg_sq")
        }
        F = [
            found[id(p)].to(p.dtype) if id(p) in found else torch.zeros_like(p)
            for p in self.parameters
        ]
        self.include(F)
