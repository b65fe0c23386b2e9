r"""What methods that look back at earlier weights share: those weights, and a penalty around them.

The penalty is a sum of squares with any number of terms in two tensors each.

    R(θ)  = λ Σ_i F_i (θ - θ_i*)² = λ A (θ - m)² + a constant
    ∇R(θ) = 2λ A (θ - m)        with  A = Σ_i F_i,  m = Σ_i F_i θ_i* / A

The gradient is added after backward, in closed form, so the penalty costs a difference and a
multiply-add per parameter however many tasks there were. As A θ - Σ_i F_i θ_i* it would be the
difference of two rounded sums, which is not 0 for a weight that no task has moved, and an Adam that
starts anew makes whole steps of such noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longtail.methods.base import Method, check_weight, gradients
from longtail.replicas import parameter_groups, task_parameters


class Anchored(Method):
    """Base of methods that keep a copy of the weights, of those that all tasks share."""

    capturable = True
    unsaved = ("shared", "sizes")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # The head of one task is not tied to what it was for the task before.
        passing = {id(p) for p in task_parameters(self.model)}
        every = parameter_groups(self.model)
        self.shared = [id(p) not in passing for group in every for p in group]
        kept = [[p for p in group if id(p) not in passing] for group in every]
        self.sizes = [len(group) for group in kept]  # how many each policy of a stack has
        self.parameters = [p for group in kept for p in group]
        self.weights = [p.detach() for p in self.parameters]  # the same storage
        self.anchor = [torch.zeros_like(p) for p in self.weights]

    def of_shared(self, tensors: list[Tensor]) -> list[Tensor]:
        """Of tensors for every parameter of the model, those of the shared ones."""
        return [t for t, shared in zip(tensors, self.shared, strict=True) if shared]


class QuadraticPenalty(Anchored):
    """Base of methods that pull each weight to where it was, as hard as it mattered."""

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        strength: float = field(default=1.0, metadata={"help": "weight λ of the penalty"})

        def __post_init__(self) -> None:
            super().__post_init__()
            check_weight("strength", self.strength)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sum_F = [torch.zeros_like(p) for p in self.weights]

    def after_backward(self) -> None:
        """Add 2λ A (θ - m) to the gradient, where there is one: a head not in use stays put."""
        lists = gradients(self.parameters, self.weights, self.anchor, self.sum_F)
        grads, weights, anchor, sum_F = lists
        if grads:
            away = torch._foreach_sub(weights, anchor)
            torch._foreach_addcmul_(grads, sum_F, away, 2 * self.settings.strength)

    def include(self, F: list[Tensor]) -> None:
        """Add the term F (θ - θ*)² of a task that ends with the present weights θ*.

        A += F,  m += F / A (θ* - m)

        F has a tensor for every parameter in `self.parameters`.
        """
        away = torch._foreach_sub(self.weights, self.anchor)
        torch._foreach_add_(self.sum_F, F)
        shift = torch._foreach_div(F, self.sum_F)
        for share in shift:
            share.nan_to_num_(0.0)  # no task has moved this weight yet
        torch._foreach_mul_(shift, away)
        torch._foreach_add_(self.anchor, shift)
