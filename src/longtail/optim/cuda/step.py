"""Continual Adam on CUDA: one Triton launch for all parameters of a group, and one for a boundary.

`step_` and `end_task_` take the lists that every implementation takes; `fast_step` and
`fast_end_task` do without making them. Any mix of float dtypes and layouts is taken: tensors of
other dtypes are another launch, and a tensor that is not one block of memory like its state (a
slice, an expanded gradient) is copied to one and back. Triton is imported at the first launch.
"""

import functools
import importlib.util
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from longtail.optim.cuda.fast import fast_end_task, fast_step
from longtail.optim.cuda.launch import current_stream
from longtail.optim.cuda.layout import DTYPES, flat, write_back
from longtail.optim.cuda.plan import Kind, Plan, Tensors
from longtail.optim.cuda.scalars import end_floats, end_policy, step_floats, step_policy
from longtail.optim.state import is_averaged, is_plain

__all__ = ["available", "end_task_", "fast_end_task", "fast_step", "step_"]

_KEPT_PLANS = 8


def available(params: Sequence[Tensor]) -> bool:
    """Whether the kernels can take these parameters on this machine."""
    if not params or not params[0].is_cuda or not _triton_works():
        return False
    device = params[0].device
    return all(is_plain(p) and p.dtype in DTYPES and p.device == device for p in params)


@functools.cache
def _triton_works() -> bool:
    if torch.version.hip or importlib.util.find_spec("triton") is None:
        return False
    try:
        # Builds Triton's own helper, which fails without a C compiler or Python's headers.
        from triton.runtime import driver

        return driver.active.get_current_target().arch >= 80
    except Exception:
        return False


def step_(
    plan_cache: dict[Any, Any],
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
    *,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    lr: float | Tensor,
    beta1: float | Tensor,
    beta2: float | Tensor,
    beta3: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    first_moment: str,
    second_moment: str,
) -> None:
    """One step of all parameters, which share a device; counts the step, unless ``found_inf``."""
    if not params:
        return
    members = _members(
        params,
        exp_avgs,
        exp_avg_sqs,
        past_exp_avg_sqs if is_averaged(second_moment) else [],
        past_exp_avgs if first_moment == "task" else [],
        state_steps,
        past_steps,
    )
    pairs = [flat(x, g) for x, g in zip(members, grads, strict=True)]
    used = [x for x, _ in pairs]
    plan = _plan(plan_cache, used, [g.dtype for _, g in pairs])
    plan.step(
        tuple(g.data_ptr() or 1 for _, g in pairs),
        (lr if isinstance(lr, Tensor) and lr.is_cuda else None, grad_scale, found_inf),
        step_floats(lr, weight_decay, eps, (beta1, beta2), beta3),
        step_policy(first_moment, second_moment, weight_decay, decoupled, maximize),
    )
    for original, copy in zip(members, used, strict=True):
        write_back(original, copy)
    increment_version(params)


def end_task_(
    plan_cache: dict[Any, Any],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
    *,
    beta1: float | Tensor,
    beta2: float | Tensor,
    first_moment: str,
    second_moment: str,
) -> None:
    """Fold the moments into the past and count anew; nothing happens where no step was taken."""
    if not exp_avgs:
        return
    members = _members(
        repeat(None, len(exp_avgs)),
        exp_avgs,
        exp_avg_sqs,
        past_exp_avg_sqs if is_averaged(second_moment) else [],
        past_exp_avgs if first_moment == "task" else [],
        state_steps,
        past_steps,
    )
    used = [flat(x, x.exp_avg)[0] for x in members]
    plan = _plan(plan_cache, used, [x.exp_avg.dtype for x in used])
    plan.end_task(None, end_floats(beta1, beta2), end_policy(first_moment, second_moment))
    for original, copy in zip(members, used, strict=True):
        write_back(original, copy)


def _members(
    params: Iterable[Tensor | None],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
) -> list[Tensors]:
    n = len(exp_avgs)
    return [
        Tensors(*x)
        for x in zip(
            params,
            exp_avgs,
            exp_avg_sqs,
            past_exp_avg_sqs or repeat(None, n),
            past_exp_avgs or repeat(None, n),
            state_steps,
            past_steps,
            strict=True,
        )
    ]


def _plan(cache: dict[Any, Any], members: list[Tensors], grads: list[torch.dtype]) -> Plan:
    """The plan for these tensors on the current stream, made anew unless it is a recent one."""
    stream = current_stream(members[0].exp_avg.device)
    kinds = [
        Kind(x.exp_avg.dtype if x.param is None else x.param.dtype, grad, x.exp_avg.dtype)
        for x, grad in zip(members, grads, strict=True)
    ]
    addresses = tuple(0 if x is None else x.data_ptr() for member in members for x in member)
    key = (stream, addresses, tuple(kinds), tuple(x.exp_avg.numel() for x in members))
    plans: dict[Any, Plan] = cache.setdefault("plans", {})
    plan = plans.pop(key, None) or Plan(members, kinds)
    plans[key] = plan
    if len(plans) > _KEPT_PLANS:
        plans.pop(next(iter(plans)))
    return plan
