"""Continual Adam and AdamW, laid out like ``torch/optim/adam.py``; the maths is in ``steps.py``."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _default_to_fused_or_foreach,
    _disable_dynamo_if_unsupported,
    _to_scalar,
    _use_grad_for_differentiable,
)

from longtail.optim import state as _state
from longtail.optim.checks import check_settings
from longtail.optim.fused import (
    _fused_continualadam,
    fused_end_task,
    step_together,
    uses_fused,
)
from longtail.optim.hooks import light_step, unmarked
from longtail.optim.steps import _multi_tensor_continualadam, _single_tensor_continualadam

# Renamed in torch 2.12.
_graph_capture_health_check: Callable[[Optimizer], None] = getattr(
    Optimizer, "_accelerator_graph_capture_health_check", None
) or getattr(Optimizer, "_cuda_graph_capture_health_check")  # noqa: B009


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

    With ``beta3=0`` and no call of :meth:`end_task` this is :class:`torch.optim.Adam`, bit for bit.

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
        foreach: use the multi-tensor implementation; by default where torch would, on CUDA.
        maximize: maximize the objective.
        capturable: keep the step counts on the device, for CUDA graphs.
        differentiable: let autograd run through :meth:`step`.
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
        first_moment: str = "reset",
        second_moment: str = "task",
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
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "tasks_seen": 0,
        }
        check_settings(defaults)
        defaults["betas"] = tuple(map(_to_scalar, betas))
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        unmarked(super().add_param_group)(param_group)
        group = self.param_groups[-1]
        try:
            check_settings(group)
        except (ValueError, RuntimeError):
            self.param_groups.pop()
            raise
        group["tasks_seen"] = _state.task_count(group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__["_plans"] = {}
        for group in self.param_groups:
            # A checkpoint of torch's AdamW has keys that are fixed here and lacks some of ours.
            group.pop("decoupled_weight_decay", None)
            group.pop("amsgrad", None)
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            group["tasks_seen"] = _state.task_count(group)

    def state_dict(self) -> dict[str, Any]:
        """As of any torch optimizer; see ``state.py`` for what is kept of a parameter."""
        return unmarked(super().state_dict)()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, ours or that of ``torch.optim.Adam`` / ``AdamW``."""
        final: dict[str, Any] = {}

        def capture(_: Optimizer, loaded: dict[str, Any]) -> None:
            if any(group.get("amsgrad") for group in loaded["param_groups"]):
                raise ValueError(
                    f"{type(self).__name__} cannot load a checkpoint with amsgrad=True"
                )
            final.update(loaded)

        def restore(_: Optimizer) -> None:
            ids = [i for group in final["param_groups"] for i in group["params"]]
            params = [p for group in self.param_groups for p in group["params"]]
            for i, param in zip(ids, params, strict=True):
                if i in final["state"]:
                    _state.restore(param, self.state[param], final["state"][i])

        # Last before and first after, so that the user's own hooks see what they should.
        handles = (
            self.register_load_state_dict_pre_hook(capture),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            unmarked(super().load_state_dict)(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def __repr__(self) -> str:
        tasks = max((int(group["tasks_seen"]) for group in self.param_groups), default=0)
        lines = [f"{type(self).__name__} (", f"tasks seen: {tasks}"]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            shown = {**group, "tasks_seen": int(group["tasks_seen"])}
            lines += [f"    {key}: {shown[key]}" for key in sorted(shown) if key != "params"]
        return "\n".join([*lines, ")"])

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tells GradScaler that `step` unscales gradients and skips on infinities by itself."""
        return all(map(uses_fused, self.param_groups))

    def _init_group(
        self,
        group: dict[str, Any],
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        past_exp_avg_sqs: list[Tensor],
        past_exp_avgs: list[Tensor],
        state_steps: list[Tensor],
        past_steps: list[Tensor],
    ) -> bool:
        has_complex = False
        on_device = group["capturable"] or uses_fused(group)
        past_first = group["first_moment"] == "task"
        if group["foreach"] and isinstance(group["lr"], Tensor) and not group["capturable"]:
            raise RuntimeError(
                "lr as a Tensor is not supported for capturable=False and foreach=True"
            )
        for p in group["params"]:
            if p.grad is None:
                continue
            has_complex |= torch.is_complex(p)
            if p.grad.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            params_with_grad.append(p)
            grads.append(p.grad)
            state = self.state[p]
            _state.fill(p, state, on_device=on_device, past_first=past_first)
            if group["differentiable"] and state["step"].requires_grad:
                raise RuntimeError(
                    "`requires_grad` is not supported for `step` in differentiable mode"
                )
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])
            past_exp_avg_sqs.append(state["past_exp_avg_sq"])
            if past_first:
                past_exp_avgs.append(state["past_exp_avg"])
            state_steps.append(state["step"])
            past_steps.append(state["past_steps"])
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
        _graph_capture_health_check(self)

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        if not torch.compiler.is_compiling() and step_together(self):
            return loss
        for group in self.param_groups:
            plan_cache, fused = None, None
            if not torch.compiler.is_compiling():
                plan_cache = self._plan_cache(group)
                fast = plan_cache.get("fast")
                if fast is not None and fast(self, group, plan_cache):
                    continue
                fused = uses_fused(group) or group["fused"]

            params_with_grad: list[Tensor] = []
            grads: list[Tensor] = []
            exp_avgs: list[Tensor] = []
            exp_avg_sqs: list[Tensor] = []
            past_exp_avg_sqs: list[Tensor] = []
            past_exp_avgs: list[Tensor] = []
            state_steps: list[Tensor] = []
            past_steps: list[Tensor] = []
            beta1, beta2 = group["betas"]

            has_complex = self._init_group(
                group,
                params_with_grad,
                grads,
                exp_avgs,
                exp_avg_sqs,
                past_exp_avg_sqs,
                past_exp_avgs,
                state_steps,
                past_steps,
            )

            continual_adam(
                params_with_grad,
                grads,
                exp_avgs,
                exp_avg_sqs,
                past_exp_avg_sqs,
                past_exp_avgs,
                state_steps,
                past_steps,
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
                plan_cache=plan_cache,
            )

        return loss

    def _plan_cache(self, group: Any) -> dict[str, Any]:
        """Where fused steps keep their tables of pointers for a group, or for the list of all."""
        plans = self.__dict__.get("_plans")
        if plans is None:
            plans = self.__dict__["_plans"] = {}
        cache = plans.get(id(group))
        if cache is None:
            cache = plans[id(group)] = {}
        return cache

    @torch.no_grad()
    def end_task(self) -> None:
        r"""End the current task: fold its moments into the past and start counting steps again.

        Call it once after the last step of each task. A parameter that took no step in the task
        keeps its past untouched; with no step taken anywhere nothing happens. All tensors are
        changed in place and, on a GPU, without waiting for it.
        """
        for group in self.param_groups:
            plan_cache = self._plan_cache(group)
            fast = plan_cache.get("fast_end_task")
            if fast is not None and fast(self, group, plan_cache):
                continue
            took = [self._fold(group, lists) for lists in _state.gather(self.state, group)]
            _state.count_task(group, took)

    def _fold(self, group: dict[str, Any], lists: _state.Boundary) -> Tensor | bool:
        beta1, beta2 = group["betas"]
        settings = {
            "beta1": beta1,
            "beta2": beta2,
            "first_moment": group["first_moment"],
            "second_moment": group["second_moment"],
        }
        if uses_fused(group):
            took = fused_end_task(self._plan_cache(group), lists, settings)
            if took is not None:
                return took
        return _state.fold(lists, **settings)


class ContinualAdamW(ContinualAdam):
    r"""Continual Adam with decoupled weight decay: :class:`torch.optim.AdamW` that forgets less.

    Like :class:`ContinualAdam`, but ``weight_decay`` shrinks the parameters instead of joining
    the gradient:

    .. math::
        \theta = (1 - \gamma \lambda) \theta - (1 - \beta_3^t) \gamma \hat m / (\sqrt{v'} +
        \epsilon)

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr, betas, eps: as for :class:`ContinualAdam`.
        weight_decay: decoupled decay :math:`\lambda`; each step multiplies by
            ``1 - lr * weight_decay``.
        settings: ``beta3``, ``first_moment``, ``second_moment``, ``foreach``, ``maximize``,
            ``capturable``, ``differentiable`` and ``fused``, as for :class:`ContinualAdam`.

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
        first_moment: str = "reset",
        second_moment: str = "task",
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
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )


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
    """Functional form of a step of :class:`ContinualAdam`; unused lists may be empty."""
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
