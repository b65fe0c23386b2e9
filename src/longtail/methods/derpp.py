r"""DER++: dark experience replay (Buzzega et al., 2020).

    L(θ) = mean_{batch} ℓ(f_θ(x), y)
         + α mean_{(x,z) in draw 1} |f_θ(x) - z|² / dim(z)
         + β mean_{(x,y) in draw 2} ℓ(f_θ(x), y)

z are the model's outputs as they were when the example was stored. The two draws are independent,
each of as many different examples as the batch has, or of all. Models with BatchNorm see the three
parts in three passes, as in the authors' code, others in one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from longtail.methods.base import (
    Method,
    check_buffer,
    check_weight,
    detach,
    join,
    rows_of,
    size_of,
)
from longtail.methods.buffers import ReservoirBuffer, tensors_of, widen
from longtail.tasks import Batch, Outputs, Ragged


def rows_in(inputs: Any, lead: tuple[int, ...]) -> int:
    """How many examples (per replica) inputs have; policies of a stack share them."""
    return next(iter(tensors_of(inputs))).shape[len(lead[1:])]


class DERPlusPlus(Method):
    """Replay of labels and of what the model used to answer."""

    name = "derpp"
    stackable = True
    capturable, draws = True, 2
    unsaved = ("separate",)

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        buffer: int = field(default=500, metadata={"help": "examples the buffer holds"})
        alpha: float = field(default=1.0, metadata={"help": "weight of matching stored outputs"})
        beta: float = field(default=1.0, metadata={"help": "weight of the replayed labels' loss"})

        def __post_init__(self) -> None:
            super().__post_init__()
            check_buffer(self.buffer)
            check_weight("alpha", self.alpha)
            check_weight("beta", self.beta)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        leads = (1, 1, 2) if self.lead else None  # outputs differ between policies, inputs do not
        self.buffer = ReservoirBuffer(self.settings.buffer, self.seed, leads)
        self.separate = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()
        )

    def loss(self, batch: Batch) -> Tensor:
        if not len(self.buffer):
            return super().loss(batch)
        n = size_of(batch)
        first, second = self.buffer.draw(n), self.buffer.draw(n)
        sizes = [n, size_of(first[:2]), size_of(second[:2])]
        new, matched, replayed = self._forward([batch[0], first[0], second[0]], sizes)
        self.outputs = detach(new)
        return (
            self.mean_loss(new, batch[1])
            + self.settings.alpha * self.risk(self._distance(matched, first[2]), drawn=True)
            + self.settings.beta * self.mean_loss(replayed, second[1], drawn=True)
        )

    def observe(self, batch: Batch) -> None:
        if self.outputs is None:
            raise ValueError("DER++ stores what the model answered: call loss() before observe()")
        if isinstance(self.outputs, Tensor) and self.row_weights is None:  # else it was padded
            answered, rows = self.outputs.shape[len(self.lead)], rows_in(batch[0], self.lead)
            if answered != rows:
                raise ValueError(
                    f"DER++ stores what the model answered: observe() got {rows} examples and the "
                    f"last loss() was of {answered}"
                )
        remember = self.objective.remember
        self.buffer.add(*batch, remember(self.outputs) if remember else self.outputs)

    def _forward(self, parts: list[Any], sizes: list[int]) -> list[Outputs]:
        if self.separate:
            return [self.model(inputs) for inputs in parts]
        outputs = self.model(join(parts, len(self.lead[1:])))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            rows_of(outputs, start, n, len(self.lead))
            for start, n in zip(starts, sizes, strict=True)
        ]

    def _distance(self, outputs: Outputs, stored: Outputs) -> Tensor:
        """Mean squared difference per example, [*lead, B]; padding does not count."""
        if self.objective.distance is not None:
            return self.objective.distance(outputs, stored)
        dims = len(self.lead) + 1
        if isinstance(outputs, Ragged):
            width = max(outputs.padded.shape[dims], stored.padded.shape[dims])
            now, then = (widen(o.padded, dims, width) for o in (outputs, stored))
            squares = Ragged((now - then).square(), outputs.lengths)
            return (squares.padded * squares.mask()).sum(-1) / outputs.lengths
        squares = (outputs - stored).square()
        return squares.flatten(dims).mean(-1) if squares.dim() > dims else squares
