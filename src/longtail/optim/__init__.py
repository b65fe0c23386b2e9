"""Continual Adam and AdamW: Adam that keeps what earlier tasks knew about the second moments."""

from longtail.optim.average import TaskAverage
from longtail.optim.boundary import end_task, reset
from longtail.optim.continual_adam import ContinualAdam, ContinualAdamW

__all__ = [
    "ContinualAdam",
    "ContinualAdamW",
    "TaskAverage",
    "end_task",
    "reset",
]
