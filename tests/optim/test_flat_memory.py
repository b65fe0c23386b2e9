"""Memory: one buffer more than AdamW, and nothing in a step beyond what torch's own step takes."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.optimizers import IMPLEMENTATIONS, parameters, set_gradients
from longtail import ContinualAdamW

SHAPES = ((64, 64), (64, 64), (64, 64))


class LiveBytes(TorchDispatchMode):
    """Counts the memory that operations allocate, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if is_tensor(x)}
        for x in filter(is_tensor, tree_leaves(result)):
            storage = x.untyped_storage()
            if storage._cdata not in inputs and storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return result

    def _free(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def peak_of_a_step(cls: Any, **kwargs: Any) -> int:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = cls(params, weight_decay=0.1, **kwargs)
    for seed in range(2):
        set_gradients(seed, params)
        optimizer.step()
    with LiveBytes() as live:
        optimizer.step()
    return live.peak


def state_bytes(cls: Any) -> int:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = cls(params)
    set_gradients(0, params)
    optimizer.step()
    return sum(x.nbytes for s in optimizer.state.values() for x in s.values() if x.dim())


def test_state_is_one_buffer_more_than_adamw() -> None:
    size = sum(4 * p.numel() for p in parameters(*SHAPES))
    assert state_bytes(ContinualAdamW) - state_bytes(torch.optim.AdamW) == size


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_step_takes_no_more_memory_than_torchs(implementation: str) -> None:
    kwargs = IMPLEMENTATIONS[implementation]
    ours = peak_of_a_step(ContinualAdamW, **kwargs)
    theirs = peak_of_a_step(torch.optim.AdamW, **kwargs)
    scalars = 1024
    assert ours <= theirs + scalars


def test_a_boundary_needs_no_memory_of_the_size_of_the_parameters() -> None:
    for kwargs in IMPLEMENTATIONS.values():
        params = parameters(*SHAPES, dtype=torch.float32)
        optimizer = ContinualAdamW(params, first_moment="task", **kwargs)
        set_gradients(0, params)
        optimizer.step()
        with LiveBytes() as live:
            optimizer.end_task()
        assert live.peak < 1024
