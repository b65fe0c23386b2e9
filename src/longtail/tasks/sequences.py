"""Tasks in the order they are learned.

A :class:`Task` has a name, training examples (none means zero-shot: evaluated, never trained),
perhaps validation examples, and test examples. A :class:`TaskSequence` knows the sizes without
reading data; a :class:`TableSequence` keeps all examples in one table and a task is a segment of
its rows, so ``sequence[i]`` costs the same at task 10,000 as at task 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.support.random import Seed, uniform
from longtail.tasks.examples import (
    Device,
    Examples,
    Rows,
    StackedExamples,
    Table,
    TensorExamples,
    leaves,
    map_leaves,
    read,
    rows_device,
)
from longtail.tasks.objectives import Objective


@dataclass(frozen=True, slots=True)
class Task:
    """One task; ``train`` is None for a zero-shot task, ``validation`` where there is no share."""

    name: str
    index: int
    train: Examples | None
    validation: Examples | None
    test: Examples


class TaskSequence(Sequence[Task], ABC):
    """An ordered list of tasks, read when asked for.

    Attributes:
        names: the tasks' names.
        train_sizes, test_sizes: examples per task, known without reading data; ``train_sizes``
            without the validation share, 0 for zero-shot tasks.
        objective: loss, score and the score's direction.
        replicas: leading dimension of the data where each replica has its own, else None.
    """

    def __init__(
        self,
        names: Sequence[str],
        train_sizes: Any,
        test_sizes: Any,
        objective: Objective,
        replicas: int | None = None,
    ) -> None:
        self.names = list(names)
        self.train_sizes = np.asarray(train_sizes, dtype=np.int64)
        self.test_sizes = np.asarray(test_sizes, dtype=np.int64)
        self.objective, self.replicas = objective, replicas
        if not len(self.names) == len(self.train_sizes) == len(self.test_sizes):
            raise ValueError(
                f"{len(self.names)} names, {len(self.train_sizes)} training sizes and "
                f"{len(self.test_sizes)} test sizes"
            )

    @property
    def trained_rows(self) -> np.ndarray:
        """How many rows ``train(i)`` has for each task: what the steps of an epoch divide.

        These are the training examples, unless an example is several rows or one task trains on the
        examples of others.
        """
        return self.train_sizes

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Task:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        i = index % len(self)
        return Task(self.names[i], i, self.train(i), self.validation(i), self.test(i))

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    @abstractmethod
    def train(self, i: int) -> Examples | None: ...

    def validation(self, i: int) -> Examples | None:
        return None

    @abstractmethod
    def test(self, i: int) -> Examples: ...

    @abstractmethod
    def tests(self, upto: int) -> tuple[Examples, Tensor]:
        """The test rows of tasks 0 to ``upto - 1`` as one table, and the task of each row."""

    def union(self) -> Examples:
        """The training rows of all tasks as one table; here by reading them all."""
        found = [examples for i in range(len(self)) if (examples := self.train(i)) is not None]
        parts = [read(examples) for examples in found]
        dim = 0 if self.replicas is None else 1
        inputs, targets = map_leaves(lambda *columns: torch.cat(columns, dim), *parts)
        kind = TensorExamples if self.replicas is None else StackedExamples
        return kind(inputs, targets).to(leaves(targets)[0].device)

    @abstractmethod
    def to(self, device: Device) -> "TaskSequence": ...


class Segments:
    """Which rows of a table each task has: rows ``offsets[i]`` to ``offsets[i + 1]``.

    ``rows [N]`` lists the table's rows (tasks may then overlap, in any order), ``[S, N]`` where
    replicas see different ones; None means the table's own order, so that segments are contiguous.
    """

    def __init__(self, offsets: Any, rows: Tensor | None = None) -> None:
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self.rows = rows
        self._bounds: list[int] = self.offsets.tolist()
        if (self.sizes < 0).any():
            raise ValueError("Invalid offsets: they must not decrease")

    @classmethod
    def from_lists(cls, rows: Iterable[Any]) -> "Segments":
        """One list or tensor of row numbers per task."""
        parts = [torch.as_tensor(part, dtype=torch.int64) for part in rows]
        return cls(np.cumsum([0, *map(len, parts)]), torch.cat(parts))

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def task_of_row(self) -> Tensor:
        return torch.from_numpy(np.repeat(np.arange(len(self.sizes)), self.sizes))

    def view(self, table: Table, first: int, last: int) -> Table:
        """The rows of tasks ``first`` to ``last - 1``: a narrowed table, or a view by rows."""
        start, stop = self._bounds[first], self._bounds[last]
        if self.rows is None:
            return table.narrow(start, stop)
        return Rows(table, self.rows[..., start:stop])

    def all_rows(self) -> Tensor:
        if self.rows is not None:
            return self.rows
        return torch.arange(self._bounds[0], self._bounds[-1])

    def select(self, order: np.ndarray) -> "Segments":
        """The segments of the tasks in ``order``."""
        starts, sizes = self.offsets[:-1][order] - self.offsets[0], self.sizes[order]
        offsets = np.cumsum([0, *sizes])
        where = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
        rows = self.all_rows()
        return Segments(offsets, rows[..., torch.from_numpy(where).to(rows.device)])

    def split(self, seed: Seed, fraction: float) -> tuple["Segments", "Segments"]:
        """A random ``floor(fraction * n)`` of each segment's rows, and the others, in order."""
        task = self.task_of_row()
        order = torch.argsort(uniform(len(task), seed, "split"), stable=True)
        order = order.gather(-1, torch.argsort(task[order], dim=-1, stable=True))
        quota = floor(fraction * self.sizes)
        offsets = torch.from_numpy(self.offsets[:-1] - self.offsets[0])
        chosen_first = torch.arange(len(task)) - offsets[task] < torch.from_numpy(quota)[task]
        chosen = torch.zeros(order.shape, dtype=torch.bool)
        chosen.scatter_(-1, order, chosen_first.expand(order.shape))
        rows = self.all_rows().cpu().expand(order.shape)
        lead = order.shape[:-1]
        return (
            Segments(np.cumsum([0, *quota]), rows[chosen].view(*lead, -1)),
            Segments(np.cumsum([0, *(self.sizes - quota)]), rows[~chosen].view(*lead, -1)),
        )

    def to(self, device: Device) -> "Segments":
        return Segments(self.offsets, None if self.rows is None else self.rows.to(device))


