"""Where the questions of a benchmark come from and which of them make a task: its settings."""

import math
from dataclasses import dataclass
from typing import Literal

from longtail.names import option

LARGEST = 2400
"""Training questions of a task of GQA at most: just above the paper's largest task."""


@dataclass(frozen=True)
class DataOptions:
    """Where the questions come from and which of them make a task."""

    source: Literal["generated", "gqa"] = option(
        "generated", "a generated world, or files in GQA's form"
    )
    miniature: bool = option(False, "the generated world's built-in miniature")
    folder: str = option("", "folder of GQA's files; empty: where `longtail data vqa` looks")
    tasks: int = option(1000, "number of tasks (objects), the most frequent first")
    largest_task: int | None = option(
        None, "leave out objects with more training questions; none: 2400 for gqa; 0: no limit"
    )
    smallest_task: int = option(1, "leave out objects with fewer training questions")
    exclude: str = option("", "objects that are no tasks, separated by commas")
    questions: Literal["balanced", "all"] = option("balanced", "which of GQA's question files")
    regions: int = option(45, "regions of an image at most; 0: all")
    strict: bool = option(False, "refuse data with anything wrong in place of counting it")
    world_seed: int = option(0, "seed of the generated world")
    types_seed: int | None = option(
        None, "seed of a generated world's types and their looks; none: as world_seed"
    )
    world_questions: int = option(114_000, "questions of the generated world")
    noise: float = option(1.0, "noise of generated features, against prototypes of size 1")
    occlusion: float = option(0.2, "share of generated objects that others partly hide")
    tag_noise: float = option(0.3, "share of generated tags that name a similar object")
    detector: int = option(100, "types with a generated tag of their own; others: the category")

    def __post_init__(self) -> None:
        for name in ("tasks", "smallest_task", "world_questions"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("regions", "noise", "detector", "largest_task"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("occlusion", "tag_noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}, should be in [0, 1]")

    @property
    def largest(self) -> int:
        if self.largest_task is not None:
            return self.largest_task
        return LARGEST if self.source == "gqa" and not self.miniature else 0
