"""What Continual Adam remembers of a parameter: how it is made, folded at a boundary, and loaded.

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

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, _get_scalar_dtype

from longtail.optim.past import (
    CODED,
    Draw,
    check_past,
    converted,
    draw_of,
    fold_coded,
    is_coded,
    past_dtype_of,
)
from longtail.support.param_names import normalise

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
    def of(cls, group: Mapping[str, Any], *, decoupled_weight_decay: bool) -> "Settings":
        """Those of a group of an optimizer."""
        beta1, beta2 = group["betas"]
        return cls(
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
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
        dtype = _get_scalar_dtype(is_fused=on_device)
        for key in ("step", "exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_steps"):
            if key not in state:
                state[key] = (
                    torch.zeros((), dtype=dtype, device=device)
                    if key.endswith(("step", "steps"))
                    else _zeros(param, own if key == "past_exp_avg_sq" else None)
                )
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


def gather(states: Mapping[Tensor, Any], group: dict[str, Any]) -> list[tuple[Tensors, list[Draw]]]:
    """The state of a group's parameters, completed: one `Tensors` per device of the step counts.

    Beside each `Tensors` stands a `Draw` per parameter: where the random bits of its boundary come
    from.
    """
    past_first, past_dtype = group["first_moment"] == "task", group["past_dtype"]
    found: dict[torch.device, tuple[Tensors, list[Draw]]] = {}
    for place, param in enumerate(group["params"]):
        state = states.get(param)
        if not state:
            continue
        step = state.get("step")
        on_device = isinstance(step, Tensor) and step.device.type != "cpu"
        fill(param, state, on_device=on_device, past_first=past_first, past_dtype=past_dtype)
        empty = (Tensors([], [], [], [], [], [], [], []), [])
        tensors, draws = found.setdefault(state["step"].device, empty)
        append(tensors, param, state, past_first=past_first)
        draws.append(draw_of(group, place))
    return list(found.values())


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
    t = torch.stack(tensors.steps).double()
    c = torch.stack(tensors.past_steps).double()
    took = t > 0
    on_cpu = t.device.type == "cpu"
    if on_cpu:
        if not bool(took.any()):
            return False
        if not bool(took.all()):
            keep = took.nonzero().flatten().tolist()
            tensors, draws = tensors.select(keep), [draws[i] for i in keep]
            t, c, took = t[keep], c[keep], took[keep]
    plain = all(is_plain(x) for x in tensors.exp_avgs)
    for policy, beta, now, past in (
        (settings.first_moment, settings.beta1, tensors.exp_avgs, tensors.past_exp_avgs),
        (settings.second_moment, settings.beta2, tensors.exp_avg_sqs, tensors.past_exp_avg_sqs),
    ):
        if is_averaged(policy):
            old, new = _weights(t, c, took, beta)
            # Floats would cut the graph through which a beta is differentiated.
            as_floats = on_cpu and not new.requires_grad
            a, b = (x.tolist() if as_floats else x.unbind() for x in (old, new))
            if is_coded(past[0]):
                fold_coded(past, now, a, b, tensors.past_steps, draws)
            else:
                _mix(past, now, a, b, plain=plain)
        if policy != "ema":
            _zero(now, plain=plain)
    torch._foreach_add_(tensors.past_steps, tensors.steps)
    torch._foreach_zero_(tensors.steps)
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


def complete_group(group: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Make a loaded parameter group one of ours.

    That of torch's AdamW has keys that are fixed here and lacks some of ours.
    """
    group.pop("decoupled_weight_decay", None)
    group.pop("amsgrad", None)
    for key, value in defaults.items():
        group.setdefault(key, value)
    group["tasks_seen"] = task_count(group)


