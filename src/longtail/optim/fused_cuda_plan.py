"""The tables on the GPU that the fused kernels walk over, and the launches themselves.

A plan belongs to a list of parameters and their state. Its tables are never written twice: a new
set of gradient addresses gets a new table (recent ones are kept, as an allocator repeats itself). So
no copy has to be waited for before a buffer is used again, and a CUDA graph keeps the very tables it
was captured with.
"""

import functools
import importlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.optim.fused_cuda_capture import aside, relaxed

BLOCK = 2048
NUM_WARPS = 8
_KEPT_GRADIENT_TABLES = 8

_NOTHING = nullcontext()

_captured: list[Any] = []
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
    """The tensors of one kind: which program takes which block, and the kernels compiled for it."""

    def __init__(
        self, kind: Kind, indices: Sequence[int], sizes: Sequence[int], device: torch.device
    ) -> None:
        # An empty tensor has a block too: its steps are counted like any other's.
        counts = torch.tensor([max(1, -(-sizes[i] // BLOCK)) for i in indices])
        tensor = torch.tensor(indices).repeat_interleave(counts)
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        block = torch.arange(len(tensor)) - first
        self.blocks = _upload(torch.stack((tensor, block), dim=1).to(torch.int32), device)
        self.programs = len(tensor)
        self.dtypes = tuple(map(_triton_dtype, (*kind, kind.arithmetic)))
        self._compiled: dict[Any, Any] = {}

    def launch(
        self,
        kernel: Any,
        variant: Any,
        pointers: Sequence[Tensor | None],
        floats: Sequence[float],
        constants: Sequence[Any],
        stream: int,
    ) -> None:
        """Launch; from the second time on without Triton's work of finding the compiled kernel."""
        compiled = self._compiled.get(variant)
        if compiled is not None:
            addresses = [None if x is None else x.data_ptr() for x in pointers]
            try:
                compiled.run(
                    self.programs, 1, 1, stream, compiled.function, compiled.packed_metadata,
                    None, None, None, *addresses, *floats, *constants,
                )  # fmt: skip
                return
            except (TypeError, AttributeError):  # a Triton whose launcher differs: nothing ran
                pass
        self._compiled[variant] = kernel[(self.programs,)](
            *pointers, *floats, *constants, num_warps=NUM_WARPS
        )


class Plan:
    """Everything a launch needs except the gradients' addresses and the scalars."""

    def __init__(self, members: Sequence[Tensors | None], kinds: Sequence[Kind | None]) -> None:
        """Made for the current stream. A member of ``None`` is a parameter without state."""
        self.kinds = tuple(kinds)
        self.device = next(x for x in members if x is not None).exp_avg.device
        sizes = [0 if x is None else x.exp_avg.numel() for x in members]
        rows = [_row(x, size) for x, size in zip(members, sizes, strict=True)]
        buckets: dict[Kind, list[int]] = {}
        for i, kind in enumerate(kinds):
            if kind is not None:
                buckets.setdefault(kind, []).append(i)
        self.stream = current_stream(self.device)
        self.table = _upload(torch.tensor(rows, dtype=torch.int64), self.device)
        self.arrived = _upload(torch.zeros(len(rows), dtype=torch.int32), self.device)
        self.buckets = [_Bucket(k, i, sizes, self.device) for k, i in buckets.items()]
        programs = sum(bucket.programs for bucket in self.buckets)
        self.tally = _upload(torch.tensor((programs, 0, 0), dtype=torch.int32), self.device)
        self._gradient_tables: dict[tuple[int, ...], Tensor] = {}

    def knows(self, gradients: tuple[int, ...]) -> bool:
        """Whether these addresses were used before."""
        return gradients in self._gradient_tables

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
        table = self._gradient_tables.get(gradients)
        if table is None:
            if len(self._gradient_tables) >= _KEPT_GRADIENT_TABLES:
                self._gradient_tables.pop(next(iter(self._gradient_tables)))
            table = _upload(torch.tensor(gradients, dtype=torch.int64), self.device)
            self._gradient_tables[gradients] = table
        variant = (policy, *[None if x is None else x.dtype for x in pointers])
        self._launch("step_kernel", variant, (table, *pointers), floats, 0, policy)

    def end_task(
        self, tasks_seen: Tensor | None, floats: tuple[float, ...], policy: tuple[Any, ...]
    ) -> None:
        """Fold every tensor that took a step; add one to ``tasks_seen`` if there was any."""
        variant = (policy, tasks_seen is None)
        pointers = (self.tally, tasks_seen)
        self._launch("end_task_kernel", variant, pointers, floats, 2, policy)

    def _launch(
        self,
        kernel: str,
        variant: tuple[Any, ...],
        pointers: tuple[Tensor | None, ...],
        floats: tuple[float, ...],
        first_dtype: int,
        policy: tuple[Any, ...],
    ) -> None:
        if torch.cuda.is_current_stream_capturing():
            _captured.append((self, pointers))
            around = relaxed()  # the kernel may have to be loaded
        elif torch.cuda.current_device() != self.device.index:
            around = torch.cuda.device(self.device)
        else:
            around = _NOTHING
        function = getattr(_kernels(), kernel)
        with around:
            for bucket in self.buckets:
                bucket.launch(
                    function,
                    variant,
                    (self.table, bucket.blocks, self.arrived, *pointers),
                    floats,
                    (*bucket.dtypes[first_dtype:], *policy, BLOCK),
                    self.stream,
                )


def _row(tensors: Tensors | None, size: int) -> list[int]:
    if tensors is None:
        return [0] * 8
    return [*(0 if x is None else x.data_ptr() for x in tensors), size]


def _upload(tensor: Tensor, device: torch.device) -> Tensor:
    with aside(device) as capturing:
        if capturing:
            return tensor.to(device)
        # torch hands pinned memory out again only once the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)


def current_stream(device: torch.device) -> int:
    # What Triton itself calls; the public torch.cuda.current_stream takes ten times as long.
    return torch._C._cuda_getCurrentRawStream(device.index)


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("longtail.optim.fused_cuda_kernels")


def _triton_dtype(dtype: torch.dtype) -> Any:
    return getattr(importlib.import_module("triton.language"), str(dtype).removeprefix("torch."))
