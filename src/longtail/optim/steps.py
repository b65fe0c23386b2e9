r"""One step of Continual Adam (Algorithm 1 of the paper), parameter by parameter.

Within a task, at its step t, with c steps in all earlier tasks (line numbers are the paper's):

.. math::
    m &= \beta_1 m + (1 - \beta_1) g                        & (7) \\
    v &= \beta_2 v + (1 - \beta_2) g^2                      & (8) \\
    \hat m &= m / (1 - \beta_1^t)                           & (9) \\
    \hat v &= v / (1 - \beta_2^t)                           & (10) \\
    v' &= (t \hat v + c v_c) / (t + c)                      & (11) \\
    \theta &= \theta - (1 - \beta_3^t) \gamma \hat m / (\sqrt{v'} + \epsilon)   & (12)

and at its end :math:`v_c = v'`, :math:`c = c + t`, :math:`t = m = v = 0` (14, 15, 3).

The code never forms :math:`v'`. With r = c (1 - beta2^t) / t and s^2 = (1 - beta2^t) (t + c) / t,

    sqrt(v') = sqrt(v + r v_c) / s

which for c = 0 is, operation by operation, what torch computes.

``second_moment="task_seen"`` leaves coordinates that no earlier task has moved (v_c = 0) out of the
average: there v' is Adam's :math:`\hat v`. With k = (t + c) / t that is sqrt(k v) / s, so one s
serves all coordinates. Algorithm 1 itself averages the zero in, which multiplies the step of such a
coordinate by sqrt(k): by 686 in the first step after c = 470,000, of which 1 - beta3 leaves 69.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import (
    _get_capturable_supported_devices,
    _get_value,
    _to_scalar,
)

from longtail.optim.state import is_averaged, state_dtype


def coefficients(
    t: Any,
    c: Any,
    *,
    beta1: Any,
    beta2: Any,
    beta3: float,
    lr: Any,
    first_moment: str,
    second_moment: str,
) -> tuple[Any, Any, Any, Any, Any]:
    """The scalars of a step, for floats and tensors alike: step size, s, r of v_c, r of m_c, k.

    Written so that c = 0 and beta3 = 0 give torch's numbers bit for bit.
    """
    correction1 = 1 - beta1**t
    correction2 = 1 - beta2 ** (t + c if second_moment == "ema" else t)
    step_size = lr * (1 - beta3**t) / correction1
    share1 = share2 = unseen = None
    if first_moment == "task":
        share1 = c * correction1 / t
        step_size = step_size * (t / (t + c))
    if is_averaged(second_moment):
        share2 = c * correction2 / t
        correction2 = correction2 * ((t + c) / t)
    if second_moment == "task_seen":
        unseen = (t + c) / t
    return step_size, correction2**0.5, share2, share1, unseen


def _single_tensor_continualadam(
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
    """The ground truth: every other implementation must give its result."""
    assert grad_scale is None
    assert found_inf is None
    lr, beta1, beta2 = _to_scalar(lr), _to_scalar(beta1), _to_scalar(beta2)
    on_device = capturable or differentiable

    for i, param in enumerate(params):
        if capturable and not torch.compiler.is_compiling():
            check_capturable(param, state_steps[i])
        step_t = state_steps[i]
        step_t += 1

        # A half-precision parameter is updated in float32 and rounded once.
        dtype = state_dtype(param)
        value = param if dtype == param.dtype else param.to(dtype)
        grad = grads[i] if grads[i].dtype == dtype else grads[i].to(dtype)
        exp_avg, exp_avg_sq, past_sq = exp_avgs[i], exp_avg_sqs[i], past_exp_avg_sqs[i]
        past_avg = past_exp_avgs[i] if first_moment == "task" else None
        grad = -grad if maximize else grad

        if weight_decay != 0:
            if decoupled_weight_decay:
                value.mul_(1 - lr * weight_decay)
            elif differentiable and isinstance(weight_decay, Tensor):
                grad = grad.addcmul(value.clone(), weight_decay)
            else:
                grad = grad.add(value, alpha=cast(float, weight_decay))

        if torch.is_complex(value):
            value, grad, exp_avg, exp_avg_sq, past_sq = map(
                torch.view_as_real, (value, grad, exp_avg, exp_avg_sq, past_sq)
            )
            past_avg = None if past_avg is None else torch.view_as_real(past_avg)

        # lerp_ wants its weight in the dtype and on the device of the tensor.
        weight1 = 1 - beta1
        if isinstance(weight1, Tensor):
            weight1 = weight1.to(device=exp_avg.device, dtype=exp_avg.dtype, non_blocking=True)
        exp_avg.lerp_(grad, weight1)
        if differentiable and isinstance(beta2, Tensor) and beta2.requires_grad:
            # addcmul_ takes no tensor as its value
            exp_avg_sq.lerp_(grad.square(), (1 - beta2).to(exp_avg_sq.dtype))
        else:
            exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=cast(float, 1 - beta2))

        if on_device:
            t, c = step_t, past_steps[i]
            if differentiable:  # autograd may keep them, and they change in place
                t, c = t.clone(), c.clone()
        else:
            t, c = _get_value(step_t), _get_value(past_steps[i])
        step_size, scale, share2, share1, unseen = coefficients(
            t,
            c,
            beta1=beta1,
            beta2=beta2,
            beta3=beta3,
            lr=lr,
            first_moment=first_moment,
            second_moment=second_moment,
        )
        if share2 is None:
            root = exp_avg_sq.sqrt()
        else:
            mixed = _add_scaled(exp_avg_sq, past_sq, share2)
            if unseen is not None:
                mixed = torch.where(past_sq == 0, exp_avg_sq * unseen, mixed)
            root = mixed.sqrt_()
            del mixed
        denom = (root / scale).add_(eps)
        del root
        if share1 is None:
            numerator = exp_avg.clone() if differentiable else exp_avg
        else:
            numerator = _add_scaled(exp_avg, cast(Tensor, past_avg), share1)
        if isinstance(step_size, Tensor) and on_device:
            # torch divides by the step size, which is NaN for lr = 0
            size = step_size.to(device=value.device, dtype=value.dtype)
            value.addcmul_(numerator / denom, -size)
        else:
            value.addcdiv_(numerator, denom, value=cast(float, -step_size))
        if dtype != param.dtype:
            param.copy_(value)


def _add_scaled(base: Tensor, other: Tensor, factor: Any) -> Tensor:
    if isinstance(factor, Tensor):
        if factor.requires_grad:  # autograd keeps what a boundary then changes in place
            other = other.clone()
        return torch.addcmul(base, other, factor.to(device=base.device, dtype=base.dtype))
    return torch.add(base, other, alpha=factor)


def check_capturable(param: Tensor, step: Tensor) -> None:
    supported = _get_capturable_supported_devices()
    if not (param.device.type == step.device.type and param.device.type in supported):
        raise AssertionError(
            f"If capturable=True, params and state_steps must be on supported devices: {supported}."
        )
