"""Tables of examples: random access by a tensor of row numbers, one ``index_select`` a column.

A batch is ``(inputs, targets)``. Inputs are a tensor, a :class:`Ragged`, or a tuple or dict of
these. A table keeps columns of the same structure: tensors, memory-mapped NumPy arrays for what is
too large for memory, and :class:`RaggedColumn` for rows of different lengths. A part of a table is
a view of it, so a sequence of thousands of tasks costs no more than its data.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from longtail.tasks.columns import (
    Array,
    Column,
    Device,
    Index,
    Packable,
    Ragged,
    RaggedColumn,
    narrow,
    take,
)

__all__ = [
    "Batch",
    "Device",
    "Examples",
    "Index",
    "Inputs",
    "Packable",
    "Ragged",
    "RaggedColumn",
    "Rows",
    "StackedExamples",
    "Table",
    "TensorExamples",
    "leaves",
    "locate",
    "map_leaves",
    "move",
    "ragged_examples",
    "read",
    "rows_device",
]

Inputs = Any  # Tensor | Ragged | tuple or dict of inputs: pyright has no recursive tuple of these
Batch = tuple[Inputs, Any]


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply ``function`` to the leaves of nested tuples and dicts; a Ragged is a leaf."""
    if isinstance(tree, Tensor | Ragged):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: map_leaves(function, tree[key], *(o[key] for o in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, *leaves) for leaves in zip(tree, *others, strict=True))
    return function(tree, *others)


def move(tree: Any, device: Device) -> Any:
    """The tree with every leaf on ``device``."""

    def to(leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            return Ragged(leaf.padded.to(device), leaf.lengths.to(device))
        return leaf.to(device)

    return map_leaves(to, tree)


class Examples(Protocol):
    """A random-access table of examples.

    A table may have more than what follows, for the sake of steps captured as CUDA graphs:

    - ``host_index = True``: it wants row numbers on the CPU, where it looks up lengths or files.
    - ``full_batches = True``: batches shorter than the others are filled up to full size, not to
      the next power of two, which makes fewer shapes.
    - ``blank``: the number of a row that has as little in it as a row can, with which batches are
      filled up; without it, by its row 0.
    - ``capturable = True``: with numbers on its device, reading launches the same kernels every
      time and waits for nothing.
    - ``stage(index) -> (shape, numbers)`` and ``assemble(shape, numbers) -> batch``: reading in two
      halves. The first is the host's: the shape of the batch, one of a few (hashable), and a tensor
      of int64 on the CPU; the second gets these numbers on the device, where it is captured.
    - ``packs = True``: ``stage(index, packed)`` with ``packed`` of 1 or more has ``assemble`` make
      batches whose inputs are :class:`Packable`, with a room; a larger ``packed`` makes fewer,
      coarser rooms. ``sizes(numbers)`` are the lengths of rows, known on the host, and
      ``room(sizes, packed)`` is the room that rows of these lengths get. A model that computes
      such rows without their padding says so by a method ``packs()``.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Batch:
        """Rows ``[B]`` or ``[S, B]`` as a batch ``[B, ...]`` or ``[S, B, ...]``."""
        ...

    def to(self, device: Device) -> "Examples": ...


class Table(Examples, Protocol):
    """Examples of which a range of rows can be had without copying."""

    def __getitem__(self, index: Index, /) -> Batch: ...

    def narrow(self, start: int, stop: int) -> "Table":
        """The rows from ``start`` to ``stop`` as a table of their own."""
        ...

    def to(self, device: Device) -> "Table": ...


def read(examples: Examples, start: int = 0, stop: int | None = None) -> Batch:
    """The rows from ``start`` to ``stop`` as one batch, a view of the data where possible."""
    stop = len(examples) if stop is None else min(stop, len(examples))
    if hasattr(examples, "narrow"):  # a Table; isinstance() of a protocol costs as much as a batch
        return cast(Table, examples)[start:stop]
    return examples[torch.arange(start, stop)]


def locate(examples: Examples, index: Tensor) -> tuple[Examples, Tensor]:
    """The table behind a view, which is the same for all tasks, and the rows' numbers in it."""
    find = getattr(examples, "locate", None)
    return (examples, index) if find is None else find(index)


class TensorExamples:
    """Columns ``[n, ...]`` in memory or memory-mapped, shared by all replicas.

    Memory-mapped columns stay where they are: ``to(device)`` sends each batch there. Without a
    ``device`` it is that of the columns in memory.
    """

    _whole: "tuple[TensorExamples, int] | None" = None  # of what table this is a part, from where

    def __init__(self, inputs: Any, targets: Any, device: Device | None = None) -> None:
        columns = leaves((inputs, targets))
        if device is None:
            device = next((c.device for c in columns if isinstance(c, Tensor)), "cpu")
        self.inputs, self.targets, self.device = inputs, targets, torch.device(device)
        for column in columns:
            if len(column) != len(targets):
                raise ValueError(f"{len(column)} rows in one column, {len(targets)} in the targets")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, Tensor) and index.device != self.device:
            index = index.to(self.device)
        if isinstance(self.inputs, Tensor) and isinstance(self.targets, Tensor):
            return take(self.inputs, index, self.device), take(self.targets, index, self.device)
        return map_leaves(lambda c: take(c, index, self.device), (self.inputs, self.targets))

    def narrow(self, start: int, stop: int) -> "TensorExamples":
        part = TensorExamples.__new__(TensorExamples)  # the lengths have been checked
        part.inputs = map_leaves(lambda column: narrow(column, start, stop), self.inputs)
        part.targets = narrow(self.targets, start, stop)
        part.device = self.device
        whole, first = self._whole or (self, 0)
        part._whole = whole, first + start
        return part

    @property
    def capturable(self) -> bool:
        return all(isinstance(column, Tensor) for column in leaves((self.inputs, self.targets)))

    def locate(self, index: Tensor) -> tuple[Examples, Tensor]:
        whole, first = self._whole or (self, 0)
        return whole, index + first if first else index

    def to(self, device: Device) -> "TensorExamples":
        def move_column(column: Column) -> Column:
            return column if isinstance(column, np.ndarray) else column.to(device)

        inputs, targets = map_leaves(move_column, (self.inputs, self.targets))
        return TensorExamples(inputs, targets, device)


