"""Examples of the synthetic study: inputs of many seeds, made from hidden units when read.

A task's inputs are a linear function of few hidden units, x = h A, with a last unit that is always
one. Tables keep h, eleven numbers where x has a hundred, and batches are `Factored`: less memory to
hold, to shuffle and to read, and x is only made for those who look at it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from longtail_bench.synthetic.factored import Factored

KEPT = 1 << 23  # numbers in a batch that is kept because all its task's steps read it
AT_ONCE = 1 << 26  # numbers in the inputs of one batch of an evaluation


class Generated:
    """One part of one task, for S seeds: x = h A, and K settings' targets.

    ``place``, where it is set, is what a captured step reads instead, see `Place`.

    Args:
        hidden: h, [S, n, r].
        A: [S, r, d].
        targets: [K, S, n].
        kinds: the setting each policy learns, [P]: a batch then has inputs [S, B, d] and targets
            [P, S, B]; without it there is one setting, targets [S, B].
    """

    place: Place | None = None

    def __init__(
        self, hidden: Tensor, A: Tensor, targets: Tensor, kinds: Tensor | None = None
    ) -> None:
        self.hidden, self.A, self.targets, self.kinds = hidden, A, targets, kinds
        self._whole: tuple[Tensor, Tensor] | None = None
        self._copy: tuple[Tensor, Tensor] | None = None
        self._everything: tuple[Tensor, int] | None = None  # an index known to ask for all in order

    def __len__(self) -> int:
        return self.hidden.shape[1]

    def __getitem__(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        if isinstance(index, slice):
            return self._made(self.hidden[:, index], self.targets[..., index])
        if self._is_everything(index):
            if self._whole is None:
                self._whole = self._made(self.hidden, self.targets)
            return self._whole
        S, n = self.hidden.shape[:2]
        rows = _numbers(index.to(self.hidden.device), S, n)
        hidden = self.hidden.flatten(0, 1).index_select(0, rows.flatten())
        targets = self.targets.flatten(1).index_select(1, rows.flatten())
        return self._made(hidden.unflatten(0, rows.shape), targets.unflatten(1, rows.shape))

    def _made(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # A few rows are cheaper to multiply as they are than all of A.
        few = hidden.shape[1] <= 2 * hidden.shape[2] or hidden.is_cuda
        x = torch.bmm(hidden, self.A) if few else Factored(hidden, self.A)
        return x, _of_policies(targets, self.kinds)

    def _is_everything(self, index: Tensor) -> bool:
        """Whether all rows are asked for in order, as every step of a task of one batch does."""
        known = self._everything
        if known is not None and index is known[0] and index._version == known[1]:
            return True
        S, n = self.hidden.shape[:2]
        if index.shape[-1] != n or index.device.type != "cpu" or S * n * self.A.shape[2] > KEPT:
            return False
        row = index if index.dim() == 1 else index[0]
        if index.dim() == 2 and index.stride(0) != 0:
            return False
        if not torch.equal(row, torch.arange(n)):
            return False
        self._everything = index, index._version
        return True

    def arranged(self, order: Tensor) -> Arranged:
        """The rows in the order of one epoch, [S, n]: one pass over the data, seed by seed.

        A batch drawn from the table would touch memory far apart for every seed; from this copy it
        is a slice. Epochs share its memory, as touching new pages costs more than the copy.
        """
        if self._copy is None:
            self._copy = torch.empty_like(self.hidden), torch.empty_like(self.targets)
        hidden, targets = self._copy
        rows = _numbers(order, *self.hidden.shape[:2]).flatten()
        torch.index_select(self.hidden.flatten(0, 1), 0, rows, out=hidden.flatten(0, 1))
        torch.index_select(self.targets.flatten(1), 1, rows, out=targets.flatten(1))
        return Arranged(hidden, self.A, targets, self.kinds)

    def locate(self, index: Tensor) -> tuple[Generated | Place, Tensor]:
        if self.place is None:
            return self, index
        self.place.load(self)
        return self.place, index

    def narrow(self, start: int, stop: int) -> Generated:
        hidden, targets = self.hidden[:, start:stop], self.targets[..., start:stop]
        return Generated(hidden, self.A, targets, self.kinds)

    def to(self, device: torch.device | str) -> Generated:
        kinds = None if self.kinds is None else self.kinds.to(device)
        hidden, targets = self.hidden.to(device), self.targets.to(device)
        return Generated(hidden, self.A.to(device), targets, kinds)


class Arranged(Generated):
    """Rows in the order in which an epoch visits them; an index is a range of consecutive ones."""

    def __getitem__(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        rows = index if isinstance(index, slice) else slice(int(index[0]), int(index[-1]) + 1)
        return self._made(self.hidden[:, rows], self.targets[..., rows])


class Place:
    """Where captured steps find their rows: the task being trained, at addresses that stay.

    A CUDA graph reads the memory it was captured with. Every task is copied there once, so that the
    graphs of the first serve all; per step only row numbers are copied.
    """

    capturable = True

    def __init__(self, rows: int) -> None:
        self.rows = rows  # of the largest task
        self.task: Generated | None = None

    def load(self, task: Generated) -> None:
        if self.task is task:
            return
        S, n, h = task.hidden.shape
        if self.task is None:
            self.base = torch.arange(S, device=task.hidden.device)[:, None] * self.rows
            self.hidden = task.hidden.new_zeros(S, self.rows, h)
            self.targets = task.targets.new_zeros(len(task.targets), S, self.rows)
            self.A = torch.empty_like(task.A)
        self.task = task
        self.hidden[:, :n], self.targets[..., :n] = task.hidden, task.targets
        self.A.copy_(task.A)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        assert self.task is not None
        rows = self.base + index
        hidden = self.hidden.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)
        targets = self.targets.flatten(1).index_select(1, rows.flatten()).unflatten(1, rows.shape)
        return torch.bmm(hidden, self.A), _of_policies(targets, self.task.kinds)


class Chain:
    """Parts of tasks end to end: what an evaluation reads from its first row to its last."""

    def __init__(self, parts: Sequence[Generated], kinds: Tensor | None) -> None:
        self.parts, self.kinds = parts, kinds
        self.offsets = [0]
        for part in parts:
            self.offsets.append(self.offsets[-1] + len(part))

    def __len__(self) -> int:
        return self.offsets[-1]

    def __getitem__(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        if not isinstance(index, slice):  # nobody's way to read tests, so not a fast one
            x, y = dense(self.parts)
            return Dense(x, y, self.kinds)[index]
        start, stop, step = index.indices(len(self))
        assert step == 1
        first, last = bisect_right(self.offsets, start) - 1, bisect_left(self.offsets, stop)
        pieces = self.parts[first : max(last, first + 1)]
        pieces = [*pieces[:-1], pieces[-1].narrow(0, stop - self.offsets[first + len(pieces) - 1])]
        pieces[0] = pieces[0].narrow(start - self.offsets[first], len(pieces[0]))
        if len(pieces) == 1:
            return pieces[0][:]
        x, y = dense(pieces)
        return x, _of_policies(y, self.kinds)

    def narrow(self, start: int, stop: int) -> Dense:
        x, y = dense(self.parts)
        return Dense(x[:, start:stop], y[..., start:stop], self.kinds)

    def to(self, device: torch.device | str) -> Chain:
        kinds = None if self.kinds is None else self.kinds.to(device)
        return Chain([part.to(device) for part in self.parts], kinds)


class Dense:
    """Inputs [S, n, d] as they are: for multi-task training, whose batches mix all tasks."""

    def __init__(self, inputs: Tensor, targets: Tensor, kinds: Tensor | None) -> None:
        self.inputs, self.targets, self.kinds = inputs, targets, kinds

    @property
    def rows_at_once(self) -> int:
        """In an evaluation: policies share the inputs, so there may be more than for a network."""
        return max(1, AT_ONCE // (self.inputs.shape[0] * self.inputs.shape[2]))

    def __len__(self) -> int:
        return self.inputs.shape[1]

    def __getitem__(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        if isinstance(index, slice):
            x, y = self.inputs[:, index], self.targets[..., index]
        else:
            rows = _numbers(index.to(self.inputs.device), *self.inputs.shape[:2])
            x = self.inputs.flatten(0, 1).index_select(0, rows.flatten())
            y = self.targets.flatten(1).index_select(1, rows.flatten())
            x, y = x.unflatten(0, rows.shape), y.unflatten(1, rows.shape)
        return x, _of_policies(y, self.kinds)

    def narrow(self, start: int, stop: int) -> Dense:
        return Dense(self.inputs[:, start:stop], self.targets[..., start:stop], self.kinds)

    def to(self, device: torch.device | str) -> Dense:
        kinds = None if self.kinds is None else self.kinds.to(device)
        return Dense(self.inputs.to(device), self.targets.to(device), kinds)


class Kept:
    """Test examples of the tasks so far, made once: every evaluation reads them again."""

    def __init__(self, first: Generated, rows: int) -> None:
        self.inputs = first.A.new_empty(len(first.A), rows, first.A.shape[2])
        self.targets = first.targets.new_empty(*first.targets.shape[:2], rows)
        self.tasks = self.rows = 0

    def upto(self, parts: Sequence[Generated]) -> Dense:
        """The first tasks' examples; further ones than ever asked for are made."""
        for part in parts[self.tasks :]:
            rows = slice(self.rows, self.rows + len(part))
            self.inputs[:, rows] = torch.bmm(part.hidden, part.A)
            self.targets[..., rows] = part.targets
            self.tasks, self.rows = self.tasks + 1, rows.stop
        n = sum(map(len, parts))
        return Dense(self.inputs[:, :n], self.targets[..., :n], parts[0].kinds)


