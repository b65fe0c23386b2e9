"""Finding an optimizer inside the wrappers that training frameworks put around it."""

from collections.abc import Iterator
from typing import Any

from longtail.optim.continual_adam import ContinualAdam

# Accelerate, DeepSpeed, apex and HF Trainer say `optimizer`, Fabric and others keep it private,
# ZeroRedundancyOptimizer says `optim`.
_INSIDE = ("optimizer", "_optimizer", "optim")


def layers_of(optimizer: Any) -> Iterator[Any]:
    """The wrapper, what it holds, and so on to the innermost optimizer."""
    inner: Any = optimizer
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = next((x for a in _INSIDE if (x := getattr(inner, a, None)) is not None), None)


def continual_adam_in(optimizer: Any) -> ContinualAdam | None:
    """The Continual Adam inside, or None.

    Some wrappers pass themselves off as the class they wrap while holding stale copies of its
    attributes, so the innermost one counts.
    """
    found = [layer for layer in layers_of(optimizer) if isinstance(layer, ContinualAdam)]
    return found[-1] if found else None


def required(optimizer: Any, what: str) -> ContinualAdam:
    """The Continual Adam inside; ``what`` says who asked, for the error where there is none."""
    found = continual_adam_in(optimizer)
    if found is None:
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise TypeError(f"{what} found no ContinualAdam or ContinualAdamW inside {kind}")
    return found
