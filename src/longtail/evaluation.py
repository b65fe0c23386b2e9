"""When to evaluate, and one batched pass over the test sets of all tasks seen so far.

Scores are summed by task number on the device, in float64, so there is no loop over tasks and the
result does not depend on how the rows are cut into batches.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.examples import Examples, Ragged, leaves, map_leaves, read
from longtail.objectives import Objective
from longtail.sequences import TaskSequence

# Numbers that the inputs of one batch of a stack may hold: enough to keep the device busy, little
# enough for a CPU's cache and a GPU's memory.
_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}


def due(after: int, total: int, every: int = 0, at: Collection[int] = ()) -> bool:
    """Whether all seen tasks are evaluated after task ``after`` (from zero) of ``total``.

    Always after the last; after every ``every`` tasks (0: no); and where ``at`` lists how many
    tasks have been learned.
    """
    learned = after + 1
    return learned == total or (every > 0 and learned % every == 0) or learned in at


def evaluate(
    model: nn.Module, sequence: TaskSequence, upto: int | None = None, batch_size: int = 1024
) -> np.ndarray:
    """Mean score of each task before ``upto`` (all by default): float64 ``[*lead, upto]``.

    Args:
        model: a plain module, or `Replicas` with outputs ``[P, S, B, ...]``.
        sequence: the tasks, on the model's device.
        upto: how many tasks have been seen.
        batch_size: rows per batch of a plain model; a stack of replicas takes as many as it has
            numbers for.

    A task without test examples scores NaN.
    """
    upto = len(sequence) if upto is None else upto
    examples, task = sequence.tests(upto)
    scores = _scores(model, examples, sequence.objective, batch_size, task, upto)
    sizes = torch.as_tensor(np.asarray(sequence.test_sizes[:upto], dtype=np.float64))
    return (scores.cpu() / sizes).numpy()


def evaluate_task(
    model: nn.Module, sequence: TaskSequence, i: int, batch_size: int = 1024
) -> np.ndarray:
    """Mean score of task ``i`` alone, a_ii right after it was learned: float64 ``[*lead]``."""
    return evaluate_examples(model, sequence.test(i), sequence.objective, batch_size)


def evaluate_examples(
    model: nn.Module, examples: Examples, objective: Objective, batch_size: int = 1024
) -> np.ndarray:
    """Mean score over a table (a validation share): float64 ``[*lead]``; NaN if it is empty."""
    total = _scores(model, examples, objective, batch_size, None, 1)
    return (total.squeeze(-1).cpu() / len(examples)).numpy()


def _scores(
    model: nn.Module,
    examples: Examples,
    objective: Objective,
    batch_size: int,
    task: Tensor | None,
    tasks: int,
) -> Tensor:
    """Sums of scores per task (of all rows, where ``task`` is None), ``[*lead, tasks]``."""
    lead: tuple[int, ...] = getattr(model, "lead", ())
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    rows = _rows_per_batch(examples, lead, device) if lead else batch_size
    sums = torch.zeros(*lead, tasks, dtype=torch.float64, device=device)
    task = None if task is None else task.to(device)
    with _evaluation_mode(model), torch.no_grad():
        for start in range(0, len(examples), rows):
            inputs, targets = read(examples, start, start + rows)
            if lead and targets.ndim == 1:  # data that all replicas share
                inputs = _expand(inputs, lead[1])
            scores = objective.score(model(inputs), targets).double()
            if task is None:
                sums += scores.sum(-1, keepdim=True)
            else:
                sums.scatter_add_(-1, task[start : start + rows].expand(scores.shape), scores)
    return sums


def _rows_per_batch(examples: Examples, lead: tuple[int, ...], device: torch.device) -> int:
    if len(examples) == 0:
        return 1
    inputs, targets = read(examples, 0, 1)
    tensors = [leaf.padded if isinstance(leaf, Ragged) else leaf for leaf in leaves(inputs)]
    row = sum(tensor.numel() for tensor in tensors) * (lead[1] if targets.ndim == 1 else 1)
    return max(1, _ELEMENTS.get(device.type, _ELEMENTS["cpu"]) // max(1, row * lead[0]))


def _expand(inputs: Any, replicas: int) -> Any:
    def expand(leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            return Ragged(*(tensor.expand(replicas, *tensor.shape) for tensor in leaf))
        return leaf.expand(replicas, *leaf.shape)

    return map_leaves(expand, inputs)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is back in the mode it had."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
