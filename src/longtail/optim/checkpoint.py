"""What ``load_state_dict`` takes beside our own checkpoints: torch's, other orders, other types."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from longtail.optim.past import check_past, converted, is_coded, past_dtype_of
from longtail.optim.state import check_moments, state_dtype, task_count
from longtail.support.param_names import normalise

Group = Mapping[str, Any]

# The settings that say how state is kept: they are the optimizer's own and not a checkpoint's.
_STORAGE = ("past_dtype", "past_copies")


def complete_group(group: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Make a loaded parameter group one of ours.

    That of torch's AdamW has keys that are fixed here and lacks some of ours.
    """
    group.pop("decoupled_weight_decay", None)
    group.pop("amsgrad", None)
    for key, value in defaults.items():
        group.setdefault(key, value)
    group["tasks_seen"] = task_count(group)


@contextmanager
def undoing_casts(optimizer: Optimizer) -> Iterator[None]:
    """Within it, ``Optimizer.load_state_dict`` leaves our state as it was saved."""
    checkpoint: dict[str, Any] = {}

    def before(_: Optimizer, loaded: dict[str, Any]) -> dict[str, Any]:
        checkpoint.update(_acceptable(loaded, optimizer))
        return checkpoint

    def after(_: Optimizer) -> None:
        for saved, own in zip(checkpoint["param_groups"], optimizer.param_groups, strict=True):
            for i, param in zip(saved["params"], own["params"], strict=True):
                if i in checkpoint["state"]:
                    state = optimizer.state[param]
                    _restore(param, state, checkpoint["state"][i], own["past_dtype"])

    # Last before and first after, so that the user's own hooks see what they should.
    handles = (
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _acceptable(loaded: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A checkpoint in the optimizer's order, or an error that says why it cannot be one."""
    for group in loaded["param_groups"]:
        if group.get("amsgrad"):
            name = type(optimizer).__name__
            raise ValueError(f"{name} cannot load a checkpoint with amsgrad=True")
        settings = {**optimizer.defaults, **group}
        check_moments(settings)
        check_past(settings)
    groups = _in_order_of_names(loaded["param_groups"], optimizer.param_groups)
    # Where there are more or fewer than here, torch says so.
    for i, own in enumerate(optimizer.param_groups[: len(groups)]):
        groups[i] = {**groups[i], **{name: own[name] for name in _STORAGE}}
    return {**loaded, "param_groups": groups}


def _in_order_of_names(saved: Sequence[Group], groups: Sequence[Group]) -> list[Group]:
    """Saved groups with their parameters in the order of ``groups``, where both have names.

    Raises:
        ValueError: if the names differ, or parameters of one group were saved in several, whose
            settings may differ.
    """
    if not all("param_names" in group for group in (*groups, *saved)):
        return list(saved)
    # By name: the number of the group that a parameter was saved in, and its own number.
    places: dict[str, tuple[int, int]] = {}
    for number, group in enumerate(saved):
        for name, index in zip(group["param_names"], group["params"], strict=True):
            places[normalise(name)] = number, index
    names = [[normalise(name) for name in group["param_names"]] for group in groups]
    _check_names(set().union(*names), places.keys())

    ordered: list[Group] = []
    for group, wanted in zip(groups, names, strict=True):
        sources = {places[name][0] for name in wanted}
        if len(sources) > 1:
            raise ValueError(
                f"The parameters of one group were saved in {len(sources)} groups, as those of "
                f"{wanted[0]} and others; load_memory() loads them by name"
            )
        settings = saved[sources.pop()] if sources else group
        params = [places[name][1] for name in wanted]
        ordered.append({**settings, "params": params, "param_names": group["param_names"]})
    return ordered


def _check_names(ours: AbstractSet[str], theirs: AbstractSet[str]) -> None:
    lacking = []
    if missing := ours - theirs:
        lacking.append(f"it lacks {min(missing)}")
    if missing := theirs - ours:
        lacking.append(f"the optimizer lacks {min(missing)}")
    if lacking:
        raise ValueError(
            f"The checkpoint's parameters have other names: {', '.join(lacking)}; "
            "load_memory() takes what fits"
        )


def _restore(param: Tensor, state: dict[str, Any], saved: dict[str, Any], past_dtype: str) -> None:
    """Undo what ``Optimizer.load_state_dict`` does to our state.

    It casts every tensor except ``step`` to the parameter's dtype and device, which rounds the
    float32 state of a bf16 parameter, takes codes for numbers, and sends a count that belongs on
    the CPU to the GPU.
    """
    step = state.get("step")
    if isinstance(step, Tensor) and not step.is_cpu and step.device != param.device:
        state["step"] = step.to(param.device)  # saved on a GPU, and no flag of the group says so
    own = past_dtype_of(past_dtype, state_dtype(param))
    half = state_dtype(param) != param.dtype
    for key, value in saved.items():
        if key == "past_steps" and isinstance(state.get("step"), Tensor):
            state[key] = value.to(device=state["step"].device, dtype=state["step"].dtype)
        elif key == "past_exp_avg_sq" and (is_coded(value) or own is torch.uint8):
            state[key] = converted(value.to(param.device, copy=True), own)
        elif half and key != "step" and isinstance(value, Tensor) and value.is_floating_point():
            state[key] = value.to(device=param.device, dtype=state_dtype(param))
