"""When to evaluate, and one batched pass over the test sets of all tasks seen so far.

Scores are summed by task number on the device, in float64, so there is no loop over tasks and the
result does not depend on how the rows are cut into batches.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.examples import Examples, Ragged, leaves, map_leaves, read
from longtail.modes import evaluation_mode
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
    sums = _scores(model, examples, sequence.objective, batch_size, task, upto)[0]
    return _mean(sums, sequence.test_sizes[:upto])


def evaluate_all(
    model: nn.Module, sequence: TaskSequence, tasks: range, batch_size: int = 1024
) -> dict[str, np.ndarray]:
    """The score and the objective's further scores of one task, or of all from the first on.

    One pass gives them all: ``{name: float64 [*lead, len(tasks)]}``.
    """
    objective = sequence.objective
    examples, task = sequence.tests(tasks.stop) if tasks.start == 0 else (None, None)
    if examples is None:
        assert len(tasks) == 1
        examples = sequence.test(tasks.start)
    sums = _scores(model, examples, objective, batch_size, task, len(tasks))
    sizes = sequence.test_sizes[tasks.start : tasks.stop]
    names = [objective.score_name, *(name for name, _ in objective.further)]
    return {name: _mean(found, sizes) for name, found in zip(names, sums, strict=True)}


def evaluate_validation(
    model: nn.Module, sequence: TaskSequence, batch_size: int = 1024
) -> np.ndarray | None:
    """Mean score over all tasks' validation examples: float64 ``[*lead]``; None without any."""
    parts = [part for part in map(sequence.validation, range(len(sequence))) if part is not None]
    if not parts:
        return None
    scores = [evaluate_examples(model, part, sequence.objective, batch_size) for part in parts]
    return np.average(scores, axis=0, weights=[len(part) for part in parts])


def _mean(sums: Tensor, sizes: Any) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # 0 / 0 where a task has no test examples
        return sums.cpu().numpy() / np.asarray(sizes)


def evaluate_task(
    model: nn.Module, sequence: TaskSequence, i: int, batch_size: int = 1024
) -> np.ndarray:
    """Mean score of task ``i`` alone, a_ii right after it was learned: float64 ``[*lead]``."""
    return evaluate_examples(model, sequence.test(i), sequence.objective, batch_size)


def evaluate_examples(
    model: nn.Module, examples: Examples, objective: Objective, batch_size: int = 1024
) -> np.ndarray:
    """Mean score over a table (a validation share): float64 ``[*lead]``; NaN if it is empty."""
    total = _scores(model, examples, objective, batch_size, None, 1)[0]
    return (total.squeeze(-1).cpu() / len(examples)).numpy()


def _scores(
    model: nn.Module,
    examples: Examples,
    objective: Objective,
    batch_size: int,
    task: Tensor | None,
    tasks: int,
) -> Tensor:
    """Sums of scores per task (of all rows, where ``task`` is None), ``[scores, *lead, tasks]``."""
    lead: tuple[int, ...] = getattr(model, "lead", ())
    rows = _rows_per_batch(model, examples, lead) if lead else batch_size
    scorers = [objective.score, *(score for _, score in objective.further)]
    shape = (len(scorers), *lead, tasks)
    total = None
    with evaluation_mode(model), torch.no_grad():
        for start in range(0, len(examples), rows):
            inputs, targets = read(examples, start, start + rows)
            if lead and targets.ndim == 1:  # data that all replicas share
                inputs = _expand(inputs, lead[1])
            outputs = model(inputs)
            found = [score(outputs, targets) for score in scorers]
            scores = torch.stack(found) if len(found) > 1 else found[0][None]
            if task is None:
                part = scores.sum(-1, keepdim=True, dtype=torch.float64)
                total = part if total is None else total.add_(part)
            else:
                if total is None:
                    total = scores.new_zeros(shape, dtype=torch.float64)
                index = task[start : start + rows].to(scores.device).expand(scores.shape)
                total.scatter_add_(-1, index, scores.double())
    return torch.zeros(shape, dtype=torch.float64) if total is None else total


def _rows_per_batch(model: nn.Module, examples: Examples, lead: tuple[int, ...]) -> int:
    if len(examples) == 0:
        return 1
    inputs, targets = read(examples, 0, 1)
    tensors = [leaf.padded if isinstance(leaf, Ragged) else leaf for leaf in leaves(inputs)]
    row = sum(tensor.numel() for tensor in tensors) * (lead[1] if targets.ndim == 1 else 1)
    device = next(model.parameters()).device
    return max(1, _ELEMENTS.get(device.type, _ELEMENTS["cpu"]) // max(1, row * lead[0]))


def _expand(inputs: Any, replicas: int) -> Any:
    def expand(leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            return Ragged(*(tensor.expand(replicas, *tensor.shape) for tensor in leaf))
        return leaf.expand(replicas, *leaf.shape)

    return map_leaves(expand, inputs)
