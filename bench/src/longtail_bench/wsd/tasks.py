"""The tasks of WSD-CL in the order they are learned: segments of targets, trained as pairs.

Sizes count targets (RP weighs a task by its test targets, and validation holds out targets); the
rows that the loop trains on are the targets' pairs. All targets of a task have equally many.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from longtail.support.random import uniform
from longtail.tasks import Objective, Score, Segments, TableSequence, order_sampled
from longtail.tasks.examples import Device
from longtail_bench.wsd.corpus import TRAIN_SHARE
from longtail_bench.wsd.pairs import PairRows, PairTable
from longtail_bench.wsd.prepared import Prepared


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    targets = targets.expand(outputs.shape)
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def _pair_is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).float()


# The score of a target needs all its pairs: `evaluation.Evaluation` has it under the same name.
PAIRS = Objective(_loss, (Score("accuracy", _pair_is_right, "percent", higher_is_better=True),))


class WordTasks(TableSequence):
    """A `TableSequence` whose segments list targets; ``train(i)`` and so on give their pairs.

    Attributes:
        prepared: what the table was made of.
        lemma_of_task: the number, in ``prepared.lemmas``, of each task.
    """

    def __init__(
        self,
        prepared: Prepared,
        lemma_of_task: np.ndarray,
        table: PairTable,
        train: Segments,
        test: Segments,
        validation: Segments | None = None,
    ) -> None:
        names = [prepared.lemmas[i].replace("_", " ") for i in lemma_of_task]
        # the table is one of pairs, and no row of it is read through the segments
        super().__init__(table, train, test, PAIRS, names, validation)
        self.pairs: PairTable = table
        self.prepared, self.lemma_of_task = prepared, lemma_of_task

    @property
    def senses(self) -> np.ndarray:
        """How many candidates each task has."""
        return self.prepared.senses_per_task[self.lemma_of_task]

    @property
    def trained_rows(self) -> np.ndarray:
        return self.train_sizes * self.senses

    def targets(self, kind: str, tasks: range) -> np.ndarray:
        """The targets of some tasks, [n] or [S, n]; `kind` is train, validation or test."""
        found = self.segments(kind)
        assert found is not None
        start, stop = found.offsets[tasks.start], found.offsets[tasks.stop]
        return found.all_rows()[..., start - found.offsets[0] : stop - found.offsets[0]].numpy()

    def train(self, i: int) -> PairRows | None:
        return self._pairs("train", range(i, i + 1)) if self.train_sizes[i] else None

    def validation(self, i: int) -> PairRows | None:
        found = self.segments("validation")
        if found is None or not found.sizes[i]:
            return None
        return self._pairs("validation", range(i, i + 1))

    def test(self, i: int) -> PairRows:
        return self._pairs("test", range(i, i + 1))

    def tests(self, upto: int) -> tuple[PairRows, Tensor]:
        task = np.repeat(np.arange(upto), (self.test_sizes * self.senses)[:upto])
        return self._pairs("test", range(upto)), torch.from_numpy(task)

    def union(self) -> PairRows:
        return self._pairs("train", range(len(self)))

    def validation_union(self) -> PairRows | None:
        found = self.segments("validation")
        if found is None or not found.sizes.any():
            return None
        return self._pairs("validation", range(len(self)))

    def _pairs(self, kind: str, tasks: range) -> PairRows:
        return PairRows(self.pairs, self.pairs.targets.pairs_of(self.targets(kind, tasks)))

    def with_segments(self, train: Segments, validation: Segments | None) -> WordTasks:
        test = self.segments("test")
        assert test is not None
        return WordTasks(self.prepared, self.lemma_of_task, self.pairs, train, test, validation)

    def select(self, order: Sequence[int] | np.ndarray) -> WordTasks:
        order = np.asarray(order, dtype=np.int64)
        parts = (self.segments(kind) for kind in ("train", "test", "validation"))
        chosen = [None if part is None else part.select(order) for part in parts]
        return WordTasks(self.prepared, self.lemma_of_task[order], self.pairs, *chosen)  # pyright: ignore

    def to(self, device: Device) -> WordTasks:
        """Tokens move; which targets a task has stays on the host, where batches are chosen."""
        moved = copy.copy(self)
        moved.table = moved.pairs = self.pairs.to(device)
        return moved


def word_tasks(
    prepared: Prepared,
    seed: int,
    *,
    tasks: int = 0,
    cap: int = 0,
    test_cap: int = 0,
    longest: int = 96,
) -> WordTasks:
    """Split 90 to 10, order by size, and cut to size where that is asked for.

    Args:
        prepared: the corpus.
        seed: of the split and of the order.
        tasks: only so many tasks, the first in the order; 0 for all.
        cap: at most so many training targets a task; 0 for all.
        test_cap: the same for its test targets.
        longest: tokens of a pair.
    """
    counts = np.bincount(prepared.targets[:, 0], minlength=len(prepared.lemmas))
    # floor(0.9 n) of a task with one target is none: the paper's zero-shot tasks
    train, test = Segments(np.cumsum([0, *counts])).split(seed, TRAIN_SHARE)
    if cap:
        train = _capped(train, cap, seed)
    if test_cap:
        test = _capped(test, test_cap, seed)
    order = order_sampled(counts, seed)
    table = PairTable(prepared, longest)
    whole = WordTasks(prepared, np.arange(len(counts)), table, train, test)
    return whole.select(order[:tasks] if tasks else order)


def _capped(segments: Segments, cap: int, seed: int) -> Segments:
    """A random `cap` of each segment's rows, in their order."""
    rows = segments.all_rows()
    task = segments.task_of_row().numpy()
    order = np.lexsort((uniform(len(rows), seed, "cap").numpy(), task))
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - segments.offsets[task[order]]
    keep = rank < cap
    sizes = np.minimum(segments.sizes, cap)
    return Segments(np.cumsum([0, *sizes]), rows[torch.from_numpy(keep)])
