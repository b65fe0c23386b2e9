"""Loading a checkpoint, ours or plain Adam's: what it lacks, and what torch does to our state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from longtail.optim.checks import check_moments
from longtail.optim.state import state_dtype, task_count


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
    final: dict[str, Any] = {}

    def capture(_: Optimizer, loaded: dict[str, Any]) -> None:
        if any(group.get("amsgrad") for group in loaded["param_groups"]):
            name = type(optimizer).__name__
            raise ValueError(f"{name} cannot load a checkpoint with amsgrad=True")
        for group in loaded["param_groups"]:
            check_moments({**optimizer.defaults, **group})
        final.update(loaded)

    def restore(_: Optimizer) -> None:
        ids = [i for group in final["param_groups"] for i in group["params"]]
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for i, param in zip(ids, params, strict=True):
            if i in final["state"]:
                _restore(param, optimizer.state[param], final["state"][i])

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


def _restore(param: Tensor, state: dict[str, Any], saved: dict[str, Any]) -> None:
    """Undo what ``Optimizer.load_state_dict`` does to our state.

    It casts every floating tensor except ``step`` to the parameter's dtype and device, which
    rounds the float32 state of a bf16 parameter and sends a count that belongs on the CPU to the
    GPU.
    """
    half = state_dtype(param) != param.dtype
    for key, value in saved.items():
        if key == "past_steps" and isinstance(state.get("step"), Tensor):
            state[key] = value.to(device=state["step"].device, dtype=state["step"].dtype)
        elif half and key != "step" and isinstance(value, Tensor) and value.is_floating_point():
            state[key] = value.to(device=param.device, dtype=state_dtype(param))
