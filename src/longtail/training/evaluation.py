"""When to evaluate, and one batched pass over the test sets of all tasks seen so far.

Scores are summed by task number on the device, in float64, so there is no loop over tasks and the
result does not depend on how the rows are cut into batches. Nothing waits for the device until the
scores are read.
"""

import math
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.support.eval_mode import evaluation_mode
from longtail.tasks.examples import Examples, Ragged, leaves, map_leaves, read, rows_device
from longtail.tasks.objectives import Objective
from longtail.tasks.sequences import TaskSequence

# Numbers that the inputs of one batch of a stack may hold: enough to keep the device busy, little
# enough for a CPU's cache and a GPU's memory.
_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 26}
_FEW = 64  # rows that fit into one batch in any case


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
) -> dict[str, Tensor]:
    """The score and the objective's further scores of one task, or of all from the first on.

    One pass gives them all: ``{name: float64 [*lead, len(tasks)]}``, where the model is.
    """
    objective = sequence.objective
    examples, task = sequence.tests(tasks.stop) if tasks.start == 0 else (None, None)
    if examples is None:
        assert len(tasks) == 1
        examples = sequence.test(tasks.start)
    sums = _scores(model, examples, objective, batch_size, task, len(tasks))
    names = [objective.score_name, *(name for name, _ in objective.further)]
    if len(tasks) == 1:  # a number is sent with the division, an array would be copied and waited
        means = sums / int(sequence.test_sizes[tasks.start])
    else:
        sizes = torch.from_numpy(sequence.test_sizes[tasks.start : tasks.stop])
        means = sums / sizes.to(sums.device)
    return dict(zip(names, means, strict=True))


def validation_score(model: nn.Module, sequence: TaskSequence, task: int, own: Any = None) -> Any:
    """Mean score over a task's validation examples, float64 ``[*lead]``, where the model is.

    A benchmark's own evaluation ``own`` may replace it: ``own.validation(model, sequence, task)``.
    """
    if hasattr(own, "validation"):
        return own.validation(model, sequence, task)
    examples = sequence.validation(task)
    assert examples is not None
    total = _scores(model, examples, sequence.objective, 1024, None, 1)[0]
    return total.squeeze(-1) / len(examples)


def evaluate_validation(
    model: nn.Module, sequence: TaskSequence, own: Any = None
) -> np.ndarray | None:
    """Mean score over all tasks' validation examples: float64 ``[*lead]``; None without any.

    Args:
        own: a benchmark's own evaluation, see `validation_score`. What it counts may not be rows:
            ``own.validation_sizes [tasks]`` are then the weights.
    """
    parts = [(i, part) for i in range(len(sequence)) if (part := sequence.validation(i))]
    if not parts:
        return None
    scores = [validation_score(model, sequence, i, own) for i, _ in parts]
    sizes = getattr(own, "validation_sizes", None)
    weights = [len(part) if sizes is None else sizes[i] for i, part in parts]
    return np.average([torch.as_tensor(x).cpu().numpy() for x in scores], axis=0, weights=weights)


def outputs_of(
    model: nn.Module,
    examples: Examples,
    widths: Any = None,
    elements: int = 1 << 17,
) -> Tensor:
    """The model's outputs for all rows, ``[*lead, n, ...]``, in their order.

    Args:
        model: gives one tensor.
        examples: shared by all replicas.
        widths: how wide each row's batch has to be, ``[n]`` on the host: rows of one width go
            together, so that a short one is not padded to the longest.
        elements: rows times width (times replicas) of one batch.
    """
    lead: tuple[int, ...] = getattr(model, "lead", ())
    device = next(model.parameters()).device
    where = rows_device(examples, device)
    n = len(examples)
    widths = np.ones(n, np.int64) if widths is None else np.asarray(widths)
    order = np.argsort(widths, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(widths[order])) + 1), n] if n else [0]
    found = None
    with evaluation_mode(model), torch.no_grad():
        for first, last in pairwise(bounds):
            rows = max(1, elements // (math.prod(lead) * max(1, int(widths[order[first]]))))
            for start in range(first, last, rows):
                index = torch.from_numpy(order[start : min(start + rows, last)]).to(where)
                inputs, _ = examples[index]
                outputs = model(_expand(inputs, lead[1]) if lead else inputs)
                if found is None:
                    found = outputs.new_empty((*lead, n, *outputs.shape[len(lead) + 1 :]))
                found.index_copy_(len(lead), index.to(device, non_blocking=True), outputs)
    return torch.empty(*lead, 0, device=device) if found is None else found


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
            for values in found:
                if values.dim() != len(lead) + 1:  # [B, B], broadcast, would pass for B replicas
                    raise ValueError(
                        f"Invalid scores {tuple(values.shape)}: an objective gives one number per "
                        "example"
                    )
            scores = torch.stack(found) if len(found) > 1 else found[0][None]
            if task is None:
                part = scores.sum(-1, keepdim=True, dtype=torch.float64)
                total = part if total is None else total.add_(part)
            else:
                if total is None:
                    total = scores.new_zeros(shape, dtype=torch.float64)
                number = task[start : start + rows]
                if number.device.type == "cpu" and number[0] == number[-1]:  # large tasks
                    total[..., int(number[0])] += scores.sum(-1, dtype=torch.float64)
                    continue
                index = number.to(scores.device).expand(scores.shape)
                total.scatter_add_(-1, index, scores.double())
    return torch.zeros(shape, dtype=torch.float64) if total is None else total


def _rows_per_batch(model: nn.Module, examples: Examples, lead: tuple[int, ...]) -> int:
    if len(examples) <= _FEW:
        return _FEW
    if (limit := getattr(examples, "rows_at_once", None)) is not None:
        return int(limit)
    inputs, targets = read(examples, 0, 1)
    tensors = [leaf.padded if isinstance(leaf, Ragged) else leaf for leaf in leaves(inputs)]
    row = sum(tensor.numel() for tensor in tensors) * (lead[1] if targets.ndim == 1 else 1)
    device = next(model.parameters()).device
    rows = _ELEMENTS.get(device.type, _ELEMENTS["cpu"]) // max(1, row * lead[0])
    # A transformer's activations are far larger than its inputs: it may say what it can take.
    for limit in (m.rows_at_once for m in model.modules() if hasattr(m, "rows_at_once")):
        rows = min(rows, int(limit) // math.prod(lead))  # pyright: ignore[reportArgumentType]
    return max(1, rows)


def _expand(inputs: Any, replicas: int) -> Any:
    def expand(leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            return Ragged(*(tensor.expand(replicas, *tensor.shape) for tensor in leaf))
        return leaf.expand(replicas, *leaf.shape)

    return map_leaves(expand, inputs)
