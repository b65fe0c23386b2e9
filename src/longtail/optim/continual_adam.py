r"""Continual Adam (Algorithm 1 of the paper), laid out like ``torch/optim/adam.py``: the class, the
for-loop that is the ground truth, the same for lists of tensors, by kernel, and as a function.

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

from collections.abc import Callable, Iterable
from typing import Any, cast, overload

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _default_to_fused_or_foreach,
    _disable_dynamo_if_unsupported,
    _get_capturable_supported_devices,
    _get_value,
    _to_scalar,
    _use_grad_for_differentiable,
    _view_as_real,
)

from longtail.names import FirstMoment, PastDtype, SecondMoment
from longtail.optim import state as _state
from longtail.optim._torch import graph_capture_health_check, light_step, unmarked
from longtail.optim.kernels import GroupKernels, Kernels, uses_fused
from longtail.optim.past import check_past, read_past
from longtail.optim.state import Settings, Tensors, check_moments, is_averaged, state_dtype


class ContinualAdam(Optimizer):
    r"""Adam that carries the second moments of all earlier tasks, weighted by their number of
    steps.

    Call :meth:`end_task` after each task; nothing else differs from :class:`torch.optim.Adam`. A
    weight that mattered in earlier tasks (large past gradients) then moves slowly in later ones.
    Within a task

    .. math::
        \begin{aligned}
            m &= \beta_1 m + (1 - \beta_1) g, & v &= \beta_2 v + (1 - \beta_2) g^2 \\
            \hat m &= m / (1 - \beta_1^t), & \hat v &= v / (1 - \beta_2^t) \\
            v' &= (t \hat v + c v_c) / (t + c), &
            \theta &= \theta - (1 - \beta_3^t) \gamma \hat m / (\sqrt{v'} + \epsilon)
        \end{aligned}

    where t counts the steps of this task, c those of all earlier ones, and :math:`v_c` is their
    average second moment. :meth:`end_task` sets :math:`v_c = v'` and :math:`c = c + t`, and t, m
    and v start again from zero. Counts are kept per parameter, so a head that is trained in some
    tasks only has its own past.

    With ``beta3=0`` and no call of :meth:`end_task` this is :class:`torch.optim.Adam`, bit for bit
    (``fused=True`` up to the last digit, as torch's own fused step is to its loop).

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate; a tensor needs ``fused``, ``capturable`` or the for-loop.
        betas: decay of the first and second moment within a task.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        beta3: decay of the learning-rate adjustment :math:`1 - \beta_3^t`, which keeps the first
            steps of a task small; 0 switches it off.
        first_moment: what becomes of m at a boundary: ``"reset"`` starts it again from zero,
            ``"ema"`` keeps it (its bias correction restarts with the task), ``"task"`` averages
            it over tasks like v.
        second_moment: the same for v; ``"ema"`` also keeps its step count. ``"task_seen"`` is
            ``"task"`` where an earlier task has moved the coordinate (:math:`v_c > 0`) and Adam's
            :math:`\hat v` where none has, such as the embedding of a new word, whose step
            ``"task"`` multiplies by :math:`\sqrt{(t + c) / t}`. The paper's method is
            ``first_moment="reset"``, ``second_moment="task"``. Both may differ between parameter
            groups.
        past_dtype: how :math:`v_c` is kept: ``"float32"``, ``"bfloat16"`` or ``"uint8"``, one byte
            for its logarithm (``codes.py``), within 12% of it. The last two are rounded at random
            at a boundary, so that the average over many tasks goes on; see ``past.py``. Groups may
            differ.
        foreach: use the multi-tensor implementation; by default where torch would, on CUDA.
        maximize: maximize the objective.
        capturable: keep the step counts on the device, for CUDA graphs.
        differentiable: let autograd run through :meth:`step` and :meth:`end_task`.
        fused: one kernel for all parameters. By default on CUDA, when the parameters are
            floating, on one device, and Triton is there. On the CPU only when asked for, as it
            needs a C++ compiler, once.

    Example:
        >>> import torch
        >>> from longtail import ContinualAdam
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> opt = ContinualAdam([weight], lr=0.1)
        >>> for target in (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])):
        ...     for _ in range(100):
        ...         opt.zero_grad()
        ...         (weight - target).square().sum().backward()
        ...         opt.step()
        ...     opt.end_task()
        >>> opt.state[weight]["past_steps"]
        tensor(200.)

    Deviations from the paper:
        Decoupled weight decay is ``lr * weight_decay * p``, as in torch, and not ``weight_decay *
        p``; the learning-rate adjustment scales the Adam update only. The state of half-precision
        parameters is kept in float32. A parameter that took no step in a task keeps its past
        untouched.

    References:
        Continual Learning of Numerous Tasks from Long-tail Distributions,
        https://arxiv.org/abs/2404.02754

        Adam: A Method for Stochastic Optimization, https://arxiv.org/abs/1412.6980
    """

    _decoupled_weight_decay = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        beta3: float = 0.9,
        first_moment: FirstMoment = "reset",
        second_moment: SecondMoment = "task",
        past_dtype: PastDtype = "float32",
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "beta3": beta3,
            "eps": eps,
            "weight_decay": weight_decay,
            "first_moment": first_moment,
            "second_moment": second_moment,
            "past_dtype": past_dtype,
            "past_seed": 0,
            "past_copies": 1,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "tasks_seen": 0,
        }
        _check_settings(defaults)
        defaults["betas"] = tuple(map(_to_scalar, betas))
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        unmarked(super().add_param_group)(param_group)
        group = self.param_groups[-1]
        try:
            _check_settings(group)
            group["tasks_seen"] = _state.task_count(group)
        except (ValueError, RuntimeError, TypeError):
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__["_kernels"] = Kernels()
        for group in self.param_groups:
            _state.complete_group(group, self.defaults)

    def state_dict(self) -> dict[str, Any]:
        """As of any torch optimizer; see ``state.py`` for what is kept of a parameter."""
        return unmarked(super().state_dict)()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, ours or that of ``torch.optim.Adam`` / ``AdamW``.

        Where both sides know the names of their parameters (``model.named_parameters()``), each
        parameter gets the state of its name, whatever the order; names that differ are an error.
        Otherwise the order counts, as for any torch optimizer. Settings are the saved ones, but
        for ``past_dtype``, to which what was saved is converted; :func:`longtail.load_memory`
        leaves all of them alone.
        """
        with _state.undoing_casts(self):
            unmarked(super().load_state_dict)(state_dict)

    def __repr__(self) -> str:
        tasks = max((int(group["tasks_seen"]) for group in self.param_groups), default=0)
        steps = max((int(s.get("past_steps", 0)) for s in self.state.values()), default=0)
        lines = [f"{type(self).__name__} (", f"tasks seen: {tasks}", f"steps remembered: {steps}"]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            shown = {**group, "tasks_seen": int(group["tasks_seen"])}
            lines += [f"    {key}: {shown[key]}" for key in sorted(shown) if key != "params"]
        return "\n".join([*lines, ")"])

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tells GradScaler that `step` unscales gradients and skips on infinities by itself."""
        return all(map(uses_fused, self.param_groups))

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Make what is missing and fill the lists with the parameters that have a gradient.

        They are the lists of `Tensors` and come one by one because ``torch.compile`` calls this,
        instead of tracing it, and then looks into its arguments.
        """
        tensors = Tensors(*lists)
        has_complex = False
        on_device = group["capturable"] or uses_fused(group)
        past_first = group["first_moment"] == "task"
        _check_rate(group)
        check_moments(group)
        check_past(group)
        past_dtype = group["past_dtype"]
        for p in group["params"]:
            if p.grad is None:
                continue
            has_complex |= torch.is_complex(p)
            if p.grad.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            if group["fused"] and p.is_meta:
                raise RuntimeError(
                    "`fused=True` requires all the params to be floating point Tensors of "
                    f"supported devices: ['cuda', 'cpu'] but {p.dtype} and meta"
                )
            state = self.state[p]
            _state.fill(p, state, on_device=on_device, past_first=past_first, past_dtype=past_dtype)
            if group["differentiable"] and state["step"].requires_grad:
                raise RuntimeError(
                    "`requires_grad` is not supported for `step` in differentiable mode"
                )
            tensors.grads.append(p.grad)
            _state.append(tensors, p, state, past_first=past_first)
        return has_complex

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @light_step
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        graph_capture_health_check(self)

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        kernels = None if torch.compiler.is_compiling() else self._own_kernels()
        if kernels is not None and kernels.step_together(self):
            return loss
        for i, group in enumerate(self.param_groups):
            own, fused = None, None
            if kernels is not None:
                own = kernels.of(i)
                if own.sole is not None and own.sole.step_again(self, group):
                    continue
                fused = uses_fused(group) or group["fused"]

            tensors = Tensors([], [], [], [], [], [], [], [])
            has_complex = self._init_group(group, *tensors)
            beta1, beta2 = group["betas"]
            continual_adam(
                *tensors,
                has_complex=has_complex,
                beta1=beta1,
                beta2=beta2,
                beta3=group["beta3"],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                first_moment=group["first_moment"],
                second_moment=group["second_moment"],
                maximize=group["maximize"],
                foreach=group["foreach"],
                capturable=group["capturable"],
                differentiable=group["differentiable"],
                fused=fused,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
                decoupled_weight_decay=self._decoupled_weight_decay,
                kernels=own,
            )

        return loss

    def end_task(self) -> None:
        r"""End the current task: fold its moments into the past and start counting steps again.

        Call it once after the last step of each task. A parameter that took no step in the task
        keeps its past untouched; with no step taken anywhere nothing happens. All tensors are
        changed in place and, on a GPU, without waiting for it.
        """
        for group in self.param_groups:
            check_moments(group)
            check_past(group)
        kernels = self._own_kernels()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if kernels.end_task_together(self):
                return
            for i, group in enumerate(self.param_groups):
                own = kernels.of(i)
                if own.sole is not None and own.sole.end_task_again(self, group):
                    continue
                settings = Settings.of(group, decoupled_weight_decay=self._decoupled_weight_decay)
                took: list[Tensor | bool] = []
                for tensors, draws in _state.gather(self.state, group):
                    done = own.end_task(tensors, settings, draws) if uses_fused(group) else None
                    took.append(_state.fold(tensors, settings, draws) if done is None else done)
                _state.count_task(group, took)

    def _own_kernels(self) -> Kernels:
        """Made when first asked for: a wrapper may run our methods without our `__init__`."""
        kernels = self.__dict__.get("_kernels")
        if kernels is None:
            kernels = self.__dict__["_kernels"] = Kernels()
        return kernels


def _check_settings(group: dict[str, Any]) -> None:
    """Raise for the first bad value among a parameter group's settings, in torch's words."""
    _check_types(group)
    lr, betas = group["lr"], group["betas"]
    eager_foreach = group["foreach"] and not group["capturable"]
    if isinstance(lr, Tensor):
        if eager_foreach:
            raise ValueError(
                "lr as a Tensor is not supported for capturable=False and foreach=True"
            )
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not group["eps"] >= 0.0:
        raise ValueError(f"Invalid epsilon value: {group['eps']}")
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    if not group["weight_decay"] >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {group['weight_decay']}")
    if len(betas) != 2:
        raise ValueError(f"Invalid betas: {betas}, two are needed")
    if isinstance(betas[0], Tensor) != isinstance(betas[1], Tensor):
        raise ValueError("betas must be either both floats or both Tensors")
    for i, beta in enumerate(betas):
        if isinstance(beta, Tensor):
            if eager_foreach:
                raise ValueError(
                    f"betas[{i}] as a Tensor is not supported for capturable=False and foreach=True"
                )
            if beta.numel() != 1:
                raise ValueError(f"Tensor betas[{i}] must be 1-element")
    if isinstance(group["beta3"], Tensor) or not 0.0 <= group["beta3"] < 1.0:
        raise ValueError(f"Invalid beta3 value: {group['beta3']}")
    check_moments(group)
    check_past(group)
    if group["fused"]:
        if group["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if group["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


def _check_rate(group: dict[str, Any]) -> None:
    """Raise for a learning rate, set after the optimizer was made, that its steps cannot take."""
    if group["foreach"] and isinstance(group["lr"], Tensor) and not group["capturable"]:
        raise RuntimeError("lr as a Tensor is not supported for capturable=False and foreach=True")


def _check_types(group: dict[str, Any]) -> None:
    """A comparison would fail for these too, but without saying which setting it was."""
    betas = group["betas"]
    if isinstance(betas, str) or not isinstance(betas, Iterable):
        raise ValueError(f"Invalid betas: {betas!r}, two are needed")
    named = {name: group[name] for name in ("lr", "eps", "weight_decay", "beta3")}
    named |= {f"betas[{i}]": beta for i, beta in enumerate(betas)}
    for name, value in named.items():
        if not hasattr(value, "__float__"):  # numbers and tensors have it, text and None do not
            raise ValueError(f"Invalid {name} value: {value!r}, a number is needed")


def coefficients(t: Any, c: Any, settings: Settings) -> tuple[Any, Any, Any, Any, Any]:
    """The scalars of a step, for floats and tensors alike: step size, s, r of v_c, r of m_c, k.

    Written so that c = 0 and beta3 = 0 give torch's numbers bit for bit.
    """
    second_moment = settings.second_moment
    correction1 = 1 - settings.beta1**t
    correction2 = 1 - settings.beta2 ** (t + c if second_moment == "ema" else t)
    step_size = settings.lr * (1 - settings.beta3**t) / correction1
    share1 = share2 = unseen = None
    if settings.first_moment == "task":
        share1 = c * correction1 / t
        step_size = step_size * (t / (t + c))
    if is_averaged(second_moment):
        share2 = c * correction2 / t
        correction2 = correction2 * ((t + c) / t)
    if second_moment == "task_seen":
        unseen = (t + c) / t
    return step_size, correction2**0.5, share2, share1, unseen


def _single_tensor_continualadam(tensors: Tensors, settings: Settings) -> None:
    """The ground truth: every other implementation must give its result."""
    lr, beta1, beta2, weight_decay = (
        settings.lr,
        settings.beta1,
        settings.beta2,
        settings.weight_decay,
    )
    differentiable = settings.differentiable
    on_device = settings.capturable or differentiable

    for i, param in enumerate(tensors.params):
        step_t, past_steps = tensors.steps[i], tensors.past_steps[i]
        if settings.capturable and not torch.compiler.is_compiling():
            _check_capturable(param, step_t)
        step_t += 1

        # A half-precision parameter is updated in float32 and rounded once.
        dtype = state_dtype(param)
        value = param if dtype == param.dtype else param.to(dtype)
        grad = tensors.grads[i]
        grad = grad if grad.dtype == dtype else grad.to(dtype)
        exp_avg, exp_avg_sq = tensors.exp_avgs[i], tensors.exp_avg_sqs[i]
        past_sq = tensors.past_exp_avg_sqs[i]
        if is_averaged(settings.second_moment):
            past_sq = read_past(past_sq, dtype)
        past_avg = tensors.past_exp_avgs[i] if settings.first_moment == "task" else None
        grad = -grad if settings.maximize else grad

        if weight_decay != 0:
            if settings.decoupled_weight_decay:
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
            t, c = step_t, past_steps
            if differentiable:  # autograd may keep them, and they change in place
                t, c = t.clone(), c.clone()
        else:
            t, c = _get_value(step_t), _get_value(past_steps)
        step_size, scale, share2, share1, unseen = coefficients(t, c, settings)
        denom = _root(exp_avg_sq, past_sq, share2, unseen).div(scale).add_(settings.eps)
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


def _root(exp_avg_sq: Tensor, past_sq: Tensor, share: Any, unseen: Any) -> Tensor:
    """sqrt(v + r v_c); where v_c = 0, sqrt(k v) if k is given."""
    if share is None:
        return exp_avg_sq.sqrt()
    mixed = _add_scaled(exp_avg_sq, past_sq, share)
    if unseen is not None:
        mixed = torch.where(past_sq == 0, exp_avg_sq * unseen, mixed)
    return mixed.sqrt_()


def _add_scaled(base: Tensor, other: Tensor, factor: Any) -> Tensor:
    if isinstance(factor, Tensor):
        if factor.requires_grad:  # autograd keeps what a boundary then changes in place
            other = other.clone()
        return torch.addcmul(base, other, factor.to(device=base.device, dtype=base.dtype))
    return torch.add(base, other, alpha=factor)


def _check_capturable(param: Tensor, step: Tensor) -> None:
    supported = _get_capturable_supported_devices()
    if not (param.device.type == step.device.type and param.device.type in supported):
        raise AssertionError(
            f"If capturable=True, params and state_steps must be on supported devices: {supported}."
        )


def _multi_tensor_continualadam(tensors: Tensors, settings: Settings, *, has_complex: bool) -> None:
    """What `_single_tensor_continualadam` does, in an operation for all parameters at a time."""
    assert not settings.differentiable, "_foreach ops don't support autograd"
    capturable = settings.capturable
    named = (("lr", settings.lr), ("beta1", settings.beta1), ("beta2", settings.beta2))
    for name, value in named:
        if isinstance(value, Tensor) and not capturable:
            raise RuntimeError(
                f"{name} as a Tensor is not supported for capturable=False and foreach=True"
            )
    if capturable and not torch.compiler.is_compiling():
        for p, step in zip(tensors.params, tensors.steps, strict=True):
            _check_capturable(p, step)

    # Half-precision parameters need a float32 copy, for which the for-loop takes the least memory.
    half = [i for i, p in enumerate(tensors.params) if state_dtype(p) != p.dtype]
    if half:
        _single_tensor_continualadam(tensors.select(half), settings)
        full = [i for i, p in enumerate(tensors.params) if state_dtype(p) == p.dtype]
        if not full:
            return
        tensors = tensors.select(full)

    # Grouping wants lists of one length: the first moments stand in for a past that is not kept.
    past_exp_avgs = tensors.past_exp_avgs if settings.first_moment == "task" else tensors.exp_avgs
    # The same for second moments, and what is kept in fewer bytes is read.
    past_exp_avg_sqs = tensors.exp_avg_sqs
    if is_averaged(settings.second_moment):
        past_exp_avg_sqs = [
            read_past(past, v.dtype)
            for past, v in zip(tensors.past_exp_avg_sqs, tensors.exp_avg_sqs, strict=True)
        ]
    lists = [*tensors[:4], past_exp_avg_sqs, past_exp_avgs, *tensors[6:]]
    grouped = Optimizer._group_tensors_by_device_and_dtype(cast(Any, lists))
    for same, _ in grouped.values():
        alike = Tensors(*(list(cast(list[Tensor], xs)) for xs in same))
        _step_of_one_kind(alike, settings, has_complex=has_complex)


def _step_of_one_kind(tensors: Tensors, settings: Settings, *, has_complex: bool) -> None:
    """A step of tensors that share device and dtype; the lists are its own, to be changed."""
    p, g, m, v, v_c, m_c, steps, past = tensors
    lr, beta1, beta2, weight_decay = (
        settings.lr,
        settings.beta1,
        settings.beta2,
        settings.weight_decay,
    )
    if has_complex:
        _view_as_real(p, g, m, v, v_c, m_c)
    if settings.maximize:
        g = list(torch._foreach_neg(g))

    # On the CPU foreach is a loop; wrapping the 1 once is cheaper than in every turn.
    if not torch.compiler.is_compiling() and steps[0].is_cpu:
        torch._foreach_add_(steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)

    if weight_decay != 0:
        if settings.decoupled_weight_decay:
            torch._foreach_mul_(p, 1 - lr * weight_decay)
        elif settings.maximize:
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

    size, scale, share2, share1, unseen = _foreach_coefficients(steps, past, settings)
    if share2 is None:
        denom = list(torch._foreach_sqrt(v))
    else:
        denom = list(torch._foreach_mul(v_c, share2))
        torch._foreach_add_(denom, v)
        if unseen is not None:  # there is no foreach of `where`
            denom = [
                torch.where(before == 0, now * k, mixed)
                for before, now, k, mixed in zip(v_c, v, unseen, denom, strict=True)
            ]
        torch._foreach_sqrt_(denom)
    torch._foreach_div_(denom, cast(Any, scale))
    torch._foreach_add_(denom, settings.eps)
    numerator = m
    if share1 is not None:
        numerator = list(torch._foreach_mul(m_c, share1))
        torch._foreach_add_(numerator, m)
    assert size is not None
    if settings.capturable:
        torch._foreach_reciprocal_(denom)
        torch._foreach_mul_(denom, size)
        torch._foreach_addcmul_(p, numerator, denom, -1.0)
    else:
        torch._foreach_addcdiv_(p, numerator, denom, [-x for x in size])


def _foreach_coefficients(
    steps: list[Tensor], past_steps: list[Tensor], settings: Settings
) -> list[list[Any] | None]:
    """`coefficients` of each parameter: a list, or None, for each of them."""
    if settings.capturable:
        # One small vector instead of a kernel per parameter and operation.
        found = coefficients(torch.stack(steps), torch.stack(past_steps), settings)
        return [None if x is None else list(x.unbind()) for x in found]
    counts = [(_get_value(t), _get_value(c)) for t, c in zip(steps, past_steps, strict=True)]
    each = zip(*(coefficients(t, c, settings) for t, c in counts), strict=True)
    return [None if x[0] is None else list(x) for x in each]


def _fused_continualadam(
    tensors: Tensors,
    settings: Settings,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    *,
    kernels: GroupKernels,
) -> None:
    """One kernel for each device; parameters that no kernel takes go through the for-loop."""
    if settings.differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    left = kernels.step(tensors, settings, grad_scale, found_inf)
    if left and not (found_inf is not None and bool(found_inf)):
        rest = tensors.select(left)
        if grad_scale is not None:
            # A scale of 65536, where GradScaler starts, is infinite in float16.
            unscaled = [
                g.to(state_dtype(p)) / grad_scale.to(g.device)
                for p, g in zip(rest.params, rest.grads, strict=True)
            ]
            rest = rest._replace(grads=unscaled)
        _single_tensor_continualadam(rest, settings)


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
    kernels: GroupKernels | None = None,
    *,
    beta1: float | Tensor,
    beta2: float | Tensor,
    beta3: float,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
    first_moment: FirstMoment = "reset",
    second_moment: SecondMoment = "task",
) -> None:
    """Functional form of a step, with the arguments that torch gives those of its optimizers.

    ``past_exp_avgs`` may be empty without ``first_moment="task"``; ``kernels`` keeps what fused
    steps make ready for the next ones.
    """
    if fused is None and foreach is None:
        _, foreach = _default_to_fused_or_foreach(params, differentiable, use_fused=False)
        if foreach and isinstance(lr, Tensor) and not capturable:
            foreach = False
    if not params:
        return
    if not torch.compiler.is_compiling() and not all(isinstance(t, Tensor) for t in state_steps):
        raise RuntimeError("`state_steps` argument must contain a list of singleton tensors")

    tensors = Tensors(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        past_exp_avg_sqs,
        past_exp_avgs,
        state_steps,
        past_steps,
    )
    settings = Settings(
        lr=_to_scalar(lr),
        beta1=_to_scalar(beta1),
        beta2=_to_scalar(beta2),
        beta3=beta3,
        eps=eps,
        weight_decay=weight_decay,
        first_moment=first_moment,
        second_moment=second_moment,
        maximize=maximize,
        capturable=capturable,
        differentiable=differentiable,
        decoupled_weight_decay=decoupled_weight_decay,
    )
    if fused:
        own = GroupKernels() if kernels is None else kernels
        _fused_continualadam(tensors, settings, grad_scale, found_inf, kernels=own)
        return
    assert grad_scale is None
    assert found_inf is None
    if foreach:
        _multi_tensor_continualadam(tensors, settings, has_complex=has_complex)
    else:
        _single_tensor_continualadam(tensors, settings)
