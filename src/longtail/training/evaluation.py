"""When a run evaluates its tasks, and what by: an `Evaluator`, given or made of what was given."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from longtail.tasks import Evaluator, TaskSequence

Function = Callable[[nn.Module, TaskSequence, range], Any]


def due(after: int, total: int, every: int = 0, at: Collection[int] = ()) -> bool:
    """Whether all seen tasks are evaluated after task ``after`` (from zero) of ``total``.

    Always after the last; after every ``every`` tasks (0: no); and where ``at`` lists how many
    tasks have been learned.
    """
    learned = after + 1
    return learned == total or (every > 0 and learned % every == 0) or learned in at


class _FunctionEvaluator(Evaluator):
    """A function `evaluate(model, sequence, tasks)`; all else is as usual."""

    captured = False  # nobody knows what it wants of the model

    def __init__(self, function: Function) -> None:
        self.function = function

    def __call__(self, model: nn.Module, sequence: TaskSequence, tasks: range) -> Any:
        return self.function(model, sequence, tasks)


def as_evaluator(evaluate: Evaluator | Function | bool | None) -> Evaluator | None:
    """An `Evaluator` as it is, a function as one, the usual one for None; None for False."""
    if evaluate is None or evaluate is True:
        return Evaluator()
    if evaluate is False:
        return None
    return evaluate if isinstance(evaluate, Evaluator) else _FunctionEvaluator(evaluate)


class Validation(NamedTuple):
    """Scores on validation examples, each float64 ``[*lead]``."""

    mean: np.ndarray  # over the examples of all tasks
    tasks: dict[int, np.ndarray]  # of each task that has any


def evaluate_validation(
    model: nn.Module, sequence: TaskSequence, evaluator: Evaluator
) -> Validation | None:
    """Scores on all tasks' validation examples; None without any."""
    tasks = [i for i in range(len(sequence)) if sequence.validation(i)]
    if not tasks:
        return None
    scores = np.asarray(evaluator.validations(model, sequence, tasks), dtype=np.float64)
    weights = [evaluator.validation_size(sequence, i) for i in tasks]
    mean = np.average(scores, axis=0, weights=weights)
    return Validation(mean, dict(zip(tasks, scores, strict=True)))
