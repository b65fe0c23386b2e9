r"""A-GEM: averaged gradient episodic memory (Chaudhry et al., 2019).

    g̃ = g - (gᵀ r / rᵀ r) r      if gᵀ r < 0, else g

g is the gradient of the new batch, r that of `draw` different examples (or all) from a buffer with
equal space per task: a step may not increase their average loss. The fewer they are, the noisier is
the direction that is protected. Each replica projects for itself, among the parameters that the new
batch moves: a head it does not use has no g, and r is 0 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longtail.methods.base import Method, check_buffer, gradients, size_of
from longtail.methods.buffers import TaskBuffer
from longtail.replicas import broadcast, dot, parameter_groups
from longtail.tasks import Batch, Examples


class AGEM(Method):
    """Gradients are projected so that they do not point against those of the buffer."""

    name = "agem"
    stackable = True
    capturable, draws = True, 1
    unsaved = ("reference",)

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        buffer: int = field(default=500, metadata={"help": "examples the buffer holds"})
        draw: int = field(
            default=0, metadata={"help": "examples drawn for r; 0 for as many as the batch has"}
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            check_buffer(self.buffer)
            if self.draw < 0:
                raise ValueError(f"Invalid draw: {self.draw}")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.buffer = TaskBuffer(self.settings.buffer, self.seed)
        self.groups = parameter_groups(self.model)
        self.parameters = [p for group in self.groups for p in group]
        self.reference: Tensor | None = None  # the buffer's loss, its graph still to be walked

    def loss(self, batch: Batch) -> Tensor:
        if len(self.buffer):
            n = size_of(batch)
            inputs, targets = self.buffer.draw(self.draw_size(n))
            loss = n * self.mean_loss(self.model(inputs), targets, drawn=True)
            self.reference = loss if self.reference is None else self.reference + loss
        return super().loss(batch)

    def draw_size(self, n: int) -> int:
        return self.settings.draw or n

    def after_backward(self) -> None:
        if self.reference is None:
            return
        loss, self.reference = self.reference, None
        live = [p for p in self.parameters if p.requires_grad]  # some may have been frozen since
        if not live:
            return
        found = iter(torch.autograd.grad(loss, live, materialize_grads=True))
        references = [
            next(found) if p.requires_grad else torch.zeros_like(p) for p in self.parameters
        ]
        count = len(self.groups[0])
        for i, group in enumerate(self.groups):
            grads, moved = gradients(group, references[i * count : (i + 1) * count])
            if grads:
                project(grads, moved, self.lead[1:])

    def observe(self, batch: Batch) -> None:
        self.reference = None  # left where a step was skipped, of which it is no part any more

    def end_task(self, train: Examples | None) -> None:
        self.refuse_unfrozen()
        self.buffer.add_task(train)


def project(grads: Sequence[Tensor], references: Sequence[Tensor], lead: tuple[int, ...]) -> None:
    """Take out of g what points against r, in place; nothing where r is zero or they agree."""
    inner, norm = dot(grads, references, lead), dot(references, references, lead)
    scale = -(inner / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=0.0)
    for g, r in zip(grads, references, strict=True):
        g.addcmul_(r, broadcast(scale, r))
