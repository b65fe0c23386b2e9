r"""Continual Adam and AdamW (Algorithm 1 of the paper), laid out like ``torch/optim/adam.py``.

Within a task, at its step t, with c steps in all earlier tasks (line numbers are the paper's):

.. math::
    m &= \beta_1 m + (1 - \beta_1) g                        & (7) \\
    v &= \beta_2 v + (1 - \beta_2) g^2                      & (8) \\
    \hat m &= m / (1 - \beta_1^t)                           & (9) \\
    \hat v &= v / (1 - \beta_2^t)                           & (10) \\
    v' &= (t \hat v + c v_c) / (t + c)                      & (11) \\
    \theta &= \theta - (1 - \beta_3^t) \gamma \hat m / (\sqrt{v'} + \epsilon)   & (12)

and at its end :math:`v_c = v'`, :math:`c = c + t`, :math:`t = m = v = 0` (14, 15, 3).

The arithmetic is in ``loops.py``, the ground truth, and in the kernels of ``cpu/`` and ``cuda/``;
``plan.py`` chooses the one for a parameter. What is kept of a parameter, and what becomes of it at
a boundary, is in ``state.py``.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _to_scalar, _use_grad_for_differentiable

from longtail.names import FirstMoment, PastDtype, SecondMoment
from longtail.optim import loops
from longtail.optim import state as _state
from longtail.optim._torch import graph_capture_health_check, light_step, unmarked
from longtail.optim.checkpoint import complete_group, undoing_casts
from longtail.optim.past import check_past
from longtail.optim.plan import Plan, uses_fused
from longtail.optim.state import Settings, Tensors, check_moments


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
        past_dtype: how :math:`v_c` is kept: ``"float32"``, or ``"uint8"``, one byte for its
            logarithm (``codes.py``), within 12% of it and rounded at random at a boundary, so that
            the average over many tasks goes on; see ``past.py``. Groups may differ.
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
        self.__dict__.pop("_plan", None)
        for group in self.param_groups:
            complete_group(group, self.defaults)

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
        with undoing_casts(self):
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

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> None:
        """Make what is missing and fill the lists with the parameters that have a gradient.

        They are the lists of `Tensors` and come one by one because ``torch.compile`` calls this,
        instead of tracing it, and then looks into its arguments.
        """
        tensors = Tensors(*lists)
        on_device = group["capturable"] or uses_fused(group)
        past_first, past_dtype = group["first_moment"] == "task", group["past_dtype"]
        _check_rate(group)
        check_moments(group)
        check_past(group)
        for p in group["params"]:
            if p.grad is None:
                continue
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

        others = self.param_groups
        if not torch.compiler.is_compiling():  # what is compiled is the loop or foreach
            plan = self._plan_for(step=True)
            if plan is not None:
                plan.step(self)
                others = [others[i] for i in plan.others]
        for group in others:
            tensors = Tensors.none()
            self._init_group(group, *tensors)
            settings = Settings.of(group, self._decoupled_weight_decay)
            loops.step(tensors, settings, group["foreach"])

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
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            others = self.param_groups
            plan = self._plan_for(step=False)
            if plan is not None:
                plan.end_task(self)
                others = [others[i] for i in plan.others]
            for group in others:
                settings = Settings.of(group, self._decoupled_weight_decay)
                _state.count_task(group, _state.fold_group(self.state, group, settings))

    def _plan_for(self, *, step: bool) -> Plan | None:
        """How fused groups are stepped: the plan of the last step, made anew if it is not true.

        A step first makes the state of parameters that have their first gradient.
        """
        plan = self.__dict__.get("_plan")  # a wrapper may run our methods without our `__init__`
        if plan is not None and plan.holds(self):
            return plan
        fused = [i for i, group in enumerate(self.param_groups) if uses_fused(group)]
        plan = None
        if fused:
            for i in fused if step else ():
                self._init_group(self.param_groups[i], *Tensors.none())
            plan = Plan(self, fused)
        self.__dict__["_plan"] = plan
        return plan


class ContinualAdamW(ContinualAdam):
    r"""Continual Adam with decoupled weight decay: :class:`torch.optim.AdamW` that forgets less.

    Like :class:`ContinualAdam`, but ``weight_decay`` shrinks the parameters instead of joining
    the gradient:

    .. math::
        \theta = (1 - \gamma \lambda) \theta - (1 - \beta_3^t) \gamma \hat m / (\sqrt{v'} +
        \epsilon)

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate, as for :class:`ContinualAdam`.
        betas: decay of the first and second moment within a task.
        eps: added to the denominator.
        weight_decay: decoupled decay :math:`\lambda`; each step multiplies by
            ``1 - lr * weight_decay``.

    ``beta3``, ``first_moment``, ``second_moment``, ``past_dtype``, ``foreach``, ``maximize``,
    ``capturable``, ``differentiable`` and ``fused`` are as for :class:`ContinualAdam`.

    Example:
        >>> import torch
        >>> from longtail import ContinualAdamW
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = ContinualAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        >>> for inputs in (torch.randn(8, 3), torch.randn(20, 3)):
        ...     for x in inputs:
        ...         opt.zero_grad()
        ...         model(x).square().sum().backward()
        ...         opt.step()
        ...     opt.end_task()
        >>> opt.param_groups[0]["tasks_seen"]
        tensor(2)

    Deviations from the paper:
        Algorithm 1 subtracts :math:`\lambda \theta`; here it is :math:`\gamma \lambda \theta`, as
        in torch, so that settings carry over. The rest as for :class:`ContinualAdam`.

    References:
        Continual Learning of Numerous Tasks from Long-tail Distributions,
        https://arxiv.org/abs/2404.02754

        Decoupled Weight Decay Regularization, https://arxiv.org/abs/1711.05101
    """

    _decoupled_weight_decay = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
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
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            beta3=beta3,
            first_moment=first_moment,
            second_moment=second_moment,
            past_dtype=past_dtype,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )


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
