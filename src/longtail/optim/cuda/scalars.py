"""The scalars and flags of the fused kernels, from an optimizer's settings."""

import ctypes
import functools
import math
from typing import Any

from torch import Tensor

from longtail.optim.state import is_averaged

_LOG2_OF_ZERO = -1e4  # 2 ** (_LOG2_OF_ZERO * t) is 0, and 0 * it is not NaN


def step_floats(
    lr: Any, weight_decay: float, eps: float, betas: tuple[Any, Any], beta3: float
) -> tuple[float, ...]:
    """Each as two float32, whose sum is good for float64; without an lr that is on the device."""
    rate = 0.0 if isinstance(lr, Tensor) and lr.is_cuda else float(lr)
    beta1, beta2 = map(float, betas)
    return (
        *_split(rate),
        *_split(weight_decay),
        *_split(eps),
        *_split(beta1),
        *_split(1 - beta1),
        *_split(beta2),
        *_split(1 - beta2),
        *_split_log2(beta1),
        *_split_log2(beta2),
        *_split_log2(beta3),
    )


def step_policy(
    first_moment: str, second_moment: str, weight_decay: float, decoupled: bool, maximize: bool
) -> tuple[Any, ...]:
    """FIRST, SECOND, SEEN, CARRY, DECAY and MAXIMIZE of the step kernel."""
    decay = 0 if weight_decay == 0 else 2 if decoupled else 1
    return (
        first_moment == "task",
        is_averaged(second_moment),
        second_moment == "task_seen",
        second_moment == "ema",
        decay,
        bool(maximize),
    )


def end_floats(beta1: Any, beta2: Any) -> tuple[float, ...]:
    return (*_split_log2(float(beta1)), *_split_log2(float(beta2)))


def end_policy(first_moment: str, second_moment: str) -> tuple[bool, ...]:
    """FIRST, SECOND, ZERO_FIRST and ZERO_SECOND of the boundary kernel."""
    return (
        first_moment == "task",
        is_averaged(second_moment),
        first_moment != "ema",
        second_moment != "ema",
    )


def end_rules(first_moment: str, second_moment: str) -> tuple[float, float]:
    """What becomes of each moment in `end_groups_kernel`: 0 kept, 1 set to zero, 2 averaged."""
    moments = (first_moment, second_moment)
    first, second = (2.0 if is_averaged(x) else 0.0 if x == "ema" else 1.0 for x in moments)
    return first, second


@functools.lru_cache(maxsize=1024)
def _split(x: float) -> tuple[float, float]:
    high = ctypes.c_float(x).value
    return high, x - high


@functools.lru_cache(maxsize=1024)
def _split_log2(beta: float) -> tuple[float, float]:
    return _split(math.log2(beta) if beta > 0 else _LOG2_OF_ZERO)
