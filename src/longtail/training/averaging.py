"""The average of the weights that a run keeps beside them, and its scores.

`train.average` says which: see `longtail.TaskAverage`. Parameters that hold one task after the
other (`TaskModel`) are left out, as their mean over tasks is nobody's; the average answers for each
task with that task's own. Scores of the average go into matrices of their own, "average" for the
main score and "average_<name>" for a further one.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from longtail.optim.average import TaskAverage
from longtail.replicas import task_parameters
from longtail.training.settings import TrainSettings

AVERAGE = "average"


def build_average(model: nn.Module, settings: TrainSettings) -> TaskAverage | None:
    """The average that the settings ask for; None where they ask for none."""
    if settings.average == "none":
        return None
    kind, decay = settings.average, settings.average_decay
    return TaskAverage(model, kind, decay, leave_out=task_parameters(model))


def of_average(scores: dict[str, Any], main: str) -> dict[str, Any]:
    """Scores, or anything else by their names, under the names of the average's."""
    return {AVERAGE if n == main else f"{AVERAGE}_{n}": value for n, value in scores.items()}