def fits(part: Generated, rows: int) -> bool:
    """Whether so many rows of inputs leave a GPU most of its memory."""
    if not part.A.is_cuda:  # whose cache prefers inputs that are made when they are read
        return False
    size = len(part.A) * rows * part.A.shape[2] * part.A.element_size()
    return size <= torch.cuda.mem_get_info(part.A.device)[0] // 4


def dense(
    parts: Iterable[Generated], n: int | None = None, single: bool = False
) -> tuple[Tensor, Tensor]:
    """Inputs [S, n, d] and targets [K, S, n] of parts end to end; [n, d] and [n] for one seed.

    Parts may be made one by one, where ``n`` says how many rows they have in all.
    """
    if n is None:
        parts = list(parts)
        n = sum(map(len, parts))
    x = y = None
    start = 0
    for part in parts:
        if x is None or y is None:
            x = part.hidden.new_empty(len(part.A), n, part.A.shape[2])
            y = part.targets.new_empty(*part.targets.shape[:2], n)
        rows = slice(start, start + len(part))
        y[..., rows] = part.targets
        if len(part) * x[:, 0].numel() <= 1 << 16 or x.is_cuda:
            x[:, rows] = torch.bmm(part.hidden, part.A)
        else:  # straight to where they belong, which is contiguous seed by seed
            for s in range(len(x)):
                torch.mm(part.hidden[s], part.A[s], out=x[s, rows])
        start = rows.stop
    x, y = cast(Tensor, x), cast(Tensor, y)
    return (x[0], y[0, 0]) if single else (x, y)


def _numbers(index: Tensor, S: int, n: int) -> Tensor:
    """Rows [B] or [S, B] of each seed's table as rows of all tables end to end, [S, B]."""
    return torch.arange(S, device=index.device)[:, None] * n + index


def _of_policies(targets: Tensor, kinds: Tensor | None) -> Tensor:
    return targets[0] if kinds is None else targets.index_select(0, kinds)
