r"""Sentence pairs, put together on the device from sentences and glosses that are stored once.

Pair number ``first_pair[t] + k`` is target t with candidate sense k of its task. Its tokens are

    column    0    1 .. s     s+1   ..        e+2   ..        n+3         n+3+c ..      n+3+c+h
    token   first  sentence   mark  target    mark  sentence  middle (c)  gloss (h)     last

for a sentence (or the window of it around the target) of n tokens with the target at [s, e). All
columns of a batch are one gather from a single list of tokens; its width is the smallest of a few
that every pair of it fits into, chosen from lengths on the host, so nothing waits for the device.
For a captured step the host also counts the tokens, which a model then takes without their padding;
its graph depends on that number alone, as all of these batches have the width of the longest pair.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail.tasks.examples import Batch, Device, Index, Packable, Ragged
from longtail_bench.encoder.fused import STEP, packed_rows
from longtail_bench.wsd.prepared import Prepared

WIDTHS = (32, 48, 64, 80, 96, 128, 192, 256, 384, 512)
# What the list of tokens begins with; the middle ones and the last follow from MIDDLE on.
PAD, MARK, FIRST, MIDDLE = range(4)
BLANK = -1  # the number of a pair of one token: the last row of the layout, after all pairs
WIDE = 128  # packed batches have this width or the largest: it costs little, and graphs are fewer
ROOMS = 18  # different rooms that packed batches of one size may have, about


class Shape(NamedTuple):
    """Of a batch: columns, and rows for all its tokens end to end, or None where padding stays."""

    width: int
    room: int | None


class Layout(NamedTuple):
    """The columns of `PairTable.layout`, one row a pair."""

    window: Any  # where the sentence, or the window of it, begins in the list of tokens
    start: Any  # the target in the window: [start, stop)
    stop: Any
    second: Any  # the pair's column at which the second part begins
    gloss: Any  # where that begins in the list of tokens
    length: Any  # of the pair


LENGTH = Layout._fields.index("length")


@dataclass(frozen=True)
class Targets:
    """What is known of every target on the host: its pairs, how long they are, which is right."""

    first_pair: np.ndarray  # [n + 1]
    task: np.ndarray  # [n]
    sense: np.ndarray  # [pairs] row of the glosses
    length: np.ndarray  # [pairs] tokens
    gold: np.ndarray  # [pairs] bool
    cut: int  # targets whose sentence was cut to a window

    @functools.cached_property
    def senses(self) -> np.ndarray:
        """How many pairs each target has; kept, as every task asks for a few of 226,036."""
        return np.diff(self.first_pair)

    def pairs_of(self, targets: np.ndarray) -> np.ndarray:
        """The pairs of targets [..., n] of one row length each: [..., Σ senses]."""
        sizes = self.senses[targets]
        if targets.ndim > 1:  # replicas differ in their targets, not in how many of each task
            return np.stack([self.pairs_of(row) for row in targets])
        ends = np.cumsum(sizes)
        starts = self.first_pair[targets]
        return np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)


class PairTable:
    """All pairs of a prepared corpus; ``table[numbers]`` is a batch.

    Inputs are `Ragged` token ids, targets 1.0 for a right sense and 0.0 for the others.

    Args:
        prepared: the token tables.
        longest: tokens of a pair at most; longer sentences are cut around their target.
    """

    host_index = full_batches = packs = True
    blank = BLANK

    def __init__(self, prepared: Prepared, longest: int = 96) -> None:
        template = prepared.template
        self.widths = (*(w for w in WIDTHS if w < longest), longest)
        specials = [template.pad, template.mark, template.first, *template.middle, template.last]
        layout, self.targets = _lay_out(prepared, longest, len(specials))
        tokens = np.concatenate((specials, prepared.sentences, prepared.glosses))
        self.tokens = torch.from_numpy(tokens.astype(np.int64))
        # one row more, which is no pair's: BLANK
        self.layout = torch.from_numpy(np.pad(layout, ((0, 1), (0, 0))))
        self.layout[BLANK, LENGTH] = 1
        self.labels = torch.from_numpy(np.pad(self.targets.gold, (0, 1)).astype(np.float32))
        self.between = len(template.middle)
        self.device = torch.device("cpu")
        self._columns = torch.arange(longest)

    def __len__(self) -> int:
        return len(self.targets.gold)

    def to(self, device: Device) -> PairTable:
        moved = copy.copy(self)
        moved.device = torch.device(device)
        for name in ("tokens", "layout", "labels", "_columns"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def narrow(self, start: int, stop: int) -> PairRows:
        return PairRows(self, np.arange(start, stop))

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)))
        shape, numbers = self.stage(index)
        sizes = self.sizes(numbers)
        if self.device.type != "cpu":
            numbers = numbers.pin_memory().to(self.device, non_blocking=True)
        ids, labels = self.assemble(shape, numbers)
        return Packable.of(ids, sizes=sizes), labels

    def width(self, longest: int) -> int:
        return next(w for w in self.widths if w >= longest)

    def sizes(self, numbers: Tensor) -> np.ndarray:
        """How long pairs are, by their numbers on the host."""
        found = numbers.numpy()
        return np.where(found == BLANK, 1, self.targets.length[found])

    def room(self, sizes: np.ndarray, packed: int) -> int:
        """Rows for all tokens of pairs of these sizes ``[..., B]``, in steps as `packed` says."""
        longest = sizes.shape[-1] * self.widths[-1]
        coarse = packed * -(-longest // (ROOMS * STEP))
        return packed_rows(int(sizes.sum(-1).max()), coarse)

    def stage(self, index: Tensor, packed: int = 0) -> tuple[Shape, Tensor]:
        """The host's half of reading pairs ``[B]`` or ``[S, B]``: a shape that fits them all.

        Args:
            packed: 0 with their padding, else without it; a larger one makes fewer shapes.
        """
        index = index.cpu()
        sizes = self.sizes(index)
        longest = int(sizes.max(initial=1))
        if not packed:
            return Shape(self.width(longest), None), index
        width = self.width(min(WIDE, self.widths[-1])) if longest <= WIDE else self.widths[-1]
        return Shape(width, self.room(sizes, packed)), index

    def assemble(self, shape: Shape, numbers: Tensor) -> Batch:
        """The device's half: tokens ``[..., B, width]`` and labels."""
        rows = self.layout[numbers].long()
        source = _sources(self._columns[: shape.width], rows, self.between)
        ids = Ragged(self.tokens[source], rows[..., LENGTH])
        return Packable.of(ids, shape.room), self.labels[numbers]


