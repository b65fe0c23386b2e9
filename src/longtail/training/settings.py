"""How a run is trained: every setting with its default, its line of help and its range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from longtail.names import option
from longtail.optim.average import DECAY, KINDS


@dataclass(frozen=True)
class TrainSettings:
    """How a run is trained."""

    epochs: int = option(1, "passes over each task's training examples")
    batch_size: int = option(16, "examples per batch")
    optimizer: str = option(
        "adamw",
        "adamw or adam (Continual AdamW, Adam), a torch.optim class such as sgd, or module:Class",
    )
    lr: float = option(1e-3, "learning rate")
    betas: tuple[float, float] = option((0.9, 0.999), "decay of the first and second moments")
    eps: float = option(1e-8, "added to the denominator")
    weight_decay: float = option(0.0, "weight decay (decoupled for adamw)")
    schedule: Literal["constant", "linear"] = option(
        "constant", "learning rate over a task: constant, or linear decay to zero"
    )
    warmup: float = option(0.0, "fraction of the steps spent on linear warm-up")
    span: Literal["task", "sequence"] = option(
        "task", "what schedule and warm-up stretch over: each task, or the whole sequence"
    )
    clip: float | None = option(None, "largest gradient norm (per replica); none for no clipping")
    accumulate: int = option(1, "batches per optimizer step")
    autocast: Literal["none", "bf16", "fp16"] = option("none", "mixed precision")
    compile: bool = option(False, "torch.compile the model")
    cuda_graph: bool = option(
        False, "on a GPU, replay each step as a CUDA graph (batches are padded)"
    )
    fused: bool = option(True, "one fused kernel for the optimizer's step")
    validation: float = option(0.0, "share of each task's training examples kept for validation")
    tie: Literal["first", "last"] = option(
        "first", "epochs equal on validation: keep the first or the last"
    )
    average: Literal["none", "task", "ema"] = option(
        "none", "also score an average of the weights: over the ends of tasks, or all steps (ema)"
    )
    average_decay: float = option(DECAY, "share of the average that a step keeps (ema)")
    evaluate_every: int = option(0, "evaluate all seen tasks every so many tasks; 0: at the end")
    evaluate_at: tuple[int, ...] = option((), "evaluate all seen tasks after these many tasks")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("lr", "eps", "weight_decay", "evaluate_every"):
            if not 0 <= getattr(self, name) < math.inf:  # not: < 0, which NaN would pass
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("warmup", "validation", "average_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}, not in [0, 1)")
        choices = {
            "span": ("task", "sequence"),
            "tie": ("first", "last"),
            "average": ("none", *KINDS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                wanted = " or ".join(map(repr, known))
                raise ValueError(f"Invalid {name}: {getattr(self, name)!r}, not {wanted}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"Invalid clip: {self.clip}")
        if self.cuda_graph and (self.accumulate > 1 or self.autocast == "fp16"):
            raise ValueError("cuda_graph cannot be combined with accumulate or autocast='fp16'")
