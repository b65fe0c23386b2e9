"""Parts of the five tasks: a random subset of each, and many small tasks made of them.

The turns of a dialogue are scored together, so they stay together wherever something is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longtail.benchmarks.nlp5.examples import Example
from longtail.support.random import permutation
from longtail.tasks import order_sampled

EXPONENT = 1.0  # the k-th part of a task has a share proportional to k ** -EXPONENT


def subset(
    examples: Sequence[Example], count: int, seed: int, name: str, whole: bool
) -> list[Example]:
    """A random choice of `count` in their given order, all for 0; `whole` keeps dialogues whole.

    With whole dialogues it is the largest number that does not exceed `count`, at least one.
    """
    if count == 0 or count >= len(examples):
        return list(examples)
    if not whole or not examples[0].group:
        chosen = permutation(len(examples), seed, "subset", name)[:count]
        return [examples[i] for i in sorted(chosen.tolist())]
    units = units_of(range(len(examples)), [e.group for e in examples])
    kept: list[int] = []
    for i in permutation(len(units), seed, "subset", name).tolist():
        if not kept or len(kept) + len(units[i]) <= count:
            kept += units[i]
    return [examples[i] for i in sorted(kept)]


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