def _sources(column: Tensor, rows: Tensor, between: int) -> Tensor:
    """Where each column's token stands in the list of tokens: ``[..., width]``.

    ``between`` is how many tokens the middle has.
    """
    at = Layout(*rows[..., None].unbind(-2))
    marks = at.start + 1, at.stop + 2  # their columns
    # within the sentence each mark shifts what follows it by one place
    source = at.window + column - 1 - (column > marks[0]).long() - (column > marks[1]).long()
    source = torch.where((column == marks[0]) | (column == marks[1]), MARK, source)
    middle = at.second - between
    source = torch.where(column >= middle, MIDDLE + column - middle, source)
    source = torch.where(column >= at.second, at.gloss + column - at.second, source)
    source = torch.where(column == at.length - 1, MIDDLE + between, source)
    source = torch.where(column >= at.length, PAD, source)
    return torch.where(column == 0, FIRST, source)


def _lay_out(prepared: Prepared, longest: int, sentence_start: int) -> tuple[np.ndarray, Targets]:
    task, sentence, start, stop = (column.astype(np.int64) for column in prepared.targets.T)
    senses = prepared.senses_per_task.astype(np.int64)[task]
    first_pair = np.cumsum([0, *senses])
    gloss_length = np.diff(prepared.gloss_ends).astype(np.int64)
    between = len(prepared.template.middle)
    around = 4 + between  # first, two marks, the middle ones, last
    # no gloss takes more than half of a pair; the window is the same for all of a target's glosses
    gloss_length = np.minimum(gloss_length, longest // 2)
    longest_gloss = np.maximum.reduceat(gloss_length, prepared.tasks[:-1])[task]
    begin, end = _window(prepared, sentence, start, stop, longest - around - longest_gloss)
    stop = np.minimum(stop, end)

    def each(values: np.ndarray) -> np.ndarray:
        return np.repeat(values, senses)

    sense = each(prepared.tasks[task] - first_pair[:-1]) + np.arange(first_pair[-1])
    offset = sentence_start + prepared.sentence_ends[sentence].astype(np.int64)
    gloss_start = sentence_start + len(prepared.sentences)
    second = each(end - begin + 3 + between)
    columns = Layout(
        window=each(offset + begin),
        start=each(start - begin),
        stop=each(stop - begin),
        second=second,
        gloss=gloss_start + prepared.gloss_ends[sense],
        length=second + gloss_length[sense] + 1,
    )
    layout = np.stack(columns, axis=1).astype(np.int32)
    gold = np.zeros(first_pair[-1], bool)
    gold[first_pair[prepared.gold[:, 0]] + prepared.gold[:, 1]] = True
    length = layout[:, LENGTH].astype(np.int16)
    whole = np.diff(prepared.sentence_ends).astype(np.int64)[sentence]
    cut = int((end - begin < whole).sum())
    return layout, Targets(first_pair, task, sense.astype(np.int32), length, gold, cut)


def _window(
    prepared: Prepared, sentence: np.ndarray, start: np.ndarray, stop: np.ndarray, room: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [begin, end) of each sentence: at most `room`, with the target in the middle."""
    size = np.diff(prepared.sentence_ends).astype(np.int64)[sentence]
    begin = np.clip((start + stop - room) // 2, 0, np.maximum(size - room, 0))
    begin = np.minimum(begin, start)  # a target longer than the room loses its end
    return begin, np.minimum(begin + room, size)


class PairRows:
    """Some pairs of a table, ``[n]`` or, where replicas see others, ``[S, n]``; a view."""

    host_index = full_batches = True
    blank = BLANK

    def __init__(self, table: PairTable, numbers: np.ndarray) -> None:
        self.table, self.numbers = table, numbers

    def __len__(self) -> int:
        return self.numbers.shape[-1]

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, slice):
            return self.table[torch.from_numpy(self.numbers[..., index])]
        return self.table[self.locate(index)[1]]

    def locate(self, index: Tensor) -> tuple[PairTable, Tensor]:
        """The table, and the rows' numbers in it."""
        rows = index.cpu().numpy()
        if self.numbers.ndim == 1:
            found = self.numbers[rows]
        else:
            rows = np.broadcast_to(rows, (len(self.numbers), rows.shape[-1]))
            found = np.take_along_axis(self.numbers, rows, 1)
        return self.table, torch.from_numpy(np.where(rows == BLANK, BLANK, found))

    def narrow(self, start: int, stop: int) -> PairRows:
        return PairRows(self.table, self.numbers[..., start:stop])

    def to(self, device: Device) -> PairRows:
        return PairRows(self.table.to(device), self.numbers)
