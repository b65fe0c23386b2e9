"""Put tasks in order, split their rows, take their union, look at their sizes."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.support.random import Seed, permutation, uniform
from longtail.tasks.examples import (
    Device,
    Examples,
)
from longtail.tasks.sequences import TableSequence, TaskSequence, floor


def split(rows: Tensor, seed: int, fraction: float) -> tuple[Tensor, Tensor]:
    """A random ``floor(fraction * n)`` of the rows, and the others; both in their given order."""
    order = permutation(len(rows), seed, "split")
    chosen = torch.zeros(len(rows), dtype=torch.bool)
    chosen[order[: int(floor(fraction * len(rows)))]] = True
    return rows[chosen], rows[~chosen]


def validation_share(sequence: TableSequence, seed: Seed, share: float = 0.05) -> TableSequence:
    """Take ``floor(share * n)`` training examples of each task for validation.

    A task too small for one example has none (below 20 examples at the paper's 5%). With a tensor
    of seeds each replica holds out its own examples. A share of 0 gives the sequence back. Segments
    whose rows belong together may hold out fewer (`nlp5` parts no dialogue).
    """
    if not 0 <= share < 1:
        raise ValueError(f"Invalid validation share: {share}, should be in [0, 1)")
    if share == 0:
        return sequence
    train = sequence.segments("train")
    if sequence.segments("validation") is not None or train is None:
        raise ValueError("Invalid validation share: the sequence has validation examples already")
    validation, rest = train.split(seed, share)
    return sequence.with_segments(train=rest, validation=validation)


def order_by_size(sizes: Any, descending: bool = True) -> np.ndarray:
    """Task indices from the largest to the smallest; equal sizes stay in their order."""
    sizes = np.asarray(sizes)
    return np.argsort(-sizes if descending else sizes, kind="stable")


def order_by_frequency(labels: Iterable[Any]) -> list[Any]:
    """The distinct labels from the most to the least frequent; ties by first appearance.

    For data that come as one stream of labelled items (a word's occurrences in a corpus) and are
    yet to be cut into tasks.
    """
    counts: dict[Any, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: -counts[label])


def order_sampled(sizes: Any, seed: int) -> np.ndarray:
    """Task indices drawn one by one without replacement, with probability proportional to size.

    An exponential clock of rate ``size`` per task gives that order (Efraimidis and Spirakis,
    2006). Tasks of size 0 come last, in random order.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    if (sizes < 0).any():
        raise ValueError(f"Invalid sizes: {sizes.min()} is negative")
    clock = -np.log1p(-uniform(len(sizes), seed, "order").numpy())
    with np.errstate(divide="ignore"):
        return np.lexsort((clock, clock / sizes))


class _Multitask(TaskSequence):
    """See :func:`multitask`."""

    def __init__(self, sequence: TaskSequence) -> None:
        super().__init__(
            sequence.names,
            sequence.train_sizes,
            sequence.test_sizes,
            sequence.objective,
            sequence.replicas,
        )
        self.sequence = sequence

    @property
    def trained_rows(self) -> np.ndarray:
        rows = np.zeros_like(self.train_sizes)
        rows[:1] = self.sequence.trained_rows.sum()
        return rows

    def train(self, i: int) -> Examples | None:
        return self.union() if i == 0 else None

    def validation(self, i: int) -> Examples | None:
        """All validation examples, as task 0 is all tasks."""
        if i > 0 or not isinstance(self.sequence, TableSequence):
            return None
        return self.sequence.validation_union()

    def test(self, i: int) -> Examples:
        return self.sequence.test(i)

    def tests(self, upto: int) -> tuple[Examples, Tensor]:
        return self.sequence.tests(upto)

    def union(self) -> Examples:
        return self.sequence.union()

    def to(self, device: Device) -> "_Multitask":
        return _Multitask(self.sequence.to(device))


def multitask(sequence: TaskSequence) -> TaskSequence:
    """The union of all tasks learned as one: the upper bound that continual learning aims at.

    Task 0 trains on everything and the others have nothing left to train on, so the test sets,
    and with them the weights in RP, stay those of ``sequence``; LP then equals RP. ``train_sizes``
    still says what each task contributed.
    """
    return _Multitask(sequence)


def size_statistics(sequence: TaskSequence) -> dict[str, float]:
    """How long the tail is: counts, quantiles, and how much of the data the largest tasks hold."""
    sizes = np.sort(np.asarray(sequence.train_sizes, dtype=np.int64))[::-1]
    trained = sizes[sizes > 0]
    total = int(sizes.sum())
    if not len(trained):
        raise ValueError("Invalid sequence: no task has training examples")
    tenth = max(1, round(0.1 * len(trained)))
    n = len(trained)
    gini = float((2 * np.arange(n, 0, -1) - n - 1) @ trained / (n * total))
    return {
        "tasks": len(sizes),
        "zero_shot": len(sizes) - n,
        "train_examples": total,
        "test_examples": int(sequence.test_sizes.sum()),
        "largest": int(trained[0]),
        "mean": total / len(sizes),
        "median": float(np.median(trained)),
        "smallest": int(trained[-1]),
        "share_of_largest_tenth": float(trained[:tenth].sum() / total),
        "gini": gini,
    }


def tail_plot(sizes: Any, width: int = 60, height: int = 12) -> str:
    """Task sizes from the largest to the smallest as text, sizes on a logarithmic scale."""
    ordered = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
    ordered = ordered[ordered > 0]
    if not len(ordered):
        return "no task has training examples"
    width = min(width, len(ordered))
    level = np.log10(ordered[np.linspace(0, len(ordered), width, endpoint=False).astype(int)])
    top = max(float(level[0]), 0.1)
    bars = level / top * height
    label = len(f"{ordered[0]:,}")
    lines = []
    for row in range(height, 0, -1):
        size = f"{round(10 ** (top * row / height)):,}"
        eighths = np.clip(np.ceil((bars - row + 1) * 8), 1 if row == 1 else 0, 8).astype(int)
        lines.append(f"{size:>{label}} │" + "".join(" ▁▂▃▄▅▆▇█"[e] for e in eighths).rstrip())
    count = f"{len(ordered):,} task{'s' * (len(ordered) > 1)}"
    lines.append(f"{'':>{label}} └" + "─" * width)
    lines.append(f"{'':>{label}}  " + f"1{count:>{max(width - 1, len(count) + 1)}}")
    return "\n".join(lines)
