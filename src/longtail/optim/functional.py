"""A step of Continual Adam as a function of lists of tensors, as torch has it of its optimizers."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _default_to_fused_or_foreach, _disable_dynamo_if_unsupported

from longtail.optim.kernels import _fused_continualadam
from longtail.optim.steps import _single_tensor_continualadam
from longtail.optim.steps_foreach import _multi_tensor_continualadam


@_disable_dynamo_if_unsupported()
def continual_adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    decoupled_weight_decay: bool = False,
    plan_cache: dict[str, Any] | None = None,
    *,
    beta1: float | Tensor,
    beta2: float | Tensor,
    beta3: float,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
    first_moment: str = "reset",
    second_moment: str = "task",
) -> None:
    """Functional form of a step; ``past_exp_avgs`` may be empty without ``first_moment="task"``."""
    if fused is None and foreach is None:
        _, foreach = _default_to_fused_or_foreach(params, differentiable, use_fused=False)
        if foreach and isinstance(lr, Tensor) and not capturable:
            foreach = False
    if not params:
        return
    if not torch.compiler.is_compiling() and not all(isinstance(t, Tensor) for t in state_steps):
        raise RuntimeError("`state_steps` argument must contain a list of singleton tensors")

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
        "has_complex": has_complex,
        "beta1": beta1,
        "beta2": beta2,
        "beta3": beta3,
        "lr": lr,
        "weight_decay": weight_decay,
        "eps": eps,
        "first_moment": first_moment,
        "second_moment": second_moment,
        "maximize": maximize,
        "capturable": capturable,
        "differentiable": differentiable,
        "decoupled_weight_decay": decoupled_weight_decay,
    }
    if fused:
        _fused_continualadam(*lists, grad_scale, found_inf, plan_cache=plan_cache, **settings)
    elif foreach:
        _multi_tensor_continualadam(*lists, grad_scale, found_inf, **settings)
    else:
        _single_tensor_continualadam(*lists, grad_scale, found_inf, **settings)
