"""Continual learning over thousands of tasks whose sizes follow a long tail."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.names import __version__ as __version__
    from longtail.optim import (
        ContinualAdam,
        ContinualAdamW,
        TaskAverage,
        end_task,
        load_memory,
        prime,
        reset,
        save_memory,
    )

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
    from longtail import optim

    return getattr(optim, name)
