"""What the optimizer's test files share."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from longtail import ContinualAdam, ContinualAdamW

IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
CUDA_IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "default": {},
    "capturable for-loop": {"foreach": False, "capturable": True},
    "capturable foreach": {"foreach": True, "capturable": True},
    "capturable fused": {"fused": True, "capturable": True},
}
WAYS = [pytest.param(("cpu", kwargs), id=name) for name, kwargs in IMPLEMENTATIONS.items()]
WAYS += [
    pytest.param(("cuda", kwargs), id=f"cuda {name}", marks=pytest.mark.gpu)
    for name, kwargs in CUDA_IMPLEMENTATIONS.items()
]
"""A device and the arguments of an optimizer: every way in which a step can be taken."""

FUSED_WAYS = [way for way in WAYS if "fused" in way.id]  # pyright: ignore
PAIRS = [(ContinualAdam, torch.optim.Adam), (ContinualAdamW, torch.optim.AdamW)]
FIRST_MOMENTS = ("reset", "ema", "task")
SECOND_MOMENTS = (*FIRST_MOMENTS, "task_seen")

device = "cpu"  # of new parameters, which the fixture `implementation` chooses


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Parameter]:
    generator = torch.Generator().manual_seed(len(shapes))
    values = [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]
    return [Parameter(x.to(device)) for x in values]


def twins(params: Iterable[Tensor]) -> list[Parameter]:
    return [Parameter(p.detach().clone()) for p in params]


def set_gradients(seed: int, *lists: Iterable[Tensor]) -> None:
    """The same random gradients for the parameters of each list."""
    for params in lists:
        generator = torch.Generator().manual_seed(seed)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device)


def train(
    optimizer: torch.optim.Optimizer,
    params: list[Parameter],
    seeds: Iterable[int],
    boundary_after: Iterable[int] = (),
    step: Callable[[], Any] | None = None,
) -> None:
    """One step for each seed, with a task boundary after some of them."""
    ends = set(boundary_after)
    for seed in seeds:
        set_gradients(seed, params)
        (step or optimizer.step)()
        if seed in ends:
            assert isinstance(optimizer, ContinualAdam)
            optimizer.end_task()


def assert_same(a: Iterable[Tensor], b: Iterable[Tensor], **tolerance: float) -> None:
    exact = tolerance or {"rtol": 0, "atol": 0}
    torch.testing.assert_close([x.detach() for x in a], [x.detach() for x in b], **exact)


def states(optimizer: torch.optim.Optimizer, params: Iterable[Tensor]) -> list[Tensor]:
    return [optimizer.state[p][key] for p in params for key in sorted(optimizer.state[p])]