def ragged_examples(values: Array, offsets: Array, targets: Any, pad: float = 0) -> TensorExamples:
    """Examples whose inputs are rows of different lengths (token ids), in memory or mapped."""
    return TensorExamples(RaggedColumn(values, offsets, pad), targets)


class StackedExamples:
    """Columns ``[S, n, ...]``, each replica its own data; index ``[S, B]``, or ``[B]`` for all."""

    capturable = True
    _whole: "StackedExamples | None" = None

    def __init__(self, inputs: Any, targets: Tensor) -> None:
        self.replicas, self._rows = targets.shape[:2]
        for column in leaves((inputs, targets)):
            if column.shape[:2] != targets.shape[:2]:
                raise ValueError(
                    f"columns {tuple(column.shape)} and {tuple(targets.shape)} "
                    "differ in replicas or rows"
                )
        self._stacked = inputs, targets
        self._flat = map_leaves(lambda column: column.flatten(0, 1), self._stacked)
        self._base = torch.arange(self.replicas, device=targets.device)[:, None] * self._rows
        self._start, self._stop = 0, self._rows

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            rows = slice(self._start + start, self._start + stop, step)
            return map_leaves(lambda column: column[:, rows], self._stacked)
        where = self._base + index.to(self._base.device)
        flat = where.flatten()
        return map_leaves(
            lambda column: column.index_select(0, flat).unflatten(0, where.shape), self._flat
        )

    def narrow(self, start: int, stop: int) -> "StackedExamples":
        part = StackedExamples.__new__(StackedExamples)
        part.__dict__.update(self.__dict__)
        part._start, part._stop = self._start + start, self._start + stop
        part._base = self._base + start
        part._whole = self._whole or self
        return part

    def locate(self, index: Tensor) -> tuple[Examples, Tensor]:
        if self._whole is None:
            return self, index
        return self._whole, index + (self._start - self._whole._start)

    def to(self, device: Device) -> "StackedExamples":
        inputs, targets = map_leaves(lambda column: column.to(device), self._stacked)
        return StackedExamples(inputs, targets).narrow(self._start, self._stop)


class Rows:
    """A view of some rows of a table; ``rows [n]``, or ``[S, n]`` where replicas see others."""

    def __init__(self, examples: Table, rows: Tensor) -> None:
        self.examples, self.rows = examples, rows

    def __len__(self) -> int:
        return self.rows.shape[-1]

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, slice):
            return self.examples[self.rows[..., index]]
        return self.examples[self._chosen(index)]

    def _chosen(self, index: Tensor) -> Tensor:
        if index.device != self.rows.device:
            index = index.to(self.rows.device)
        if self.rows.ndim == 1:
            return self.rows[index]
        return self.rows.gather(1, index.expand(len(self.rows), -1))

    def locate(self, index: Tensor) -> tuple[Examples, Tensor]:
        return locate(self.examples, self._chosen(index))

    @property
    def host_index(self) -> bool:
        return getattr(self.examples, "host_index", False)

    @property
    def full_batches(self) -> bool:
        return getattr(self.examples, "full_batches", False)

    def narrow(self, start: int, stop: int) -> "Rows":
        return Rows(self.examples, self.rows[..., start:stop])

    def to(self, device: Device) -> "Rows":
        examples = self.examples.to(device)
        return Rows(examples, self.rows.to(rows_device(examples, device)))


def rows_device(table: Examples, device: Device) -> Device:
    """Where numbers of a table's rows belong."""
    return "cpu" if getattr(table, "host_index", False) else device


@functools.lru_cache(maxsize=1)
def in_order(n: int, device: Device, replicas: int | None = None) -> Tensor:
    """Numbers of all rows, [n] or [S, n]; the same object again, so do not write to it."""
    order = torch.arange(n, device=device)
    return order if replicas is None else order.expand(replicas, -1)


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples and dicts, in order; a Ragged is a leaf."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found
