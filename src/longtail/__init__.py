"""Continual learning over thousands of tasks whose sizes follow a long tail."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing, which would be nearly all of the time this import takes
if TYPE_CHECKING:
    from typing import Any

    from longtail.memory import load_memory, prime, save_memory
    from longtail.names import __version__ as __version__
    from longtail.optim import ContinualAdam, ContinualAdamW, TaskAverage, end_task, reset

__all__ = [
    "ContinualAdam",
    "ContinualAdamW",
    "TaskAverage",
    "end_task",
    "load_memory",
    "prime",
    "reset",
    "save_memory",
]


def __getattr__(name: str) -> Any:
    """The public names, loaded at first use: `longtail --help` should not wait for torch."""
    if name == "__version__":
        from longtail.names import __version__

        return __version__
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longtail import memory, optim

    return getattr(memory if name in memory.__all__ else optim, name)
