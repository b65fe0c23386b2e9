"""CoFiMA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longtail.methods import KIND_HELP, CoMA, Fisher, Kind, check_kind
from longtail.tasks import Examples


class CoFiMA(CoMA):
    """CoMA in which each weight counts by the Fisher information that it has in a task."""

    name = "cofima"
    stackable = True
    unsaved = ("fisher",)

    @dataclass(frozen=True)
    class Settings(CoMA.Settings):
        fisher: Kind = field(default="example", metadata={"help": KIND_HELP})

        def __post_init__(self) -> None:
            super().__post_init__()
            check_kind(self.fisher)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.past_F = [torch.zeros_like(p) for p in self.weights]
        self.fisher: Callable[[Examples, Tensor | None], list[Tensor]] = Fisher(
            self.model, self.objective, self.settings.fisher
        )

    def shares(self, train: Examples, moves: list[Tensor]) -> list[Tensor]:
        """F / (h F* + F), and 1 where no task had any use for the weight; F* takes F in."""
        found = []
        F_of_task = self.of_shared(self.fisher(train, None))
        for F, past_F, h, moved in zip(F_of_task, self.past_F, self.tasks, moves, strict=True):
            both = h * past_F + F
            found.append((F / both).nan_to_num_(nan=1.0))
            past_F.copy_(torch.where(moved, both / (h + 1), past_F))
        return found
