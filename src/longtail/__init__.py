"""Continual learning over thousands of tasks whose sizes follow a long tail."""

from longtail.optim import ContinualAdam, ContinualAdamW, end_task

__all__ = ["ContinualAdam", "ContinualAdamW", "end_task"]
__version__ = "0.1.0"
