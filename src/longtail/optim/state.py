"""What Continual Adam remembers of a parameter: how it is made, and folded at a boundary.

==================  ======================================================================
``step``            t, the steps taken in this task
``exp_avg``         m, the first moment of this task
``exp_avg_sq``      v, the second moment of this task
``past_exp_avg_sq`` v_c, the average of the earlier tasks' second moments, of ``past_dtype``
``past_steps``      c, the steps of all earlier tasks
``past_exp_avg``    m_c, the same for first moments; only where ``first_moment="task"``
==================  ======================================================================

Everything is a tensor that exists from the first step on and is changed in place at a boundary,
so that checkpoints, CUDA graphs, compiled steps and wrappers all go on pointing at the right
memory.

`Tensors` and `Settings` are what every implementation of a step and of a boundary is given.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import _get_scalar_dtype, _to_scalar

from longtail.optim.past import Draw, converted, draw_of, fold_coded, is_coded, past_dtype_of

MOMENTS = {
    "first_moment": ("reset", "ema", "task"),
    "second_moment": ("reset", "ema", "task", "task_seen"),
}

KEYS = frozenset({"step", "exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_steps"})
KEYS_WITH_PAST_FIRST = KEYS | {"past_exp_avg"}
_MOMENTS = ("exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_exp_avg")
_PLAIN = (Tensor, torch.nn.Parameter)


class Row(NamedTuple):
    """What a step of one parameter touches; a kernel that does not need one of them gets None."""

    param: Tensor | None
    exp_avg: Tensor
    exp_avg_sq: Tensor
    past_exp_avg_sq: Tensor | None
    past_exp_avg: Tensor | None
    step: Tensor
    past_steps: Tensor

    @classmethod
    def of(cls, param: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> "Row":
        """That of a parameter whose state is complete."""
        past_first = group["first_moment"] == "task"
        return cls(
            param,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["past_exp_avg_sq"],
            state["past_exp_avg"] if past_first else None,
            state["step"],
            state["past_steps"],
        )

    def is_flat(self) -> bool:
        """Whether a kernel can walk over all of it as over one block of memory.

        All are then on one device, the moments have one dtype (but for a v_c in one byte), and
        element k of one belongs to element k of the others, in whatever order.
        """
        p, *moments, step, past_steps = self
        if p is None or not (is_plain(p) and p.layout is torch.strided and _is_dense(p)):
            return False
        for x in moments:
            if x is None:
                continue
            coded = x is self.past_exp_avg_sq and is_coded(x)
            alike = x.shape == p.shape and x.stride() == p.stride() and x.device == p.device
            if not (alike and is_plain(x) and (coded or x.dtype is self.exp_avg.dtype)):
                return False
        for x in (step, past_steps):
            if not (is_plain(x) and x.device == p.device and x.dtype is torch.float32):
                return False
        return True


class Tensors(NamedTuple):
    """Parameters, gradients and state as parallel lists.

    At a boundary there are no ``grads``, and without ``first_moment="task"`` no ``past_exp_avgs``:
    these lists are then empty.
    """

    params: list[Tensor]
    grads: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    past_exp_avg_sqs: list[Tensor]
    past_exp_avgs: list[Tensor]
    steps: list[Tensor]
    past_steps: list[Tensor]

    @classmethod
    def none(cls) -> "Tensors":
        """Empty lists, to be filled."""
        return cls([], [], [], [], [], [], [], [])

    def select(self, indices: Sequence[int]) -> "Tensors":
        return Tensors(*([xs[i] for i in indices] if xs else [] for xs in self))

    def rows(self) -> list[Row]:
        """The same parameter by parameter, without the gradients."""
        params, _, m, v, v_c, m_c, steps, past_steps = self
        pasts: Sequence[Tensor | None] = m_c or [None] * len(params)
        return [Row(*x) for x in zip(params, m, v, v_c, pasts, steps, past_steps, strict=True)]


class Settings(NamedTuple):
    """The settings of a parameter group, as a step and a boundary take them."""

    lr: float | Tensor
    beta1: float | Tensor
    beta2: float | Tensor
    beta3: float
    eps: float
    weight_decay: float
    first_moment: str
    second_moment: str
    maximize: bool = False
    capturable: bool = False
    differentiable: bool = False
    decoupled_weight_decay: bool = False

    @classmethod
    def of(cls, group: Mapping[str, Any], decoupled_weight_decay: bool) -> "Settings":
        """Those of a group of an optimizer."""
        beta1, beta2 = group["betas"]
        return cls(
            lr=_to_scalar(group["lr"]),
            beta1=_to_scalar(beta1),
            beta2=_to_scalar(beta2),
            beta3=group["beta3"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            first_moment=group["first_moment"],
            second_moment=group["second_moment"],
            maximize=group["maximize"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            decoupled_weight_decay=decoupled_weight_decay,
        )


def check_moments(group: Mapping[str, Any]) -> None:
    """Raise for an unknown policy, which a step would silently take for one it knows."""
    for name, choices in MOMENTS.items():
        if group[name] not in choices:
            known = ", ".join(map(repr, choices))
            raise ValueError(f"Invalid {name} value: {group[name]!r}, must be one of {known}")


def is_averaged(moment: str) -> bool:
    """Whether a policy keeps the moment's average over all earlier tasks.

    "task_seen" keeps the very average that "task" keeps, over all c steps and from the first on,
    and differs only in what a step does with it. So a coordinate that is first moved in the k-th
    task counts as zero in the tasks before, as the paper defines it, and the two policies can be
    exchanged in the middle of a run.
    """
    return moment in ("task", "task_seen")


def is_plain(tensor: Tensor) -> bool:
    """Whether foreach and pointer-based kernels may touch it (a DTensor, for one, is not plain)."""
    return type(tensor) in _PLAIN


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their memory without gap or overlap, in whatever order."""
    expected = 1
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def state_dtype(param: Tensor) -> torch.dtype:
    """float32 for half-precision parameters: an average over thousands of tasks freezes in bf16."""
    return torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype


