"""The wrapper that torch puts around every optimizer's ``step``, at a fiftieth of its price.

`Optimizer.profile_hook_step` runs the step's hooks and names the step to the profiler. Its range
costs more than the rest of a small model's step in Python; the range below has the same name and
costs next to nothing while no profiler runs. With hooks, or under ``torch.compile``, torch's own
wrapper does the work.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def light_step(step: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap ``step`` as `Optimizer` would, which then leaves it alone."""
    heavy = Optimizer.profile_hook_step(step)
    named = getattr(getattr(torch._C, "_profiler", None), "_RecordFunctionFast", None)

    @functools.wraps(step)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        self: Any = args[0]
        if named is None or torch.compiler.is_compiling() or _has_hooks(self):
            return heavy(*args, **kwargs)
        with named(f"Optimizer.step#{type(self).__name__}.step"):
            result = step(*args, **kwargs)
            self._optimizer_step_code()
            return result

    wrapper.hooked = True  # type: ignore[attr-defined]
    return wrapper


def _has_hooks(optimizer: Any) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )
