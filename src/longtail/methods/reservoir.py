r"""Reservoir: replay from a uniform sample of everything seen (Vitter, 1985; Riemer et al., 2019).

    L(θ) = mean_{(x,y) in batch} ℓ(f_θ(x), y) + mean_{(x,y) in draw} ℓ(f_θ(x), y)

For each new batch as many different examples are drawn from the buffer, or all while it holds no
more; the model sees the mixture in one pass, and both means weigh 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from longtail.methods.base import Method, check_buffer, detach, join, rows_of, size_of
from longtail.methods.buffers import ReservoirBuffer
from longtail.tasks import Batch


class Reservoir(Method):
    """Experience replay from a reservoir of fixed size."""

    name = "reservoir"
    stackable = True
    capturable, draws = True, 1

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        buffer: int = field(default=500, metadata={"help": "examples the buffer holds"})

        def __post_init__(self) -> None:
            super().__post_init__()
            check_buffer(self.buffer)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.buffer = ReservoirBuffer(self.settings.buffer, self.seed)

    def loss(self, batch: Batch) -> Tensor:
        if not len(self.buffer):
            return super().loss(batch)
        n = size_of(batch)
        drawn = self.buffer.draw(n)
        k = size_of(drawn)
        inputs, targets = join([batch, drawn], len(self.lead[1:]))
        outputs = self.model(inputs)
        new = rows_of(outputs, 0, n, len(self.lead))
        self.outputs = detach(new)
        if k == n and self.row_weights is None:
            return 2 * self.mean_loss(outputs, targets)  # two means over n each
        replayed = rows_of(outputs, n, k, len(self.lead))
        return self.mean_loss(new, batch[1]) + self.mean_loss(replayed, drawn[1], drawn=True)

    def observe(self, batch: Batch) -> None:
        self.buffer.add(*batch)