def fill(
    param: Tensor,
    state: dict[str, Any],
    *,
    on_device: bool,
    past_first: bool,
    past_dtype: str = "float32",
) -> None:
    """Make the entries that are missing, one by one: a plain AdamW checkpoint has some of them.

    Args:
        on_device: keep the counts beside the parameter (``capturable`` or ``fused``) and not on
            the CPU, where reading them is free.
        past_first: also keep the average of first moments.
        past_dtype: how v_c is kept; one that is there is converted.
    """
    own = past_dtype_of(past_dtype, state_dtype(param))
    if own != state_dtype(param) and param.is_complex():
        raise ValueError(f"Invalid past_dtype: {past_dtype!r} for a complex parameter")
    if not (KEYS_WITH_PAST_FIRST if past_first else KEYS) <= state.keys():
        device = param.device if on_device else torch.device("cpu")
        for key in ("step", "exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_steps"):
            if key in state:
                continue
            if key in ("step", "past_steps"):
                dtype = _get_scalar_dtype(is_fused=on_device)
                state[key] = torch.zeros((), dtype=dtype, device=device)
            else:
                state[key] = _zeros(param, own if key == "past_exp_avg_sq" else None)
        if past_first and "past_exp_avg" not in state:
            state["past_exp_avg"] = _zeros(param)
    past = state["past_exp_avg_sq"]
    if past.dtype != own and (is_coded(past) or past_dtype != "float32"):
        state["past_exp_avg_sq"] = converted(past, own)
    check_shapes(param, state)
    step = state["step"]
    if not isinstance(step, Tensor):  # checkpoints from before torch 1.12
        step = state["step"] = torch.tensor(float(step), dtype=_get_scalar_dtype())
    if on_device and step.device != param.device:
        step = state["step"] = step.to(param.device, torch.float32)
    if state["past_steps"].device != step.device:
        state["past_steps"] = state["past_steps"].to(step.device)


def check_shapes(param: Tensor, state: Mapping[str, Any]) -> None:
    """Raise for moments of another shape: kernels would walk past the end of the shorter one."""
    shape = param.shape
    for key in _MOMENTS:
        if key in state and state[key].shape != shape:
            raise ValueError(
                f"Invalid {key}: of shape {tuple(state[key].shape)} for a parameter of shape "
                f"{tuple(shape)}; was it loaded from another model, or the parameter resized?"
            )


