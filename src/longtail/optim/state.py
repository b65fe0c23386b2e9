"""What Continual Adam remembers of a parameter: how it is made, and folded at a boundary.

==================  ======================================================================
``step``            t, the steps taken in this task
``exp_avg``         m, the first moment of this task
``exp_avg_sq``      v, the second moment of this task
``past_exp_avg_sq`` v_c, the average of the earlier tasks' second moments
``past_steps``      c, the steps of all earlier tasks
``past_exp_avg``    m_c, the same for first moments; only where ``first_moment="task"``
==================  ======================================================================

Everything is a tensor that exists from the first step on and is changed in place at a boundary,
so that checkpoints, CUDA graphs, compiled steps and wrappers all go on pointing at the right
memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import _get_scalar_dtype

KEYS = frozenset({"step", "exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_steps"})
KEYS_WITH_PAST_FIRST = KEYS | {"past_exp_avg"}
_MOMENTS = ("exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_exp_avg")
_PLAIN = (Tensor, torch.nn.Parameter)


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


def state_dtype(param: Tensor) -> torch.dtype:
    """float32 for half-precision parameters: an average over thousands of tasks freezes in bf16."""
    return torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype


def fill(param: Tensor, state: dict[str, Any], *, on_device: bool, past_first: bool) -> None:
    """Make the entries that are missing, one by one: a plain AdamW checkpoint has some of them.

    Args:
        on_device: keep the counts beside the parameter (``capturable`` or ``fused``) and not on
            the CPU, where reading them is free.
        past_first: also keep the average of first moments.
    """
    if not (KEYS_WITH_PAST_FIRST if past_first else KEYS) <= state.keys():
        device = param.device if on_device else torch.device("cpu")
        dtype = _get_scalar_dtype(is_fused=on_device)
        for key in ("step", "exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_steps"):
            if key not in state:
                state[key] = (
                    torch.zeros((), dtype=dtype, device=device)
                    if key.endswith(("step", "steps"))
                    else _zeros(param)
                )
        if past_first and "past_exp_avg" not in state:
            state["past_exp_avg"] = _zeros(param)
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


def _zeros(param: Tensor) -> Tensor:
    return torch.zeros_like(
        param, dtype=state_dtype(param), memory_format=torch.preserve_format, requires_grad=False
    )


class Boundary(NamedTuple):
    """The state of the parameters that a boundary folds, as parallel lists."""

    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    past_exp_avg_sqs: list[Tensor]
    past_exp_avgs: list[Tensor]
    state_steps: list[Tensor]
    past_steps: list[Tensor]


def gather(states: Mapping[Tensor, Any], group: dict[str, Any]) -> list[Boundary]:
    """The state of a group's parameters, complete: a set of lists for each device of counts."""
    past_first = group["first_moment"] == "task"
    found: dict[torch.device, Boundary] = {}
    for param in group["params"]:
        state = states.get(param)
        if not state:
            continue
        step = state.get("step")
        on_device = isinstance(step, Tensor) and step.device.type != "cpu"
        fill(param, state, on_device=on_device, past_first=past_first)
        lists = found.setdefault(state["step"].device, Boundary([], [], [], [], [], []))
        lists.exp_avgs.append(state["exp_avg"])
        lists.exp_avg_sqs.append(state["exp_avg_sq"])
        lists.past_exp_avg_sqs.append(state["past_exp_avg_sq"])
        if past_first:
            lists.past_exp_avgs.append(state["past_exp_avg"])
        lists.state_steps.append(state["step"])
        lists.past_steps.append(state["past_steps"])
    return list(found.values())


def fold(
    lists: Boundary, *, beta1: Any, beta2: Any, first_moment: str, second_moment: str
) -> Tensor | bool:
    """End a task, in place: the moments join the past, the counts move on. True if a step was
    taken.

    .. math:: v_c = (t \\hat v + c v_c) / (t + c), \\quad c = c + t, \\quad t = m = v = 0

    All steps share a device. If that is the CPU, a parameter with t = 0 is left out; otherwise
    nothing may wait for the device, so its weights are 1 (for the past) and 0 (for the present).
    """
    if not lists.state_steps:
        return False
    t = torch.stack(lists.state_steps).double()
    c = torch.stack(lists.past_steps).double()
    took = t > 0
    on_cpu = t.device.type == "cpu"
    if on_cpu:
        if not bool(took.any()):
            return False
        if not bool(took.all()):
            keep = took.nonzero().flatten().tolist()
            lists = Boundary(*([xs[i] for i in keep] if xs else [] for xs in lists))
            t, c, took = t[keep], c[keep], took[keep]
    plain = all(is_plain(x) for x in lists.exp_avgs)
    for policy, beta, now, past in (
        (first_moment, beta1, lists.exp_avgs, lists.past_exp_avgs),
        (second_moment, beta2, lists.exp_avg_sqs, lists.past_exp_avg_sqs),
    ):
        if is_averaged(policy):
            past_weight, now_weight = _weights(t, c, took, beta)
            if on_cpu and not now_weight.requires_grad:  # it does for a beta to differentiate by
                _mix(past, now, past_weight.tolist(), now_weight.tolist(), plain=plain)
            else:
                _mix(past, now, past_weight.unbind(), now_weight.unbind(), plain=plain)
        if policy != "ema":
            _zero(now, plain=plain)
    torch._foreach_add_(lists.past_steps, lists.state_steps)
    torch._foreach_zero_(lists.state_steps)
    return True if on_cpu else took.any()


def _weights(t: Tensor, c: Tensor, took: Tensor, beta: Any) -> tuple[Tensor, Tensor]:
    """What v_c and v (not yet bias corrected) weigh in the new average."""
    beta = beta.double() if isinstance(beta, Tensor) else beta
    now = torch.where(took, t / ((t + c) * (1 - beta**t)), 0.0)
    past = torch.where(took, c / (t + c), 1.0)
    return past, now


def _mix(
    past: list[Tensor],
    now: list[Tensor],
    past_weight: Sequence[Any],
    now_weight: Sequence[Any],
    *,
    plain: bool,
) -> None:
    """past = past_weight * past + now_weight * now; ``now`` is used up, so no memory is needed."""
    if plain:
        torch._foreach_mul_(past, past_weight)
        torch._foreach_mul_(now, now_weight)
        torch._foreach_add_(past, now)
    else:
        for old, new, a, b in zip(past, now, past_weight, now_weight, strict=True):
            old.mul_(a).add_(new.mul_(b))


def _zero(tensors: list[Tensor], *, plain: bool) -> None:
    if plain:
        torch._foreach_zero_(tensors)
    else:
        for tensor in tensors:
            tensor.zero_()


def task_count(group: dict[str, Any]) -> Tensor:
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
    on_device = next((x for x in took if isinstance(x, Tensor)), None)
    if on_device is None:
        if any(took):
            count.add_(1)
        return
    if count.device != on_device.device:
        count = group["tasks_seen"] = count.to(on_device.device)
    for x in took:
        on_device = on_device | (x.to(count.device) if isinstance(x, Tensor) else x)
    count.add_(on_device)
