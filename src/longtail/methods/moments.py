"""What a method reads, and changes, of the moments that Adam keeps of a parameter.

Any optimizer will do that calls them as `torch.optim.Adam` does, ours among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from longtail.methods.base import Method


def states(method: Method, key: str) -> Iterator[tuple[nn.Parameter, dict[str, Any], Any]]:
    """Every parameter that has been stepped, its state, which has `key`, and its group."""
    name = type(method).__name__
    if method.optimizer is None:
        raise ValueError(
            f"{name} reads the moments of the optimizer and was not told which it is: "
            "method.optimizer = optimizer"
        )
    for group in method.optimizer.param_groups:
        for p in group["params"]:
            state = method.optimizer.state.get(p)
            if not state or (key not in state and "past_steps" in state):
                continue  # no step yet, though perhaps a past that was loaded
            if key not in state:
                raise ValueError(
                    f"{name} needs an optimizer that keeps {key!r} of a parameter, as Adam does; "
                    f"{type(method.optimizer).__name__} keeps {', '.join(map(str, state))}"
                )
            yield p, state, group


def second_moment(state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """v̂ = v / (1 - β₂ᵗ), and 0 where the task took no step; without waiting for the device."""
    v = state["exp_avg_sq"]
    t = torch.as_tensor(state["step"])
    past = group.get("second_moment") == "ema"  # then v is an average over earlier tasks as well
    steps = t + state["past_steps"] if past else t
    correction = -torch.expm1(steps.double() * math.log(group["betas"][1]))
    factor = torch.where(t > 0, 1 / correction, torch.zeros_like(correction))
    return v * factor.to(v.device, v.dtype)