def floor(x: Any) -> np.ndarray:
    return np.floor(np.asarray(x) + 1e-9).astype(np.int64)  # 0.29 * 100 is 28.999999999999996


class TableSequence(TaskSequence):
    """A sequence over one table of examples; tasks are segments of its rows, nothing is copied."""

    def __init__(
        self,
        table: Table,
        train: Segments,
        test: Segments,
        objective: Objective,
        names: Sequence[str] | None = None,
        validation: Segments | None = None,
        replicas: int | None = None,
    ) -> None:
        count = len(test.sizes)
        for what, found in (("train", train), ("validation", validation)):
            if found is not None and len(found.sizes) != count:
                raise ValueError(f"{len(found.sizes)} {what} segments for {count} test segments")
        if isinstance(table, StackedExamples):
            replicas = table.replicas
        names = [f"task {i}" for i in range(count)] if names is None else names
        super().__init__(names, train.sizes, test.sizes, objective, replicas)
        self.table = table
        self._train, self._validation, self._test = train, validation, test
        self._train_list = self.train_sizes.tolist()
        self._validation_list = None if validation is None else validation.sizes.tolist()
        self._task_of_test_row: Tensor | None = None

    def train(self, i: int) -> Examples | None:
        return self._train.view(self.table, i, i + 1) if self._train_list[i] else None

    def validation(self, i: int) -> Examples | None:
        if self._validation is None or not self._validation_list or not self._validation_list[i]:
            return None
        return self._validation.view(self.table, i, i + 1)

    def test(self, i: int) -> Examples:
        return self._test.view(self.table, i, i + 1)

    def tests(self, upto: int) -> tuple[Examples, Tensor]:
        if self._task_of_test_row is None:
            self._task_of_test_row = self._test.task_of_row()
        rows = int(self._test.offsets[upto] - self._test.offsets[0])
        return self._test.view(self.table, 0, upto), self._task_of_test_row[:rows]

    def union(self) -> Examples:
        return self._train.view(self.table, 0, len(self))

    def validation_union(self) -> Examples | None:
        """The validation rows of all tasks as one table; None where nothing is held out."""
        if self._validation is None or not self._validation.sizes.any():
            return None
        return self._validation.view(self.table, 0, len(self))

    def segments(self, kind: str) -> Segments | None:
        """The rows of the tasks' "train", "validation" or "test" examples."""
        return {"train": self._train, "validation": self._validation, "test": self._test}[kind]

    def with_segments(self, train: Segments, validation: Segments | None) -> "TableSequence":
        """The same tasks and tests with other training and validation rows."""
        return TableSequence(
            self.table, train, self._test, self.objective, self.names, validation, self.replicas
        )

    def select(self, order: Any) -> "TableSequence":
        """The tasks with these indices, in this order (a permutation, or some of them)."""
        order = np.asarray(order, dtype=np.int64)
        validation = None if self._validation is None else self._validation.select(order)
        return TableSequence(
            self.table,
            self._train.select(order),
            self._test.select(order),
            self.objective,
            [self.names[i] for i in order],
            validation,
            self.replicas,
        )

    def to(self, device: Device) -> "TableSequence":
        table = self.table.to(device)
        where = rows_device(table, device)
        validation = None if self._validation is None else self._validation.to(where)
        moved = TableSequence(
            table,
            self._train.to(where),
            self._test.to(where),
            self.objective,
            self.names,
            validation,
            self.replicas,
        )
        moved._task_of_test_row = self._test.task_of_row().to(device)
        return moved
