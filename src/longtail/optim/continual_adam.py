"""Continual Adam, laid out like ``torch/optim/adam.py``.

The maths is in ``steps.py``, what is kept of a parameter in ``state.py``.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _to_scalar, _use_grad_for_differentiable

from longtail.optim import state as _state
from longtail.optim._torch import graph_capture_health_check, light_step, unmarked
from longtail.optim.checkpoints import complete_group, undoing_casts
from longtail.optim.checks import check_moments, check_rate, check_settings
from longtail.optim.functional import continual_adam
from longtail.optim.kernels import end_task_of, end_tasks_together, step_together, uses_fused


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
            complete_group(group, self.defaults)

    def state_dict(self) -> dict[str, Any]:
        """As of any torch optimizer; see ``state.py`` for what is kept of a parameter."""
        return unmarked(super().state_dict)()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, ours or that of ``torch.optim.Adam`` / ``AdamW``."""
        with undoing_casts(self):
            unmarked(super().load_state_dict)(state_dict)

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
        """Make what is missing and fill the lists with the parameters that have a gradient."""
        has_complex = False
        on_device = group["capturable"] or uses_fused(group)
        past_first = group["first_moment"] == "task"
        check_rate(group)
        check_moments(group)
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
        graph_capture_health_check(self)

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

            lists: tuple[list[Tensor], ...] = ([], [], [], [], [], [], [], [])
            has_complex = self._init_group(group, *lists)
            beta1, beta2 = group["betas"]
            continual_adam(
                *lists,
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

    def _plan_cache(self, group: dict[str, Any] | None) -> dict[str, Any]:
        """Where fused steps keep their tables of pointers for a group, or for all (None)."""
        plans = self.__dict__.setdefault("_plans", {})
        return plans.setdefault(id(group), {})

    def end_task(self) -> None:
        r"""End the current task: fold its moments into the past and start counting steps again.

        Call it once after the last step of each task. A parameter that took no step in the task
        keeps its past untouched; with no step taken anywhere nothing happens. All tensors are
        changed in place and, on a GPU, without waiting for it.
        """
        for group in self.param_groups:
            check_moments(group)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if end_tasks_together(self):
                return
            for group in self.param_groups:
                plan_cache = self._plan_cache(group)
                fast = plan_cache.get("fast_end_task")
                if fast is not None and fast(self, group, plan_cache):
                    continue
                gathered = _state.gather(self.state, group)
                took = [end_task_of(group, plan_cache, lists) for lists in gathered]
                _state.count_task(group, took)
