"""Columns of a table: tensors, memory-mapped arrays, and rows of different lengths end to end."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
Index = Tensor | slice
Device = torch.device | str


class Ragged(NamedTuple):
    """Rows of different lengths: ``padded [..., n, L, ...]`` and ``lengths [..., n]``."""

    padded: Tensor
    lengths: Tensor

    def mask(self) -> Tensor:
        """True where a value is real, ``[..., n, L]``."""
        longest = self.padded.shape[self.lengths.ndim]
        return torch.arange(longest, device=self.lengths.device) < self.lengths[..., None]


class Packable(Ragged):
    """Rows of whose lengths the host knows something, without a look at the device.

    A model that can may so do without their padding, in a captured step too. Whoever makes other
    rows of these makes a plain ``Ragged``, of which nothing is known.
    """

    room: int | None = None  # rows that hold all values of any one replica, end to end
    sizes: np.ndarray | None = None  # the lengths

    @classmethod
    def of(cls, rows: Ragged, room: int | None = None, sizes: np.ndarray | None = None) -> Self:
        found = cls(*rows)
        found.room, found.sizes = room, sizes
        return found


class RaggedColumn:
    """Rows of different lengths, end to end: row i is ``values[offsets[i]:offsets[i + 1]]``."""

    def __init__(self, values: Array, offsets: Array, pad: float = 0) -> None:
        self.values, self.offsets, self.pad = values, offsets, pad

    @classmethod
    def from_rows(cls, rows: Sequence[Any], pad: float = 0) -> "RaggedColumn":
        # an empty list would be a float tensor and turn all the others into floats
        parts = [torch.as_tensor(row) for row in rows if len(row)]
        lengths = torch.tensor([0, *(len(row) for row in rows)])
        return cls(torch.cat(parts) if parts else torch.empty(0), lengths.cumsum(0), pad)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def narrow(self, start: int, stop: int) -> "RaggedColumn":
        return RaggedColumn(self.values, self.offsets[start : stop + 1], self.pad)

    def to(self, device: Device) -> "RaggedColumn":
        if isinstance(self.values, np.ndarray):
            return self
        return RaggedColumn(self.values.to(device), as_tensor(self.offsets).to(device), self.pad)

    def take(self, index: Index, device: Device) -> Ragged:
        on_disk = isinstance(self.values, np.ndarray)
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)))
        index = index.to("cpu" if on_disk else device)
        starts = take(self.offsets, index, "cpu" if on_disk else device)
        lengths = take(self.offsets, index + 1, "cpu" if on_disk else device) - starts
        longest = int(lengths.max()) if lengths.numel() else 0
        columns = torch.arange(longest, device=lengths.device)
        inside = columns < lengths[..., None]
        where = (starts[..., None] + columns).masked_fill_(~inside, 0)
        padded = take(self.values, where.flatten(), "cpu" if on_disk else device)
        padded = padded.unflatten(0, where.shape)
        inside = inside.reshape(*inside.shape, *[1] * (padded.ndim - inside.ndim))
        padded.masked_fill_(~inside, self.pad)
        return Ragged(padded.to(device), lengths.to(device))


Column = Array | RaggedColumn


def as_tensor(array: Array) -> Tensor:
    """A tensor as it is; of an array a copy, which may be written to as a memory map may not."""
    if isinstance(array, Tensor):
        return array
    if array.dtype in (np.uint16, np.uint32, np.uint64):
        array = array.astype(np.int64)  # token ids: what an embedding takes
    return torch.from_numpy(np.array(array))


def take(column: Column, index: Index, device: Device) -> Any:
    """The rows ``index``, on ``device``."""
    if isinstance(column, Tensor):
        if isinstance(index, slice):
            return column[index]
        if index.ndim == 1:
            return column.index_select(0, index)
        return column.index_select(0, index.flatten()).unflatten(0, index.shape)
    if isinstance(column, RaggedColumn):
        return column.take(index, device)
    rows = column[index] if isinstance(index, slice) else column[index.cpu().numpy()]
    return as_tensor(rows).to(device)


def narrow(column: Column, start: int, stop: int) -> Column:
    """A view of the rows from ``start`` to ``stop``."""
    if isinstance(column, RaggedColumn):
        return column.narrow(start, stop)
    return column[start:stop]
