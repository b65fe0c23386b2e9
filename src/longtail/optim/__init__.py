"""Continual Adam and AdamW: Adam that keeps what earlier tasks knew about the second moments."""

from longtail.optim.average import TaskAverage
from longtail.optim.boundary import end_task, reset
from longtail.optim.continual_adam import ContinualAdam
from longtail.optim.continual_adamw import ContinualAdamW
from longtail.optim.memory import MemoryReport, load_memory, save_memory
from longtail.optim.prime import prime

__all__ = [
    "ContinualAdam",
    "ContinualAdamW",
    "MemoryReport",
    "TaskAverage",
    "end_task",
    "load_memory",
    "prime",
    "reset",
    "save_memory",
]