def in_order_of_names(
    loaded: dict[str, Any], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A checkpoint with its parameters in the order of ``groups``, where both sides have names.

    Raises:
        ValueError: if the names differ, or parameters of one group were saved in several, whose
            settings may differ.
    """
    saved = loaded["param_groups"]
    if not all("param_names" in group for group in (*groups, *saved)):
        return loaded
    places = {
        normalise(name): (number, index)
        for number, group in enumerate(saved)
        for name, index in zip(group["param_names"], group["params"], strict=True)
    }
    names = [[normalise(name) for name in group["param_names"]] for group in groups]
    own = {name for group in names for name in group}
    if own != places.keys():
        raise ValueError(
            "The checkpoint's parameters have other names: "
            + _first_missing({"it": own - places.keys(), "the optimizer": places.keys() - own})
            + "; load_memory() takes what fits"
        )
    ordered = []
    for group, known in zip(groups, names, strict=True):
        sources = {places[name][0] for name in known}
        if len(sources) > 1:
            raise ValueError(
                f"The parameters of one group were saved in {len(sources)} groups, as those of "
                f"{known[0]} and others; load_memory() loads them by name"
            )
        settings = saved[sources.pop()] if sources else group
        params = [places[name][1] for name in known]
        ordered.append({**settings, "params": params, "param_names": group["param_names"]})
    return {**loaded, "param_groups": ordered}


def _first_missing(missing: Mapping[str, AbstractSet[str]]) -> str:
    """For each side that lacks names, the side and the first name it lacks."""
    return ", ".join(f"{side} lacks {min(names)}" for side, names in missing.items() if names)


@contextmanager
def undoing_casts(optimizer: Optimizer) -> Iterator[None]:
    """Within it, ``Optimizer.load_state_dict`` leaves our state as it was saved."""
    final: dict[str, Any] = {}

    def capture(_: Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
        if any(group.get("amsgrad") for group in loaded["param_groups"]):
            name = type(optimizer).__name__
            raise ValueError(f"{name} cannot load a checkpoint with amsgrad=True")
        for group in loaded["param_groups"]:
            check_moments({**optimizer.defaults, **group})
            check_past({**optimizer.defaults, **group})
        final.update(in_order_of_names(loaded, optimizer.param_groups))
        groups = zip(final["param_groups"], optimizer.param_groups, strict=False)
        final["param_groups"] = [{**saved, **_storage(own)} for saved, own in groups]
        final["param_groups"] += loaded["param_groups"][len(optimizer.param_groups) :]
        return final

    def restore(_: Optimizer) -> None:
        for group, own in zip(final["param_groups"], optimizer.param_groups, strict=True):
            for i, param in zip(group["params"], own["params"], strict=True):
                if i in final["state"]:
                    past = own["past_dtype"]
                    _restore(param, optimizer.state[param], final["state"][i], past)

    # Last before and first after, so that the user's own hooks see what they should.
    handles = (
        optimizer.register_load_state_dict_pre_hook(capture),
        optimizer.register_load_state_dict_post_hook(restore, prepend=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _storage(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that say how state is kept, which are the optimizer's and not a checkpoint's."""
    return {name: group[name] for name in ("past_dtype", "past_copies")}


def _restore(param: Tensor, state: dict[str, Any], saved: dict[str, Any], past_dtype: str) -> None:
    """Undo what ``Optimizer.load_state_dict`` does to our state.

    It casts every tensor except ``step`` to the parameter's dtype and device, which rounds the
    float32 state of a bf16 parameter, takes codes for numbers, and sends a count that belongs on
    the CPU to the GPU.
    """
    own = past_dtype_of(past_dtype, state_dtype(param))
    half = state_dtype(param) != param.dtype
    for key, value in saved.items():
        if key == "past_steps" and isinstance(state.get("step"), Tensor):
            state[key] = value.to(device=state["step"].device, dtype=state["step"].dtype)
        elif key == "past_exp_avg_sq" and (is_coded(value) or own in CODED):
            state[key] = converted(value.to(param.device, copy=True), own)
        elif half and key != "step" and isinstance(value, Tensor) and value.is_floating_point():
            state[key] = value.to(device=param.device, dtype=state_dtype(param))
