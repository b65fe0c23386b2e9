"""The tables on the GPU that the fused kernels walk over, and the launches over them.

A plan belongs to a list of parameters and their state, and to a stream. The addresses of gradients
may change at every step: a new set is copied over the last one in the order of the stream. A CUDA
graph gets tables of its own, filled while it is captured and never written again.
"""

import importlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.optim.cuda.capture import aside, relaxed
from longtail.optim.cuda.launch import Launch, Launcher, current_stream

BLOCK = 512
NUM_WARPS = 4
MANY = 2
"""Blocks that a program takes one after the other, where there are enough to fill the GPU."""

_ENOUGH = 2**22  # elements

captured: list[Any] = []
"""Tables that a CUDA graph may read at any later time."""


class Tensors(NamedTuple):
    """What a step of one parameter touches, in the order of a row of the table."""

    param: Tensor | None
    exp_avg: Tensor
    exp_avg_sq: Tensor
    past_exp_avg_sq: Tensor | None
    past_exp_avg: Tensor | None
    step: Tensor
    past_steps: Tensor


class Kind(NamedTuple):
    """The dtypes of tensors that one launch can take together."""

    param: torch.dtype
    grad: torch.dtype
    state: torch.dtype

    @property
    def arithmetic(self) -> torch.dtype:
        return torch.float64 if torch.float64 in self else torch.float32


class _Bucket:
    """The tensors of one kind, and which program takes which chunk of which tensor."""

    def __init__(self, kind: Kind, indices: list[int], sizes: list[int], device: Any) -> None:
        many = sum(sizes[i] for i in indices) >= _ENOUGH
        self.chunk = BLOCK * MANY if many else BLOCK
        # An empty tensor has a chunk too: its steps are counted like any other's.
        counts = torch.tensor([max(1, -(-sizes[i] // self.chunk)) for i in indices])
        tensor = torch.tensor(indices).repeat_interleave(counts)
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        chunks = torch.stack((tensor, torch.arange(len(tensor)) - first), dim=1)
        self.chunks = upload(chunks.to(torch.int32), device)
        self.indices = indices
        self.programs = len(tensor)
        self.dtypes = tuple(map(_triton_dtype, (*kind, kind.arithmetic)))
        self.launch = Launcher(self.programs, NUM_WARPS, current_stream(device))


class Plan:
    """Everything a launch needs except the gradients' addresses and the scalars."""

    kernels = "longtail.optim.cuda.kernels"

    def __init__(self, members: Sequence[Tensors | None], kinds: Sequence[Kind | None]) -> None:
        """Made for the current stream. A member of ``None`` is a parameter without state."""
        self.kinds = tuple(kinds)
        self.device = next(x for x in members if x is not None).exp_avg.device
        self.stream = current_stream(self.device)
        sizes = [0 if x is None else x.exp_avg.numel() for x in members]
        rows = [_row(x, size) for x, size in zip(members, sizes, strict=True)]
        buckets: dict[Kind, list[int]] = {}
        for i, kind in enumerate(kinds):
            if kind is not None:
                buckets.setdefault(kind, []).append(i)
        self._table = upload(torch.tensor(rows, dtype=torch.int64), self.device)
        self._arrived = upload(torch.zeros(len(rows), dtype=torch.int32), self.device)
        self._buckets = [_Bucket(k, i, sizes, self.device) for k, i in buckets.items()]
        programs = sum(bucket.programs for bucket in self._buckets)
        self._tally = upload(torch.tensor((programs, 0, 0), dtype=torch.int32), self.device)
        self.gradients = (0,) * len(rows)
        self._gradients = upload(torch.zeros(len(rows), dtype=torch.int64), self.device)
        self._ready: dict[str, tuple[Any, list[Launch]]] = {}

    def step(
        self,
        gradients: tuple[int, ...],
        pointers: tuple[Tensor | None, Tensor | None, Tensor | None],
        floats: tuple[float, ...],
        policy: tuple[Any, ...],
    ) -> None:
        """Step the tensors whose gradient address is not 0.

        Args:
            pointers: learning rate, gradient scale and found_inf, where they are on the device.
            floats: the kernel's scalars, from `step_floats`.
            policy: its flags, from `step_policy`.
        """
        table = self._placed(gradients)
        self._launch("step_kernel", (table, *pointers), floats, 0, policy)

    def end_task(
        self, tasks_seen: Tensor | None, floats: tuple[float, ...], policy: tuple[Any, ...]
    ) -> None:
        """Fold every tensor that took a step; add one to ``tasks_seen`` if there was any."""
        self._launch("end_task_kernel", (self._tally, tasks_seen), floats, 2, policy)

    def _placed(self, gradients: tuple[int, ...]) -> Tensor:
        """The gradients' addresses where the kernel finds them."""
        table = self._gradients
        if torch.cuda.is_current_stream_capturing():
            return upload(torch.tensor(gradients, dtype=torch.int64), self.device)
        if gradients != self.gradients:
            # From pageable memory, which CUDA has copied when this returns.
            table.copy_(torch.tensor(gradients, dtype=torch.int64), non_blocking=True)
            self.gradients = gradients
        return table

    def _launch(
        self,
        kernel: str,
        pointers: tuple[Tensor | None, ...],
        floats: tuple[float, ...],
        first_dtype: int,
        policy: tuple[Any, ...],
    ) -> None:
        capturing = torch.cuda.is_current_stream_capturing()
        here = torch.cuda.current_device() == self.device.index
        dtypes = tuple([None if x is None else x.dtype for x in pointers])
        key = (floats, policy, dtypes, *[None if x is None else x.data_ptr() for x in pointers])
        last, launches = self._ready.get(kernel, (None, []))
        if here and not capturing and last == key:
            for launch in launches:
                launch.call(*launch.arguments)
            return
        if capturing:
            captured.append((self, pointers))
        function = getattr(importlib.import_module(self.kernels), kernel)
        # While a graph is captured, loading the kernel is not allowed otherwise.
        with torch.cuda.device(self.device), relaxed() if capturing else nullcontext():
            again = [
                bucket.launch(
                    function,
                    (kernel, policy, dtypes),
                    (self._table, bucket.chunks, self._arrived, *pointers),
                    floats,
                    (*bucket.dtypes[first_dtype:], *policy, bucket.chunk, BLOCK),
                )
                for bucket in self._buckets
            ]
        known = [launch for launch in again if launch is not None]
        if len(known) == len(again) and not capturing:
            self._ready[kernel] = (key, known)


def _row(tensors: Tensors | None, size: int) -> list[int]:
    if tensors is None:
        return [0] * 8
    return [*(0 if x is None else x.data_ptr() for x in tensors), size]


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, also while a graph is captured."""
    with aside(device) as capturing:
        return tensor.to(device, non_blocking=not capturing)


def _triton_dtype(dtype: torch.dtype) -> Any:
    return getattr(importlib.import_module("triton.language"), str(dtype).removeprefix("torch."))
