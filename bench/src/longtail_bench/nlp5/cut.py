"""Parts of the five tasks: a random subset of each, a share held out, many small tasks of them.

The turns of a dialogue are scored together, so they stay together wherever something is cut: of
turns without those before them half are right with no goal named at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from longtail.support.random import Seed, permutation, uniform
from longtail.tasks import Device, Segments, floor, order_sampled
from longtail_bench.nlp5.examples import Example

EXPONENT = 1.0  # the k-th part of a task has a share proportional to k ** -EXPONENT


def subset(examples: Sequence[Example], count: int, name: str) -> list[Example]:
    """A random choice of `count` in their given order, all for 0.

    Of dialogues as many as do not exceed `count` turns, at least one.
    """
    if count == 0 or count >= len(examples):
        return list(examples)
    units = units_of(range(len(examples)), [e.group for e in examples])
    kept: list[int] = []
    for i in permutation(len(units), 0, "subset", name).tolist():
        if not kept or len(kept) + len(units[i]) <= count:
            kept += units[i]
    return [examples[i] for i in sorted(kept)]


class QuestionRows(Segments):
    """Rows of a task's questions, of which whole dialogues are held out.

    Args:
        rows: of each task, the turns of a dialogue one after another.
        groups: the dialogue of every row of the table, empty for a question of its own.
    """

    def __init__(self, rows: Segments, groups: Sequence[str]) -> None:
        super().__init__(rows.offsets - rows.offsets[0], rows.all_rows())
        self.groups = groups

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], groups: Sequence[str]) -> QuestionRows:
        """One list of rows per task."""
        return cls(Segments.from_lists(rows), groups)

    def select(self, order: np.ndarray) -> QuestionRows:
        return QuestionRows(super().select(order), self.groups)

    def to(self, device: Device) -> QuestionRows:
        return QuestionRows(super().to(device), self.groups)

    def split(self, seed: Seed, fraction: float) -> tuple[Segments, Segments]:
        """At most ``floor(fraction * n)`` of each segment's rows, and the others, in order.

        Dialogues come in random order, and those are taken that still fit.
        """
        if isinstance(seed, Tensor):
            raise ValueError("Invalid seed: replicas would hold out different numbers of questions")
        rows: list[int] = self.all_rows().tolist()
        groups = [self.groups[row] for row in rows]
        clock = uniform(len(rows), seed, "split").tolist()
        held, rest = [], []
        for start, stop in pairwise(self.offsets.tolist()):
            quota, chosen = int(floor(fraction * (stop - start))), set[int]()
            for unit in sorted(units_of(range(start, stop), groups), key=lambda u: clock[u[0]]):
                if len(chosen) + len(unit) <= quota:
                    chosen.update(unit)
            places = range(start, stop)
            held.append([rows[i] for i in places if i in chosen])
            rest.append([rows[i] for i in places if i not in chosen])
        return QuestionRows.of(held, self.groups), QuestionRows.of(rest, self.groups)


def units_of(rows: Sequence[int], groups: Sequence[str]) -> list[list[int]]:
    """Rows that may not be parted: a dialogue's turns, else each row alone."""
    units: list[list[int]] = []
    last = ""
    for row in rows:
        if groups[row] and groups[row] == last:
            units[-1].append(row)
        else:
            units.append([row])
        last = groups[row]
    return units


def long_tail(
    count: int,
    names: Sequence[str],
    train: Sequence[Sequence[int]],
    test: Sequence[Sequence[int]],
    groups: Sequence[str],
    seed: int,
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """`count` tasks cut out of the given ones, in long-tail order.

    Each task gives about as many parts; the sizes of its parts fall like 1/k, and its test rows are
    cut in the same proportions. The parts of all tasks are then drawn one by one, with probability
    proportional to their training rows.
    """
    if count < len(names):
        raise ValueError(f"Invalid long_tail: {count} tasks cannot be cut out of {len(names)}")
    parts: list[tuple[str, list[int], list[int]]] = []
    for number, name in enumerate(names):
        pieces = count // len(names) + (number < count % len(names))
        cuts = []
        for kind, rows in (("train", train[number]), ("test", test[number])):
            units = units_of(rows, groups)
            if len(units) < pieces:
                raise ValueError(
                    f"Invalid long_tail: {count}, {name} has {len(units)} {kind} questions or "
                    f"dialogues for {pieces} tasks"
                )
            order = permutation(len(units), seed, "cut", name, kind).tolist()
            cuts.append(_cut([units[i] for i in order], pieces))
        parts += [(f"{name} {k + 1}", a, b) for k, (a, b) in enumerate(zip(*cuts, strict=True))]
    order = order_sampled([len(a) for _, a, _ in parts], seed)
    chosen = [parts[i] for i in order]
    return [n for n, _, _ in chosen], [a for _, a, _ in chosen], [b for _, _, b in chosen]


def _cut(units: list[list[int]], pieces: int) -> list[list[int]]:
    """Consecutive units in `pieces` parts, one each and the others by shares."""
    share = np.arange(1, pieces + 1.0) ** -EXPONENT
    share /= share.sum()
    ends = np.arange(1, pieces + 1) + np.rint((len(units) - pieces) * np.cumsum(share)).astype(int)
    starts = [0, *ends[:-1]]
    return [[row for unit in units[a:b] for row in unit] for a, b in zip(starts, ends, strict=True)]
