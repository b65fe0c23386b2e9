"""What a model scores on a sequence's tasks: one batched pass over the test sets of all of them.

Scores are summed by task number on the device, in float64, so there is no loop over tasks and the
result does not depend on how the rows are cut into batches. Nothing waits for the device until the
scores are read.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longtail.support.eval_mode import evaluation_mode
from longtail.tasks.examples import Examples, Ragged, leaves, map_leaves, read
from longtail.tasks.objectives import Objective, Score
from longtail.tasks.sequences import TaskSequence

# Numbers that the inputs of one batch of a stack may hold: enough to keep the device busy, little
# enough for a CPU's cache and a GPU's memory.
_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 26}
_FEW = 64  # rows that fit into one batch in any case


class Evaluator:
    """Scores of the tasks by the sequence's objective; subclass it for scores of your own.

    Attributes:
        own_scores: those that it gives and the objective does not; they have no function.
        captured: whether small batches of the model may replay a CUDA graph. Set it to False in a
            subclass that asks more of a model than ``model(inputs)`` with each row on its own.
        batch_size: rows per batch of a plain model; for a stack of replicas the number follows from
            the size of its inputs.
    """

    own_scores: Sequence[Score] = ()
    captured: bool = True
    batch_size: int = 1024

    def __call__(self, model: nn.Module, sequence: TaskSequence, tasks: range) -> Any:
        """Mean scores of one task, or of all from the first on, by name: NaN without examples.

        Args:
            model: a plain module, or `Replicas` with outputs ``[P, S, B, ...]``.
            sequence: the tasks, on the model's device.
            tasks: which of them.

        Returns:
            ``{name: float64 [*lead, len(tasks)]}``, tensors where the model is, all from one pass.
            A subclass may give NumPy arrays, or the main score alone.
        """
        objective = sequence.objective
        examples, task = sequence.tests(tasks.stop) if tasks.start == 0 else (None, None)
        if examples is None:
            assert len(tasks) == 1
            examples = sequence.test(tasks.start)
        sums = _sums(model, examples, objective, self.batch_size, task, len(tasks))
        names = [score.name for score in objective.scores]
        # Dividing by a Python number needs no copy to the device; dividing by an array would copy
        # it and wait.
        if len(tasks) == 1:
            means = sums / int(sequence.test_sizes[tasks.start])
        else:
            sizes = torch.from_numpy(sequence.test_sizes[tasks.start : tasks.stop])
            means = sums / sizes.to(sums.device)
        return dict(zip(names, means, strict=True))

    def validation(self, model: nn.Module, sequence: TaskSequence, task: int) -> Any:
        """Mean score [*lead] over a task's validation examples: what chooses its best epoch."""
        examples = sequence.validation(task)
        assert examples is not None
        total = _sums(model, examples, sequence.objective, self.batch_size, None, 1)[0]
        return total.squeeze(-1) / len(examples)

    def validations(self, model: nn.Module, sequence: TaskSequence, tasks: Sequence[int]) -> Any:
        """`validation` of each of these tasks, ``[tasks, *lead]``: what chooses a setting."""
        return [torch.as_tensor(self.validation(model, sequence, i)).cpu().numpy() for i in tasks]

    def validation_size(self, sequence: TaskSequence, task: int) -> int:
        """How much a task's validation score counts in the mean over all tasks."""
        examples = sequence.validation(task)
        return 0 if examples is None else len(examples)

    def summary(self, matrix: Any, sequence: TaskSequence) -> dict[str, Any]:
        """What a run's summary says beside the four metrics; ``matrix`` is its `ScoreMatrix`."""
        return {}


def _sums(
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
    scorers = [score.function for score in objective.scores if score.function is not None]
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
                if number.device.type == "cpu" and number[0] == number[-1]:  # of one task
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
