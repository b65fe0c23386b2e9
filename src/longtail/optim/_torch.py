"""The wrappers that torch puts around an optimizer's methods, at a fiftieth of their price.

`Optimizer.profile_hook_step` runs the step's hooks and names the step to the profiler. Its range
costs more than the rest of a small model's step in Python; the range below has the same name and
costs next to nothing while no profiler runs. With hooks, or under ``torch.compile``, torch's own
wrapper does the work.

Other methods are marked as not to be compiled. The mark's first use imports the whole compiler,
which takes seconds, and while nobody has imported it there is nothing to keep it from.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, _compile
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Renamed in torch 2.12.
_health_check: Callable[[Optimizer], None] = getattr(
    Optimizer, "_accelerator_graph_capture_health_check", None
) or getattr(Optimizer, "_cuda_graph_capture_health_check")  # noqa: B009
_capturable = itemgetter("capturable")
_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def _version_by_content(entries: dict[Any, Any]) -> tuple[int, ...]:
    return tuple(map(id, entries.values()))


# A number that changes with every assignment to an entry of the dictionary, in C.
dict_version: Callable[[dict[Any, Any]], Any] = getattr(
    _guards, "dict_version", _version_by_content
)


def alike(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """A test of as many tensors: have they the types, dtypes, devices and layouts of these?

    One call in C of what guards compiled functions; it keeps none of them alive. Tensors among
    which one is there twice are never alike.
    """
    try:
        return _guards.TensorGuards(
            *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
    except (AttributeError, TypeError):  # it is private
        layouts = list(map(_layout, tensors))
        return lambda *others: list(map(_layout, others)) == layouts


def _layout(x: Tensor | None) -> tuple[Any, ...] | None:
    if x is None or x.layout is not torch.strided:
        return None
    return type(x), x.dtype, x.device, x.shape, x.stride(), x.is_neg()


def graph_capture_health_check(optimizer: Optimizer) -> None:
    """What torch does at a step: an error, or a warning, where ``capturable`` and a capture differ.

    Its own, which asks for the accelerator and its stream, takes a tenth of a small model's step.
    """
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if capturing or torch.version.xpu or all(map(_capturable, optimizer.param_groups)):
        _health_check(optimizer)


def light_step(step: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap ``step``, on which is torch's `_use_grad_for_differentiable`, as `Optimizer` would.

    `Optimizer` then leaves it alone.
    """
    heavy = Optimizer.profile_hook_step(step)
    plain: Callable[_P, _R] = step.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    named = getattr(getattr(torch._C, "_profiler", None), "_RecordFunctionFast", None)

    @functools.wraps(step)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        self: Any = args[0]
        hooks = (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )
        if named is None or torch.compiler.is_compiling() or hooks:
            return heavy(*args, **kwargs)
        with named(f"Optimizer.step#{type(self).__name__}.step"):
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                result = plain(*args, **kwargs)
            self._optimizer_step_code()
            return result

    wrapper.hooked = True  # type: ignore[attr-defined]
    return wrapper


def unmarked(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """A bound method without torch's mark against compiling it, as long as nothing compiles."""
    code = getattr(method, "__code__", None)
    if "torch._dynamo" in sys.modules or code is None or code.co_filename != _compile.__file__:
        return method
    return method.__wrapped__.__get__(method.__self__)  # pyright: ignore