def _zeros(param: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.zeros_like(
        param,
        dtype=dtype or state_dtype(param),
        memory_format=torch.preserve_format,
        requires_grad=False,
    )


def complete(states: Mapping[Tensor, Any], group: Mapping[str, Any]) -> None:
    """Fill the states of a group's parameters, of those that have one."""
    past_first, past_dtype = group["first_moment"] == "task", group["past_dtype"]
    for param in group["params"]:
        if state := states.get(param):
            step = state.get("step")
            on_device = isinstance(step, Tensor) and not step.is_cpu
            fill(param, state, on_device=on_device, past_first=past_first, past_dtype=past_dtype)


def gather(
    states: Mapping[Tensor, Any], group: Mapping[str, Any]
) -> list[tuple[Tensors, list[Draw]]]:
    """The state of a group's parameters, completed: one `Tensors` per device of the step counts.

    Beside each `Tensors` stands a `Draw` per parameter: where the random bits of its boundary come
    from.
    """
    complete(states, group)
    by_device: dict[torch.device, tuple[Tensors, list[Draw]]] = {}
    for place, param in enumerate(group["params"]):
        if state := states.get(param):
            device = state["step"].device
            tensors, draws = by_device.setdefault(device, (Tensors.none(), []))
            append(tensors, param, state, past_first=group["first_moment"] == "task")
            draws.append(draw_of(group, place))
    return list(by_device.values())


def append(tensors: Tensors, param: Tensor, state: dict[str, Any], *, past_first: bool) -> None:
    """Add a parameter and its state to the lists."""
    tensors.params.append(param)
    tensors.exp_avgs.append(state["exp_avg"])
    tensors.exp_avg_sqs.append(state["exp_avg_sq"])
    tensors.past_exp_avg_sqs.append(state["past_exp_avg_sq"])
    if past_first:
        tensors.past_exp_avgs.append(state["past_exp_avg"])
    tensors.steps.append(state["step"])
    tensors.past_steps.append(state["past_steps"])


def fold(tensors: Tensors, settings: Settings, draws: Sequence[Draw]) -> Tensor | bool:
    """End a task, in place: the moments join the past, the counts move on.

    .. math:: v_c = (t \\hat v + c v_c) / (t + c), \\quad c = c + t, \\quad t = m = v = 0

    All steps share a device. If that is the CPU, a parameter with t = 0 is left out; otherwise
    nothing may wait for the device, so its weights are 1 (for the past) and 0 (for the present).
    ``draws`` are for a v_c that is kept in fewer bytes and rounded at random.

    Returns:
        Whether a step had been taken in the task.
    """
    if not tensors.steps:
        return False
    t = torch.stack(tensors.steps)
    took = t > 0
    if t.is_cpu and not bool(took.any()):
        return False
    if t.is_cpu and not bool(took.all()):
        stepped = took.nonzero().flatten().tolist()
        tensors, draws = tensors.select(stepped), [draws[i] for i in stepped]
    s = settings
    _fold_moment(tensors, tensors.exp_avgs, tensors.past_exp_avgs, s.first_moment, s.beta1, draws)
    _fold_moment(
        tensors, tensors.exp_avg_sqs, tensors.past_exp_avg_sqs, s.second_moment, s.beta2, draws
    )
    torch._foreach_add_(tensors.past_steps, tensors.steps)
    torch._foreach_zero_(tensors.steps)
    return True if t.is_cpu else took.any()


def _fold_moment(
    tensors: Tensors,
    now: list[Tensor],
    past: list[Tensor],
    policy: str,
    beta: Any,
    draws: Sequence[Draw],
) -> None:
    """What becomes of one moment of all tensors."""
    plain = all(is_plain(x) for x in now)
    if is_averaged(policy):
        old, new = _weights(tensors, beta)
        # Floats would cut the graph through which a beta is differentiated.
        if new.is_cpu and not new.requires_grad:
            past_weight, now_weight = old.tolist(), new.tolist()
        else:
            past_weight, now_weight = old.unbind(), new.unbind()
        if is_coded(past[0]):
            fold_coded(past, now, past_weight, now_weight, tensors.past_steps, draws)
        elif plain:
            # The present is used up, so that no memory is needed.
            torch._foreach_mul_(past, past_weight)
            torch._foreach_mul_(now, now_weight)
            torch._foreach_add_(past, now)
        else:
            for v_c, v, a, b in zip(past, now, past_weight, now_weight, strict=True):
                v_c.mul_(a).add_(v.mul_(b))
    if policy == "ema":
        return
    if plain:
        torch._foreach_zero_(now)
    else:
        for tensor in now:
            tensor.zero_()


def _weights(tensors: Tensors, beta: Any) -> tuple[Tensor, Tensor]:
    """What v_c and v (not yet bias corrected) weigh in the new average."""
    t = torch.stack(tensors.steps).double()
    c = torch.stack(tensors.past_steps).double()
    beta = beta.double() if isinstance(beta, Tensor) else beta
    now = torch.where(t > 0, t / ((t + c) * (1 - beta**t)), 0.0)
    past = torch.where(t > 0, c / (t + c), 1.0)
    return past, now


def fold_group(
    states: Mapping[Tensor, Any], group: dict[str, Any], settings: Settings
) -> list[Tensor | bool]:
    """End a task for those of a group's parameters that have a state among ``states``.

    Returns:
        Whether steps had been taken, once for each device of the step counts.
    """
    took = []
    for tensors, draws in gather(states, group):
        took.append(fold(tensors, settings, draws))
    return took


def task_count(group: Mapping[str, Any]) -> Tensor:
    """The group's ``tasks_seen`` as a tensor of its own: compiled steps guard on numbers only."""
    count = group.get("tasks_seen", 0)
    if isinstance(count, Tensor):
        return count.clone()
    params = group["params"]
    device = params[0].device if params else torch.device("cpu")
    if device.type == "meta":
        device = torch.device("cpu")
    return torch.tensor(count, dtype=torch.int64, device=device)


def count_task(group: dict[str, Any], took: Sequence[Tensor | bool]) -> None:
    """Add one to ``tasks_seen`` if any parameter took a step, without waiting for a GPU."""
    count = group["tasks_seen"]
    on_device = [x for x in took if isinstance(x, Tensor)]
    if any(x is True for x in took):
        count.add_(1)
        return
    if not on_device:
        return
    stepped = on_device[0]
    if count.device != stepped.device:
        count = group["tasks_seen"] = count.to(stepped.device)
    for x in on_device[1:]:
        stepped = stepped | x.to(count.device)
    count.add_(stepped)
