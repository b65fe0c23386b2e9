"""``end_task(optimizer)`` for optimizers that sit inside the wrappers of training frameworks."""

from typing import Any

from longtail.optim.continual_adam import ContinualAdam

# Accelerate, DeepSpeed, apex and HF Trainer say `optimizer`, Fabric and others keep it private,
# ZeroRedundancyOptimizer says `optim`.
_INSIDE = ("optimizer", "_optimizer", "optim")


def end_task(optimizer: Any) -> None:
    """End a task on the Continual Adam found inside ``optimizer``.

    Wrappers such as Accelerate's forward ``step`` but no method they do not know, so
    ``optimizer.end_task()`` is out of reach. This follows ``.optimizer`` from wrapper to wrapper
    until it finds one of ours, and calls its :meth:`~longtail.ContinualAdam.end_task`.

    Args:
        optimizer: a :class:`~longtail.ContinualAdam`, or anything that holds one.

    Raises:
        TypeError: if there is none inside.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from longtail import ContinualAdam, end_task
        >>> wrapped = SimpleNamespace(optimizer=ContinualAdam(torch.nn.Linear(2, 1).parameters()))
        >>> end_task(wrapped)
    """
    found: ContinualAdam | None = None
    inner: Any = optimizer
    seen: set[int] = set()
    # Some wrappers pass themselves off as the class they wrap while holding stale copies of its
    # attributes, so the innermost one counts.
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        if isinstance(inner, ContinualAdam):
            found = inner
        inner = next((x for a in _INSIDE if (x := getattr(inner, a, None)) is not None), None)
    if found is None:
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise TypeError(f"end_task() found no ContinualAdam or ContinualAdamW inside {kind}")
    found.end_task()
