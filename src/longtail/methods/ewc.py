r"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017), over all past tasks.

    L(θ) = L_task(θ) + λ Σ_i F_i (θ - θ_i*)²        θ_i*: the weights at the end of task i
    F_i  = mean over examples of (∇ ℓ(f_θ(x), y))²  at θ_i*, one pass over the task's examples

F is the diagonal of the *empirical* Fisher information: gradients at the labels that were given.
`fisher="example"` squares the gradient of each example (exact); `fisher="batch"` squares the mean
gradient of each batch of 16 (one backward pass a batch, about 16 times smaller values). A third
reading does not divide by the number of batches, so that a task of many examples pulls harder:

    F_i  = Σ_b (mean over batch b of ∇ ℓ(f_θ(x), y))²          `fisher="batch_sum"`

Memory and time do not grow with the number of tasks, see `quadratic.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from longtail.methods.fisher import KIND_HELP, Fisher, Kind, check_kind
from longtail.methods.quadratic import QuadraticPenalty
from longtail.support.random import permutation
from longtail.tasks import Examples


class EWC(QuadraticPenalty):
    """A penalty around the weights of every past task, weighted by its Fisher information."""

    name = "ewc"
    stackable = True
    unsaved = ("fisher",)

    @dataclass(frozen=True)
    class Settings(QuadraticPenalty.Settings):
        fisher: Kind = field(default="example", metadata={"help": KIND_HELP})
        fisher_cap: int = field(
            default=0, metadata={"help": "examples per task the Fisher is taken from; 0 for all"}
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            check_kind(self.fisher)
            if self.fisher_cap < 0:
                raise ValueError(f"Invalid fisher_cap: {self.fisher_cap}")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.settings.fisher_cap:
            self.check_seed()
        self.fisher: Callable[[Examples, Tensor | None], list[Tensor]] = Fisher(
            self.model, self.objective, self.settings.fisher
        )
        self.tasks = 0

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        self.refuse_unfrozen()
        cap, chosen = self.settings.fisher_cap, None
        if 0 < cap < len(train):
            chosen = permutation(len(train), self.seed, "fisher", self.tasks)[..., :cap]
        self.include(self.of_shared(self.fisher(train, chosen)))
        self.tasks += 1
