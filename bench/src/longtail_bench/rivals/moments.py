"""What a method reads, and changes, of the moments that Adam keeps of a parameter.

Any optimizer will do that calls them as `torch.optim.Adam` does, ours among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from longtail.methods import Method


def states(method: Method, *keys: str) -> Iterator[tuple[nn.Parameter, dict[str, Any], Any]]:
    """Every parameter that has been stepped, its state, which has all `keys`, and its group."""
    name = type(method).__name__
    if method.optimizer is None:
        raise ValueError(
            f"{name} reads the moments of the optimizer and was not told which it is: "
            "method.optimizer = optimizer"
        )
    for group in method.optimizer.param_groups:
        if "betas" not in group:  # without a state to look at: SGD may keep nothing at all
            raise ValueError(_refusal(method, keys[0], "has no betas"))
        for p in group["params"]:
            state = method.optimizer.state.get(p)
            missing = [key for key in keys if key not in state] if state else []
            if not state or (missing and "past_steps" in state):
                continue  # no step yet, though perhaps a past that was loaded
            if missing:
                kept = f"keeps {', '.join(map(str, state))}"
                raise ValueError(_refusal(method, missing[0], kept))
            yield p, state, group


def _refusal(method: Method, key: str, instead: str) -> str:
    return (
        f"{type(method).__name__} needs an optimizer that keeps {key!r} of a parameter, as Adam "
        f"does; {type(method.optimizer).__name__} {instead}"
    )


def second_moment(state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """v̂ = v / (1 - β₂ᵗ), and 0 where the task took no step; without waiting for the device."""
    v = state["exp_avg_sq"]
    t = torch.as_tensor(state["step"])
    past = group.get("second_moment") == "ema"  # then v is an average over earlier tasks as well
    steps = t + state["past_steps"] if past else t
    correction = 1 - group["betas"][1] ** steps.double()
    factor = torch.where(t > 0, 1 / correction, torch.zeros_like(correction))
    return v * factor.to(v.device, v.dtype)
