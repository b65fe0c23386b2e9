r"""CoMA and CoFiMA: average the weights of before and after a task (Marouf et al., 2024).

    θ ← (h θ* + θ) / (h + 1)                   CoMA, at the end of a task
    θ ← (h F* θ* + F θ) / (h F* + F)           CoFiMA, weight by weight
    F* ← (h F* + F) / (h + 1),    θ* ← θ,    h ← min(h + 1, H)

θ* are the weights that the task before left, F is the Fisher information of this task at its end
(`ewc.py`) and h how many tasks the past counts for, 0 in the first. To count all of them is the
mean over tasks, in which the n-th changes little more than 1/n of anything: H = `history` caps it,
and H = 1 gives the past and the task the same weight, as the paper (arXiv 2312.08977) does.

Each parameter has its own h and F*, which change when a task has moved it: a head that is learned
for the first time is not averaged with what it was built as, and one that rests keeps its past.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longtail.methods.base import Method
from longtail.methods.quadratic import Anchored
from longtail.tasks import Examples


class CoMA(Anchored):
    """At a task's end the weights become their average with those of before it."""

    name = "coma"
    stackable = True

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        history: float = field(
            default=1.0, metadata={"help": "H, how many tasks the old weights count for at most"}
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.history > 0:
                raise ValueError(f"Invalid history: {self.history}, it must be above zero")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        torch._foreach_copy_(self.anchor, self.weights)
        # h of each parameter and, in a stack, of each of its replicas
        lead = self.lead[1:]
        self.tasks = [p.new_zeros(lead + (1,) * (p.dim() - len(lead))) for p in self.weights]

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        moves = [
            (theta != past).reshape(*self.lead[1:], -1).any(-1).reshape(h.shape)
            for theta, past, h in zip(self.weights, self.anchor, self.tasks, strict=True)
        ]
        shares = self.shares(train, moves)
        for theta, past, h, share, moved in zip(
            self.weights, self.anchor, self.tasks, shares, moves, strict=True
        ):
            theta.copy_(torch.lerp(past, theta, share.to(theta.dtype).expand_as(theta)))
            past.copy_(theta)
            h.add_(moved).clamp_(max=self.settings.history)

    def shares(self, train: Examples, moves: list[Tensor]) -> list[Tensor]:
        """How much of the average is the task's own, for every parameter.

        Args:
            moves: whether the task has moved it, in the shape of h.
        """
        return [1 / (h + 1) for h in self.tasks]
