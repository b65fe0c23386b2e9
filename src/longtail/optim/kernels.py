"""Which fused implementation a parameter gets: Triton on CUDA, compiled C++ on the CPU, or none."""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from longtail.optim.state import Boundary, fold, is_plain, state_dtype
from longtail.optim.steps import _single_tensor_continualadam


def fused_cuda_module() -> ModuleType | None:
    """The Triton implementation, imported when first needed; None where there is no Triton."""
    try:
        return importlib.import_module("longtail.optim.cuda.step")
    except ImportError:
        return None


def uses_fused(group: dict[str, Any]) -> bool:
    """Whether the group asks for ``fused``, or leaves it open and everything speaks for it."""
    if group["fused"] is not None or group["foreach"] is not None or group["differentiable"]:
        return bool(group["fused"])
    params = group["params"]
    if not params or not params[0].is_cuda or torch.compiler.is_compiling():
        return False
    device = params[0].device
    if not all(is_plain(p) and p.device == device and p.is_floating_point() for p in params):
        return False
    module = fused_cuda_module()
    return module is not None and module.available(params)


def _fused_continualadam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    *,
    has_complex: bool,
    beta1: float | Tensor,
    beta2: float | Tensor,
    beta3: float,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    first_moment: str,
    second_moment: str,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    decoupled_weight_decay: bool,
    plan_cache: dict[str, Any] | None = None,
) -> None:
    """One kernel for each device; parameters that no kernel takes go through the for-loop."""
    if differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    cache = {} if plan_cache is None else plan_cache
    lists = (
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        past_exp_avg_sqs,
        past_exp_avgs,
        state_steps,
        past_steps,
    )
    settings: dict[str, Any] = {
        "beta1": beta1,
        "beta2": beta2,
        "beta3": beta3,
        "lr": lr,
        "weight_decay": weight_decay,
        "eps": eps,
        "first_moment": first_moment,
        "second_moment": second_moment,
        "maximize": maximize,
    }
    devices: dict[torch.device, list[int]] = {}
    for i, p in enumerate(params):
        devices.setdefault(p.device, []).append(i)

    left: list[int] = []
    for device, indices in devices.items():
        alone = len(devices) == 1
        chosen = lists if alone else _select(lists, indices)
        device_cache = cache if alone else cache.setdefault(str(device), {})
        module = _module_for(device, chosen[0])
        if module is None:
            left += indices
            continue
        rest = module.step_(
            device_cache,
            *chosen,
            grad_scale=_on(grad_scale, device),
            found_inf=_on(found_inf, device),
            decoupled=decoupled_weight_decay,
            **settings,
        )
        left += [indices[i] for i in rest or ()]
        if alone and not rest:
            # From now on these may do without the lists, if they find all as it was.
            fast = _fast_module_for(device)
            cache["fast"] = fast.fast_step
            cache["fast_end_task"] = fast.fast_end_task
            cache["fast_steps"] = getattr(fast, "fast_steps", None)
            cache["fast_end_tasks"] = getattr(fast, "fast_end_tasks", None)

    if left and not (found_inf is not None and bool(found_inf)):
        chosen = _select(lists, left)
        unscaled = chosen[1]
        if grad_scale is not None:
            # A scale of 65536, where GradScaler starts, is infinite in float16.
            unscaled = [
                g.to(state_dtype(p)) / grad_scale.to(g.device)
                for p, g in zip(chosen[0], unscaled, strict=True)
            ]
        _single_tensor_continualadam(
            chosen[0],
            unscaled,
            chosen[2],
            chosen[3],
            chosen[4],
            chosen[5],
            chosen[6],
            chosen[7],
            None,
            None,
            has_complex=has_complex,
            capturable=capturable,
            differentiable=False,
            decoupled_weight_decay=decoupled_weight_decay,
            **settings,
        )


def step_together(optimizer: Any) -> bool:
    """Step all groups in one call; False, with nothing done, if each must be stepped on its own."""
    return _together(optimizer, "fast_steps")


def end_tasks_together(optimizer: Any) -> bool:
    """End the task of all groups in one call; False, with nothing done, if that cannot be."""
    return _together(optimizer, "fast_end_tasks")


def _together(optimizer: Any, name: str) -> bool:
    groups = optimizer.param_groups
    if len(groups) < 2:
        return False
    fast = optimizer._plan_cache(groups[0]).get(name)
    return fast is not None and fast(optimizer, optimizer._plan_cache(None))


def end_task_of(group: dict[str, Any], cache: dict[str, Any], lists: Boundary) -> Tensor | bool:
    """End a task of a group's parameters, by kernel where it can be; whether a step was taken."""
    beta1, beta2 = group["betas"]
    settings = {
        "beta1": beta1,
        "beta2": beta2,
        "first_moment": group["first_moment"],
        "second_moment": group["second_moment"],
    }
    took = _fused_end_task(cache, lists, settings) if uses_fused(group) else None
    return fold(lists, **settings) if took is None else took


def _fused_end_task(
    cache: dict[str, Any], lists: Boundary, settings: dict[str, Any]
) -> Tensor | bool | None:
    """End a task by kernel; whether a step had been taken, or None if nothing could be done."""
    module = _module_for(lists.state_steps[0].device, lists.exp_avgs)
    if module is None or not all(is_plain(x) for x in lists.exp_avgs):
        return None
    if lists.state_steps[0].is_cuda:
        took = torch.stack(lists.state_steps).amax() > 0
        module.end_task_(cache, *lists, **settings)
        return took
    return module.end_task_(*lists, **settings)


def _module_for(device: torch.device, params: list[Tensor]) -> ModuleType | None:
    if device.type == "cuda":
        module = fused_cuda_module()
        return module if module is not None and module.available(params) else None
    if device.type == "cpu":
        return importlib.import_module("longtail.optim.cpu.step")
    return None


def _fast_module_for(device: torch.device) -> ModuleType:
    name = "cuda.fast" if device.type == "cuda" else "cpu.plan"
    return importlib.import_module(f"longtail.optim.{name}")


def _on(scalar: Tensor | None, device: torch.device) -> Tensor | None:
    return None if scalar is None else scalar.to(device, non_blocking=True)


def _select(lists: tuple[list[Tensor], ...], indices: list[int]) -> tuple[list[Tensor], ...]:
    return tuple([xs[i] for i in indices] if xs else [] for xs in lists)
