r"""The step in torch's own operations: the for-loop that is the ground truth, and foreach.

Every other implementation must give what `_single_tensor_continualadam` gives, which is the
equation of ``continual_adam.py`` but for one thing: :math:`v'` is never formed. With

.. math::
    r = c (1 - \beta_2^t) / t, \qquad s^2 = (1 - \beta_2^t) (t + c) / t, \qquad
    \sqrt{v'} = \sqrt{v + r v_c} / s

a step for c = 0 is, operation by operation, what torch computes.

``second_moment="task_seen"`` leaves coordinates that no earlier task has moved (v_c = 0) out of the
average: there v' is Adam's :math:`\hat v`. With k = (t + c) / t that is sqrt(k v) / s, so one s
serves all coordinates. Algorithm 1 itself averages the zero in, which multiplies the step of such a
coordinate by sqrt(k): by 686 in the first step after c = 470,000, of which 1 - beta3 leaves 69.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    _default_to_fused_or_foreach,
    _get_capturable_supported_devices,
    _get_value,
    _view_as_real,
)

from longtail.optim.past import read_past
from longtail.optim.state import Settings, Tensors, is_averaged, state_dtype


def step(tensors: Tensors, settings: Settings, foreach: bool | None = None) -> None:
    """Step the tensors of a group by foreach, or by the for-loop where that is not wanted."""
    if not tensors.params:
        return
    counts_on_device = not tensors.steps[0].is_cpu
    if torch.compiler.is_compiling() and counts_on_device and not settings.capturable:
        _eager_step(tensors, settings, foreach)  # the counts are read on the host
    else:
        _step(tensors, settings, foreach)


def _step(tensors: Tensors, settings: Settings, foreach: bool | None) -> None:
    if foreach is None:
        _, foreach = _default_to_fused_or_foreach(
            tensors.params, settings.differentiable, use_fused=False
        )
        # Left open, a learning rate that foreach does not take is the for-loop's.
        if isinstance(settings.lr, Tensor) and not settings.capturable:
            foreach = False
    if foreach:
        _multi_tensor_continualadam(tensors, settings)
    else:
        _single_tensor_continualadam(tensors, settings)


_eager_step = torch._disable_dynamo(_step)


class Coefficients(NamedTuple):
    """The scalars of a step, or for foreach a list of each; None where a policy has no need."""

    step_size: Any  # of m, before it is divided by the root
    scale: Any  # s
    past_sq: Any  # r, what v_c weighs beside v
    past_avg: Any  # what m_c weighs beside m
    unseen: Any  # k


def coefficients(t: Any, c: Any, settings: Settings) -> Coefficients:
    """The scalars for t steps in this task and c before, floats or tensors alike.

    Written so that c = 0 and beta3 = 0 give torch's numbers bit for bit.
    """
    # A second moment that is never reset counts on, and so does its bias correction.
    steps_of_v = t + c if settings.second_moment == "ema" else t
    correction1 = 1 - settings.beta1**t
    correction2 = 1 - settings.beta2**steps_of_v
    step_size = settings.lr * (1 - settings.beta3**t) / correction1
    past_sq = past_avg = unseen = None
    if settings.first_moment == "task":
        past_avg = c * correction1 / t
        step_size = step_size * (t / (t + c))
    if is_averaged(settings.second_moment):
        past_sq = c * correction2 / t
        correction2 = correction2 * ((t + c) / t)
    if settings.second_moment == "task_seen":
        unseen = (t + c) / t
    return Coefficients(step_size, correction2**0.5, past_sq, past_avg, unseen)


def _single_tensor_continualadam(tensors: Tensors, settings: Settings) -> None:
    """The ground truth: every other implementation must give its result."""
    for row, grad in zip(tensors.rows(), tensors.grads, strict=True):
        param = cast(Tensor, row.param)
        if settings.capturable and not torch.compiler.is_compiling():
            _check_capturable(param, row.step)
        step_t = row.step
        step_t += 1

        # A half-precision parameter is updated in float32 and rounded once.
        dtype = state_dtype(param)
        value = param if dtype == param.dtype else param.to(dtype)
        grad = grad if grad.dtype == dtype else grad.to(dtype)
        grad = _with_decay(-grad if settings.maximize else grad, value, settings)
        exp_avg, exp_avg_sq, past_avg = row.exp_avg, row.exp_avg_sq, row.past_exp_avg
        past_sq = cast(Tensor, row.past_exp_avg_sq)
        if is_averaged(settings.second_moment):
            past_sq = read_past(past_sq, dtype)

        if torch.is_complex(value):
            value, grad, exp_avg, exp_avg_sq, past_sq = map(
                torch.view_as_real, (value, grad, exp_avg, exp_avg_sq, past_sq)
            )
            past_avg = None if past_avg is None else torch.view_as_real(past_avg)

        _average(exp_avg, exp_avg_sq, grad, settings)
        weights = _coefficients_of(step_t, row.past_steps, settings)
        root = _root(exp_avg_sq, past_sq, weights)
        denominator = root.div(weights.scale).add_(settings.eps)
        if weights.past_avg is not None:
            numerator = _add_scaled(exp_avg, cast(Tensor, past_avg), weights.past_avg)
        elif settings.differentiable:  # autograd keeps it, and m changes in place
            numerator = exp_avg.clone()
        else:
            numerator = exp_avg
        _move(value, numerator, denominator, weights.step_size, settings)
        if dtype != param.dtype:
            param.copy_(value)


def _with_decay(grad: Tensor, value: Tensor, settings: Settings) -> Tensor:
    """Shrink the parameter, or add the L2 penalty to the gradient that is returned."""
    weight_decay = settings.weight_decay
    if weight_decay == 0:
        return grad
    if settings.decoupled_weight_decay:
        value.mul_(1 - settings.lr * weight_decay)
        return grad
    if settings.differentiable and isinstance(weight_decay, Tensor):
        return grad.addcmul(value.clone(), weight_decay)
    return grad.add(value, alpha=cast(float, weight_decay))


def _average(exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, settings: Settings) -> None:
    """Lines 7 and 8 of the algorithm: the moments of this task."""
    beta2, weight1 = settings.beta2, 1 - settings.beta1
    if isinstance(weight1, Tensor):  # lerp_ wants it in the dtype and on the device of the tensor
        weight1 = weight1.to(device=exp_avg.device, dtype=exp_avg.dtype, non_blocking=True)
    exp_avg.lerp_(grad, weight1)
    if settings.differentiable and isinstance(beta2, Tensor) and beta2.requires_grad:
        # addcmul_ takes no tensor as its value
        exp_avg_sq.lerp_(grad.square(), (1 - beta2).to(exp_avg_sq.dtype))
    else:
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=cast(float, 1 - beta2))


def _coefficients_of(step_t: Tensor, past_steps: Tensor, settings: Settings) -> Coefficients:
    if settings.differentiable:  # autograd may keep them, and they change in place
        return coefficients(step_t.clone(), past_steps.clone(), settings)
    if settings.capturable:
        return coefficients(step_t, past_steps, settings)
    return coefficients(_get_value(step_t), _get_value(past_steps), settings)


def _root(exp_avg_sq: Tensor, past_sq: Tensor, weights: Coefficients) -> Tensor:
    """sqrt(v + r v_c), or sqrt(k v) where an unseen coordinate has v_c = 0."""
    if weights.past_sq is None:
        return exp_avg_sq.sqrt()
    mixed = _add_scaled(exp_avg_sq, past_sq, weights.past_sq)
    if weights.unseen is not None:
        mixed = torch.where(past_sq == 0, exp_avg_sq * weights.unseen, mixed)
    return mixed.sqrt_()


def _add_scaled(base: Tensor, other: Tensor, factor: Any) -> Tensor:
    if isinstance(factor, Tensor):
        if factor.requires_grad:  # autograd keeps what a boundary then changes in place
            other = other.clone()
        return torch.addcmul(base, other, factor.to(device=base.device, dtype=base.dtype))
    return torch.add(base, other, alpha=factor)


def _move(
    value: Tensor, numerator: Tensor, denominator: Tensor, step_size: Any, settings: Settings
) -> None:
    if isinstance(step_size, Tensor) and (settings.capturable or settings.differentiable):
        # torch divides by the step size, which is NaN for lr = 0
        size = step_size.to(device=value.device, dtype=value.dtype)
        value.addcmul_(numerator / denominator, -size)
    else:
        value.addcdiv_(numerator, denominator, value=cast(float, -step_size))


def _check_capturable(param: Tensor, step: Tensor) -> None:
    supported = _get_capturable_supported_devices()
    if not (param.device.type == step.device.type and param.device.type in supported):
        raise AssertionError(
            f"If capturable=True, params and state_steps must be on supported devices: {supported}."
        )


def _multi_tensor_continualadam(tensors: Tensors, settings: Settings) -> None:
    """What `_single_tensor_continualadam` does, in an operation for all parameters at a time."""
    assert not settings.differentiable, "_foreach ops don't support autograd"
    capturable = settings.capturable
    scalars = (("lr", settings.lr), ("beta1", settings.beta1), ("beta2", settings.beta2))
    for name, value in scalars:
        if isinstance(value, Tensor) and not capturable:
            raise RuntimeError(
                f"{name} as a Tensor is not supported for capturable=False and foreach=True"
            )
    if capturable and not torch.compiler.is_compiling():
        for p, step_t in zip(tensors.params, tensors.steps, strict=True):
            _check_capturable(p, step_t)

    # Half-precision parameters need a float32 copy, for which the for-loop takes the least memory.
    half = [i for i, p in enumerate(tensors.params) if state_dtype(p) != p.dtype]
    if half:
        _single_tensor_continualadam(tensors.select(half), settings)
        full = [i for i, p in enumerate(tensors.params) if state_dtype(p) == p.dtype]
        if not full:
            return
        tensors = tensors.select(full)

    # Grouping wants lists of one length: the first moments stand in for a past that is not kept.
    past_avgs = tensors.past_exp_avgs if settings.first_moment == "task" else tensors.exp_avgs
    # The same for second moments, and what is kept in fewer bytes is read.
    past_sqs = tensors.exp_avg_sqs
    if is_averaged(settings.second_moment):
        pairs = zip(tensors.past_exp_avg_sqs, tensors.exp_avg_sqs, strict=True)
        past_sqs = [read_past(past, v.dtype) for past, v in pairs]
    lists = [*tensors[:4], past_sqs, past_avgs, *tensors[6:]]
    grouped = Optimizer._group_tensors_by_device_and_dtype(cast(Any, lists))
    for same, _ in grouped.values():
        alike = Tensors(*(list(cast(list[Tensor], xs)) for xs in same))
        _step_of_one_kind(alike, settings)


def _step_of_one_kind(tensors: Tensors, settings: Settings) -> None:
    """A step of tensors that share device and dtype; the lists are its own, to be changed."""
    p, g, m, v, v_c, m_c, steps, past_steps = tensors
    if torch.is_complex(p[0]):
        _view_as_real(p, g, m, v, v_c, m_c)
    if settings.maximize:
        g = list(torch._foreach_neg(g))

    # On the CPU foreach is a loop; wrapping the 1 once is cheaper than in every turn.
    if not torch.compiler.is_compiling() and steps[0].is_cpu:
        torch._foreach_add_(steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)

    g = _foreach_with_decay(g, p, settings)
    _foreach_average(m, v, g, settings)
    del g

    weights = _foreach_coefficients(steps, past_steps, settings)
    denominator = _foreach_root(v, v_c, weights)
    torch._foreach_div_(denominator, weights.scale)
    torch._foreach_add_(denominator, settings.eps)
    numerator = m
    if weights.past_avg is not None:
        numerator = list(torch._foreach_mul(m_c, weights.past_avg))
        torch._foreach_add_(numerator, m)
    if settings.capturable:
        torch._foreach_reciprocal_(denominator)
        torch._foreach_mul_(denominator, weights.step_size)
        torch._foreach_addcmul_(p, numerator, denominator, -1.0)
    else:
        torch._foreach_addcdiv_(p, numerator, denominator, [-x for x in weights.step_size])


def _foreach_with_decay(g: list[Tensor], p: list[Tensor], settings: Settings) -> list[Tensor]:
    weight_decay = settings.weight_decay
    if weight_decay == 0:
        return g
    if settings.decoupled_weight_decay:
        torch._foreach_mul_(p, 1 - settings.lr * weight_decay)
        return g
    if settings.maximize:  # the gradients are copies by now
        torch._foreach_add_(g, p, alpha=weight_decay)
        return g
    return list(torch._foreach_add(g, p, alpha=weight_decay))


def _foreach_average(m: list[Tensor], v: list[Tensor], g: list[Tensor], settings: Settings) -> None:
    beta2, weight1 = settings.beta2, 1 - settings.beta1
    if isinstance(weight1, Tensor):
        weight1 = weight1.to(device=m[0].device, non_blocking=True)
    torch._foreach_lerp_(m, g, cast(float, weight1))
    torch._foreach_mul_(v, beta2)
    if isinstance(beta2, Tensor):  # foreach_addcmul takes no tensor as its value
        torch._foreach_addcmul_(v, torch._foreach_mul(g, 1 - beta2), g, 1.0)
    else:
        torch._foreach_addcmul_(v, g, g, 1 - beta2)


def _foreach_root(v: list[Tensor], v_c: list[Tensor], weights: Coefficients) -> list[Tensor]:
    if weights.past_sq is None:
        return list(torch._foreach_sqrt(v))
    mixed = list(torch._foreach_mul(v_c, weights.past_sq))
    torch._foreach_add_(mixed, v)
    if weights.unseen is not None:  # there is no foreach of `where`
        for i, k in enumerate(weights.unseen):
            mixed[i] = torch.where(v_c[i] == 0, v[i] * k, mixed[i])
    torch._foreach_sqrt_(mixed)
    return mixed


def _foreach_coefficients(
    steps: list[Tensor], past_steps: list[Tensor], settings: Settings
) -> Coefficients:
    """`coefficients` of each parameter: a list, or None, for each of them."""
    if settings.capturable:
        # One small vector instead of a kernel per parameter and operation.
        vectors = coefficients(torch.stack(steps), torch.stack(past_steps), settings)
        return Coefficients(*(None if x is None else list(x.unbind()) for x in vectors))
    each = []
    for t, c in zip(steps, past_steps, strict=True):
        each.append(coefficients(_get_value(t), _get_value(c), settings))
    columns = zip(*each, strict=True)
    return Coefficients(*(None if x[0] is None else list(x) for x in columns))
