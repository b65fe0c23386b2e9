"""One step of Continual Adam for lists of parameters; see ``steps.py`` for the equations."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, _get_value, _to_scalar, _view_as_real

from longtail.optim.state import state_dtype
from longtail.optim.steps import _single_tensor_continualadam, check_capturable, coefficients


def _multi_tensor_continualadam(
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
) -> None:
    """What `_single_tensor_continualadam` does, in an operation for all parameters at a time."""
    assert grad_scale is None
    assert found_inf is None
    assert not differentiable, "_foreach ops don't support autograd"
    for name, value in (("lr", lr), ("beta1", beta1), ("beta2", beta2)):
        if isinstance(value, Tensor) and not capturable:
            raise RuntimeError(
                f"{name} as a Tensor is not supported for capturable=False and foreach=True"
            )
    if capturable and not torch.compiler.is_compiling():
        for p, step in zip(params, state_steps, strict=True):
            check_capturable(p, step)
    lr, beta1, beta2 = _to_scalar(lr), _to_scalar(beta1), _to_scalar(beta2)
    past_first = first_moment == "task"
    lists = [
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        past_exp_avg_sqs,
        past_exp_avgs if past_first else exp_avgs,
        state_steps,
        past_steps,
    ]
    settings: dict[str, Any] = {
        "beta1": beta1,
        "beta2": beta2,
        "beta3": beta3,
        "lr": lr,
        "first_moment": first_moment,
        "second_moment": second_moment,
    }

    # Half-precision parameters need a float32 copy, for which the for-loop takes the least memory.
    half = [i for i, p in enumerate(params) if state_dtype(p) != p.dtype]
    if half:
        _single_tensor_continualadam(
            *cast(Any, [*([xs[i] for i in half] for xs in lists), None, None]),
            has_complex=False,
            weight_decay=weight_decay,
            eps=eps,
            maximize=maximize,
            capturable=capturable,
            differentiable=False,
            decoupled_weight_decay=decoupled_weight_decay,
            **settings,
        )
        full = [i for i, p in enumerate(params) if state_dtype(p) == p.dtype]
        lists = [[xs[i] for i in full] for xs in lists]
        if not full:
            return

    grouped = Optimizer._group_tensors_by_device_and_dtype(cast(Any, lists))
    for same, _ in grouped.values():
        p, g, m, v, v_c, m_c, steps, past = (list(cast(list[Tensor], x)) for x in same)
        if has_complex:
            _view_as_real(p, g, m, v, v_c, m_c)
        if maximize:
            g = list(torch._foreach_neg(g))

        # On the CPU foreach is a loop; wrapping the 1 once is cheaper than in every turn.
        if not torch.compiler.is_compiling() and steps[0].is_cpu:
            torch._foreach_add_(steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
        else:
            torch._foreach_add_(steps, 1)

        if weight_decay != 0:
            if decoupled_weight_decay:
                torch._foreach_mul_(p, 1 - lr * weight_decay)
            elif maximize:
                torch._foreach_add_(g, p, alpha=weight_decay)
            else:
                g = list(torch._foreach_add(g, p, alpha=weight_decay))

        weight1 = 1 - beta1
        if isinstance(weight1, Tensor):
            weight1 = weight1.to(device=m[0].device, non_blocking=True)
        torch._foreach_lerp_(m, g, cast(float, weight1))
        torch._foreach_mul_(v, beta2)
        if isinstance(beta2, Tensor):  # foreach_addcmul takes no tensor as its value
            torch._foreach_addcmul_(v, torch._foreach_mul(g, 1 - beta2), g, 1.0)
        else:
            torch._foreach_addcmul_(v, g, g, 1 - beta2)
        del g

        if capturable:
            # One small vector instead of a kernel per parameter and operation.
            found = coefficients(torch.stack(steps), torch.stack(past), **settings)
            size, scale, share2, share1, unseen = (
                None if x is None else list(x.unbind()) for x in found
            )
        else:
            counts = [(_get_value(t), _get_value(c)) for t, c in zip(steps, past, strict=True)]
            found = zip(*(coefficients(t, c, **settings) for t, c in counts), strict=True)
            size, scale, share2, share1, unseen = (None if x[0] is None else list(x) for x in found)

        if share2 is None:
            denom = list(torch._foreach_sqrt(v))
        else:
            denom = list(torch._foreach_mul(v_c, share2))
            torch._foreach_add_(denom, v)
            if unseen is not None:  # there is no foreach of `where`
                denom = [
                    torch.where(past == 0, now * k, mixed)
                    for past, now, k, mixed in zip(v_c, v, unseen, denom, strict=True)
                ]
            torch._foreach_sqrt_(denom)
        torch._foreach_div_(denom, cast(Any, scale))
        torch._foreach_add_(denom, eps)
        numerator = m
        if share1 is not None:
            numerator = list(torch._foreach_mul(m_c, share1))
            torch._foreach_add_(numerator, m)
        assert size is not None
        if capturable:
            torch._foreach_reciprocal_(denom)
            torch._foreach_mul_(denom, size)
            torch._foreach_addcmul_(p, numerator, denom, -1.0)
        else:
            torch._foreach_addcdiv_(p, numerator, denom, [-x for x in size])
