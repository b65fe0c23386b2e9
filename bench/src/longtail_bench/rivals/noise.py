"""Steps that count and draw where the parameters are: what optimizers with random numbers share.

The numbers are a function of seed, name, the parameter's place in its group, and its step:

    normal(n, seed, name, place, step)

So an optimizer that begins every task anew (the policy ``new``, or `restart_time`) draws the same
noise in every task: its counts begin anew too.

With ``capturable`` the count of steps is a tensor beside the parameter, and nothing that a step
does depends on a number that the host would have to read: it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from longtail.support.random import NormalStreams, normal

Group = dict[str, Any]
Counts = list[float] | list[Tensor]  # of steps: numbers, or float64 tensors on the device


class Member(NamedTuple):
    """A parameter of a group, its place there, and its state."""

    place: int
    param: Tensor
    state: dict[str, Any]


def new_count(p: Tensor, group: Group) -> Tensor:
    """The count of a parameter's steps before the first one."""
    return torch.zeros((), device=p.device if group["capturable"] else "cpu")


def counts_of(members: Sequence[Member], group: Group) -> Counts:
    """How many steps each parameter has taken."""
    steps = [member.state["step"] for member in members]
    if group["capturable"]:
        return list(torch.stack(steps).double().unbind())
    return [float(step) for step in steps]


def corrected(tensors: list[Tensor], beta: float, counts: Counts) -> list[Tensor]:
    """Averages that began at zero without that zero: x / (1 - beta ** t)."""
    return list(torch._foreach_div(tensors, [1 - beta**t for t in counts]))  # pyright: ignore


def scale(tensors: list[Tensor], factor: float | Tensor) -> None:
    """Multiply all by a number, in place."""
    if tensors[0].device.type != "cpu":
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:  # for all at once it would be rounded to half precision first
        tensor.mul_(factor)


class Noise:
    """Standard normal numbers in the shapes of a group's parameters, each replica's its own.

    Args:
        name: what they are for, a part of their key.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._streams: dict[Hashable, NormalStreams] = {}

    def draw(self, members: Sequence[Member], group: Group) -> list[Tensor]:
        """The noise of the step that each parameter is at, in the parameter's shape."""
        params = [member.param for member in members]
        device, lead = params[0].device, group["lead"]
        sizes = [math.prod(p.shape[lead:]) for p in params]
        if device.type == "cpu" and not group["capturable"]:
            drawn = [
                normal(n, group["seed"], self.name, place, int(state["step"]))
                for n, (place, _, state) in zip(sizes, members, strict=True)
            ]
        else:
            places = [member.place for member in members]
            drawn = self._of(sizes, places, group["seed"], device).draw(_keys(members, device))
        return [
            x.reshape(p.shape).to(p.device, p.dtype) for x, p in zip(drawn, params, strict=True)
        ]

    def _of(
        self, sizes: list[int], places: list[int], seed: Any, device: torch.device
    ) -> NormalStreams:
        """The streams of these sizes, cached: a captured step reads them at fixed addresses.

        A cached stream holds its seed tensor, so no other tensor can get the same id.
        """
        named = id(seed) if isinstance(seed, Tensor) else seed
        key = (tuple(sizes), tuple(places), named, device)
        if key not in self._streams:
            keys = [(self.name, place) for place in places]
            self._streams[key] = NormalStreams(sizes, seed, keys, device)
        return self._streams[key]


def _keys(members: Sequence[Member], device: torch.device) -> Tensor:
    """The steps as int64 on a device."""
    return torch.stack([m.state["step"] for m in members]).to(device, torch.int64)


class DrawingOptimizer(Optimizer):
    """An optimizer whose steps draw noise, in the name of `stream`."""

    unsaved = ("_noise",)
    stream: str
    not_negative: tuple[str, ...] = ()  # settings of its own that must be zero or more

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        self._check(defaults)
        super().__init__(params, defaults)
        self._noise = Noise(self.stream)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, whose own settings are checked as the constructor checks its own."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _check(self, group: Group) -> None:
        """Refuse settings that make no sense, with their name and value."""
        betas = group["betas"]
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise ValueError(f"Invalid betas: {betas}, two are needed")
        for i, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise ValueError(f"Invalid betas[{i}]: {beta}, not in [0, 1)")
        for name in ("lr", "eps", "weight_decay", *self.not_negative):
            value = group[name]
            if not isinstance(value, Tensor) and not 0 <= value < math.inf:  # nobody waits for it
                raise ValueError(f"Invalid {name}: {value}, it must be zero or more")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._noise = Noise(self.stream)  # what it has made ready is for other seeds
        for group in self.param_groups:
            group.setdefault("capturable", False)  # not in states from before it was there
