r"""L2 towards the weights that the last task left, the same for every weight: EWC with no Fisher.

    L(θ) = L_task(θ) + λ Σ (θ - θ*)²        θ*: the weights at the end of the last task

In the first task nothing pulls. It stores one copy of the weights and looks at no example twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from longtail.methods.base import Method, check_weight, gradients
from longtail.methods.quadratic import Anchored
from longtail.tasks import Examples


class L2(Anchored):
    """A penalty around the last task's weights that takes every weight for equally important."""

    name = "l2"
    stackable = True

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        strength: float = field(default=0.01, metadata={"help": "weight λ of the penalty"})

        def __post_init__(self) -> None:
            super().__post_init__()
            check_weight("strength", self.strength)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # 2λ once there is something to be pulled to; a tensor, which a captured step reads anew.
        self.pull = self.weights[0].new_zeros(())

    def after_backward(self) -> None:
        grads, weights, anchor = gradients(self.parameters, self.weights, self.anchor)
        if grads:
            away = torch._foreach_sub(weights, anchor)
            torch._foreach_mul_(away, self.pull)
            torch._foreach_add_(grads, away)

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        self.refuse_unfrozen()
        torch._foreach_copy_(self.anchor, self.weights)
        self.pull.fill_(2 * self.settings.strength)
