"""Your own data as a task sequence: tensors, torch data sets, Hugging Face data sets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from longtail.tasks.columns import as_tensor
from longtail.tasks.examples import (
    Batch,
    Device,
    Index,
    RaggedColumn,
    Rows,
    TensorExamples,
    map_leaves,
)
from longtail.tasks.objectives import Objective
from longtail.tasks.sequences import Segments, TableSequence


def from_tensors(tasks: Iterable[Sequence[Any]], objective: Objective) -> TableSequence:
    """A sequence from data in memory.

    Args:
        tasks: ``(name, train, test)`` or ``(name, train, test, validation)`` for each task, each
            part a pair ``(inputs, targets)``; train is None for a zero-shot task. Inputs are a
            tensor or array ``[n, ...]``, a list of rows of different lengths, or a tuple or dict
            of these with the same structure in all tasks.
        objective: ``CLASSIFICATION``, ``REGRESSION`` or your own.

    Example:
        >>> import torch
        >>> from longtail.tasks import CLASSIFICATION, from_tensors
        >>> x, y = torch.randn(8, 3), torch.arange(8) % 2
        >>> sequence = from_tensors([("a", (x, y), (x, y)), ("b", None, (x, y))], CLASSIFICATION)
        >>> sequence.train_sizes.tolist(), sequence.test_sizes.tolist()
        ([8, 0], [8, 8])
    """
    tasks = [tuple(task) for task in tasks]
    if not tasks:
        raise ValueError("Invalid tasks: an empty list")
    for task in tasks:
        if len(task) not in (3, 4) or task[2] is None:
            raise ValueError(
                f"Invalid task {task[0]!r}: (name, train, test[, validation]) expected"
            )
    kinds = [(1, "train"), (3, "validation"), (2, "test")]
    parts: list[Any] = []
    segments: dict[str, Segments] = {}
    start = 0
    for position, kind in kinds:
        found = [task[position] if len(task) > position else None for task in tasks]
        sizes = [0 if part is None else len(part[1]) for part in found]
        segments[kind] = Segments(start + np.cumsum([0, *sizes]))
        start += sum(sizes)
        parts += [tuple(part) for part in found if part is not None and len(part[1])]
    inputs, targets = _join(parts)
    validation = segments["validation"] if segments["validation"].sizes.any() else None
    return TableSequence(
        TensorExamples(inputs, targets),
        segments["train"],
        segments["test"],
        objective,
        [str(task[0]) for task in tasks],
        validation,
    )


def _join(parts: list[Any]) -> Any:
    """Join tables with the same structure, end to end; lists of rows become a ragged column."""

    def join(*columns: Any) -> Any:
        if isinstance(columns[0], list):
            return RaggedColumn.from_rows([row for column in columns for row in column])
        return torch.cat([as_tensor(column) for column in columns])

    return map_leaves(join, *parts)


def from_datasets(
    tasks: Iterable[Sequence[Any]], objective: Objective, in_memory: bool = True
) -> TableSequence:
    """A sequence from map-style torch datasets whose items are ``(inputs, target)``.

    Args:
        tasks: ``(name, train, test)`` or ``(name, train, test, validation)`` for each task, each
            part a dataset; train is None for a zero-shot task.
        objective: ``CLASSIFICATION``, ``REGRESSION`` or your own.
        in_memory: read every item once, now. False reads items when a batch asks for them, for
            data sets too large for memory or with random transforms.
    """
    tasks = [tuple(task) for task in tasks]
    if in_memory:
        read = [
            (name, *(None if p is None or not len(p) else DatasetExamples([p])[:] for p in parts))
            for name, *parts in tasks
        ]
        return from_tensors(read, objective)
    empty: list[Any] = []
    columns = [[task[k] if len(task) > k else None for task in tasks] for k in (1, 3, 2)]
    datasets = [empty if dataset is None else dataset for column in columns for dataset in column]
    offsets = np.cumsum([0, *map(len, datasets)])
    count = len(tasks)
    train, validation, test = (Segments(offsets[k * count : (k + 1) * count + 1]) for k in range(3))
    names = [str(task[0]) for task in tasks]
    table = DatasetExamples(datasets)
    return TableSequence(
        table, train, test, objective, names, validation if validation.sizes.any() else None
    )


class DatasetExamples:
    """Map-style torch datasets end to end, items read one by one when asked for."""

    def __init__(self, datasets: Sequence[Any], device: Device = "cpu") -> None:
        self.datasets, self.device = list(datasets), torch.device(device)
        self._offsets = np.cumsum([0, *(len(dataset) for dataset in self.datasets)])

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)))
        rows = index.flatten().cpu().numpy()
        part = np.searchsorted(self._offsets, rows, side="right") - 1
        items = [
            self.datasets[p][int(row)]
            for p, row in zip(part, rows - self._offsets[part], strict=True)
        ]
        inputs, targets = default_collate(items)
        batch = (tuple(inputs) if isinstance(inputs, list) else inputs), targets
        return map_leaves(lambda leaf: leaf.to(self.device).unflatten(0, index.shape), batch)

    def narrow(self, start: int, stop: int) -> "Rows":
        return Rows(self, torch.arange(start, stop))

    def to(self, device: Device) -> "DatasetExamples":
        return DatasetExamples(self.datasets, device)


def from_hf(
    tasks: Mapping[str, Any] | Iterable[tuple[str, Any]],
    objective: Objective,
    inputs: str | Sequence[str],
    target: str = "label",
    splits: tuple[str, str, str] = ("train", "test", "validation"),
) -> TableSequence:
    """A sequence from Hugging Face data sets, one ``datasets.DatasetDict`` per task.

    Args:
        tasks: name -> DatasetDict. A task without the training split is zero-shot.
        objective: ``CLASSIFICATION``, ``REGRESSION`` or your own.
        inputs: the column the model takes, or several (it then gets a dict). Columns whose rows
            differ in length (token ids) become :class:`Ragged` batches.
        target: the column of targets.
        splits: names of the training, test and validation splits.
    """
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    pairs = list(tasks.items() if isinstance(tasks, Mapping) else tasks)
    parts = [data[part] for _, data in pairs for part in splits if part in data]
    ragged = {name: _lengths_differ([part[name] for part in parts]) for name in names}

    def read(data: Any, part: str) -> Any:
        if part not in data or not len(data[part]):
            return None
        columns = {name: list(data[part][name]) for name in names}
        ready = {
            name: rows if ragged[name] else torch.as_tensor(np.asarray(rows))
            for name, rows in columns.items()
        }
        targets = torch.as_tensor(np.asarray(list(data[part][target])))
        return (ready[inputs] if isinstance(inputs, str) else ready), targets

    return from_tensors(
        ([name, *(read(data, part) for part in splits)] for name, data in pairs), objective
    )


def _lengths_differ(columns: list[Any]) -> bool:
    """Whether rows of these columns are lists that do not all have the same length."""
    rows = (row for column in columns for row in column)
    return (
        len({len(row) for row in rows if isinstance(row, Sequence | np.ndarray | torch.Tensor)}) > 1
    )
