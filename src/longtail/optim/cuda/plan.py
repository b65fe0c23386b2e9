"""The tables on the GPU that the fused kernels walk over, and the launches over them.

First what the kernels are given: scalars and flags made of an optimizer's settings, and tensors as
flat memory, copied where they are not. Then the plans.

A plan belongs to a list of parameters and their state, and to a stream. The addresses of gradients
may change at every step: a new set is copied over the last one in the order of the stream. A CUDA
graph gets tables of its own, filled while it is captured, never written again and freed with it.
"""

import ctypes
import functools
import importlib
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.optim.cuda.launch import (
    Launch,
    Launcher,
    aside,
    current_stream,
    free_for_dead_graphs,
    keep_for_graph,
    relaxed,
)
from longtail.optim.past import Draw, is_coded
from longtail.optim.state import Row, is_averaged

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

BLOCK = 512
NUM_WARPS = 4
MANY = 2
"""Blocks that a program takes one after the other, where there are enough to fill the GPU."""

FEW = 2**22
"""Elements up to which one launch for all groups is worth more than a kernel for each policy."""

_ENOUGH = 2**22  # elements
_LOG2_OF_ZERO = -1e4  # 2 ** (_LOG2_OF_ZERO * t) is 0, and 0 * it is not NaN


def step_floats(
    lr: Any, weight_decay: float, eps: float, betas: tuple[Any, Any], beta3: float
) -> tuple[float, ...]:
    """Each as two float32, whose sum is good for float64; without an lr that is on the device."""
    rate = 0.0 if isinstance(lr, Tensor) and lr.is_cuda else float(lr)
    beta1, beta2 = map(float, betas)
    return (
        *_split(rate),
        *_split(weight_decay),
        *_split(eps),
        *_split(beta1),
        *_split(1 - beta1),
        *_split(beta2),
        *_split(1 - beta2),
        *_split_log2(beta1),
        *_split_log2(beta2),
        *_split_log2(beta3),
    )


def step_policy(
    first_moment: str, second_moment: str, weight_decay: float, decoupled: bool, maximize: bool
) -> tuple[Any, ...]:
    """FIRST, SECOND, SEEN, CARRY, DECAY and MAXIMIZE of the step kernel."""
    decay = 0 if weight_decay == 0 else 2 if decoupled else 1
    return (
        first_moment == "task",
        is_averaged(second_moment),
        second_moment == "task_seen",
        second_moment == "ema",
        decay,
        bool(maximize),
    )


def end_floats(beta1: Any, beta2: Any) -> tuple[float, ...]:
    return (*_split_log2(float(beta1)), *_split_log2(float(beta2)))


def end_policy(first_moment: str, second_moment: str) -> tuple[bool, ...]:
    """FIRST, SECOND, ZERO_FIRST and ZERO_SECOND of the boundary kernel."""
    return (
        first_moment == "task",
        is_averaged(second_moment),
        first_moment != "ema",
        second_moment != "ema",
    )


def end_rules(first_moment: str, second_moment: str) -> tuple[float, float]:
    """What becomes of each moment in `end_groups_kernel`: 0 kept, 1 set to zero, 2 averaged."""
    moments = (first_moment, second_moment)
    first, second = (2.0 if is_averaged(x) else 0.0 if x == "ema" else 1.0 for x in moments)
    return first, second


@functools.lru_cache(maxsize=1024)
def _split(x: float) -> tuple[float, float]:
    high = ctypes.c_float(x).value
    return high, x - high


@functools.lru_cache(maxsize=1024)
def _split_log2(beta: float) -> tuple[float, float]:
    return _split(math.log2(beta) if beta > 0 else _LOG2_OF_ZERO)


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Whether element k of one block of memory belongs to element k of the other."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    order = _order(a)
    return order is not None and order == _order(b)


def fits(row: Row) -> bool:
    """Whether the kernels can take these as they are."""
    return (
        all(x.dtype is torch.float32 for x in (row.step, row.past_steps))
        and row.exp_avg.dtype in DTYPES
        and all(x.dtype is row.exp_avg.dtype for x in _moments(row) if not _is_coded_past(x, row))
        and all(same_layout(row.exp_avg, x) for x in _elements(row))
    )


def flat(row: Row, grad: Tensor) -> tuple[Row, Tensor]:
    """The same values where the kernels can take them; the tensors themselves if possible."""
    if not fits(row):
        dtype = torch.float64 if row.exp_avg.dtype is torch.float64 else torch.float32
        row = Row(
            None if row.param is None else row.param.contiguous(),
            row.exp_avg.to(dtype).contiguous(),
            row.exp_avg_sq.to(dtype).contiguous(),
            _past_copy(row, dtype),
            _copy(row.past_exp_avg, dtype),
            row.step.to(torch.float32),
            row.past_steps.to(torch.float32),
        )
    grad = grad.resolve_neg()
    if grad.dtype not in DTYPES:
        grad = grad.to(torch.float32)
    if not same_layout(row.exp_avg, grad):
        grad = torch.empty_like(row.exp_avg, dtype=grad.dtype).copy_(grad)
    return row, grad


def write_back(original: Row, used: Row) -> None:
    """Copy what was changed to where it belongs, if a copy was made."""
    if original is not used:
        for tensor, copy in zip(original, used, strict=True):
            if tensor is not copy and tensor is not None and copy is not None:
                tensor.copy_(copy)


def _copy(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype).contiguous()


def _past_copy(row: Row, dtype: torch.dtype) -> Tensor | None:
    past = row.past_exp_avg_sq
    if past is not None and _is_coded_past(past, row):
        return past.contiguous()
    return _copy(past, dtype)


def _is_coded_past(tensor: Tensor, row: Row) -> bool:
    """Whether this is the row's v_c, kept in fewer bytes than its other moments."""
    return tensor is row.past_exp_avg_sq and is_coded(tensor)


def _elements(row: Row) -> list[Tensor]:
    return [x for x in row[:5] if x is not None]


def _moments(row: Row) -> list[Tensor]:
    return [x for x in row[1:5] if x is not None]


def _order(tensor: Tensor) -> tuple[tuple[int, int], ...] | None:
    """(stride, dimension) from the innermost out; None if there are gaps or overlaps."""
    order = sorted(
        (stride, i)
        for i, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
        if size != 1
    )
    expected = 1
    for stride, i in order:
        if stride != expected:
            return None
        expected *= tensor.shape[i]
    return tuple(order)


class Kind(NamedTuple):
    """The dtypes of tensors that one launch can take together."""

    param: torch.dtype
    grad: torch.dtype
    state: torch.dtype
    past: torch.dtype

    @classmethod
    def of(cls, row: Row, grad: torch.dtype) -> "Kind":
        """That of a parameter; without one, as at a boundary, the first moment stands in for it."""
        state = row.exp_avg.dtype
        past = row.past_exp_avg_sq
        param = state if row.param is None else row.param.dtype
        return cls(param, grad, state, state if past is None else past.dtype)

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

    def __init__(self, members: Sequence[Row | None], kinds: Sequence[Kind | None]) -> None:
        """Made for the current stream. A member of ``None`` is a parameter without state."""
        free_for_dead_graphs()
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
        self._held: dict[str, tuple[Any, Tensor]] = {}

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
        self,
        draws: Sequence[Draw],
        tasks_seen: Tensor | None,
        floats: tuple[float, ...],
        policy: tuple[Any, ...],
    ) -> None:
        """Fold every tensor that took a step; add one to ``tasks_seen`` if there was any."""
        table = self._table_of("draws", draws, torch.int64)
        self._launch("end_task_kernel", (table, self._tally, tasks_seen), floats, 2, policy)

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

    def _table_of(self, name: str, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """The values on the device: copied over the last ones in the order of the stream."""
        if torch.cuda.is_current_stream_capturing():
            return upload(torch.tensor(values, dtype=dtype), self.device)
        last, table = self._held.get(name, (None, None))
        if table is None:
            table = upload(torch.tensor(values, dtype=dtype), self.device)
        elif last != values:
            table.copy_(torch.tensor(values, dtype=dtype), non_blocking=True)
        self._held[name] = values, table
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
            tables = (self._table, self._arrived, *[bucket.chunks for bucket in self._buckets])
            keep_for_graph((*tables, *pointers))
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


class GroupPlan(Plan):
    """A plan for the parameters of ``count`` groups; ``groups`` says which group each is in."""

    kernels = "longtail.optim.cuda.group_kernels"

    def __init__(
        self,
        members: Sequence[Row | None],
        kinds: Sequence[Kind | None],
        groups: Sequence[int],
        count: int,
    ) -> None:
        super().__init__(members, kinds)
        self._groups = upload(torch.tensor(groups, dtype=torch.int32), self.device)
        sizes = [0 if x is None else x.exp_avg.numel() for x in members]
        programs = [0] * count
        for bucket in self._buckets:
            for i in bucket.indices:
                programs[groups[i]] += max(1, -(-sizes[i] // bucket.chunk))
        tally = torch.tensor([(n, 0, 0) for n in programs], dtype=torch.int32)
        self._tally = upload(tally, self.device)

    def steps(
        self,
        gradients: tuple[int, ...],
        rates: Sequence[Tensor | None],
        settings: Sequence[tuple[float, ...]],
        pointers: tuple[Tensor | None, Tensor | None],
        policy: tuple[Any, ...],
    ) -> None:
        """Step the tensors whose gradient address is not 0.

        Args:
            rates: of each group the learning rate, where it is on the device.
            settings: of each group the kernel's scalars and flags.
            pointers: gradient scale and found_inf, where there are any.
            policy: DECAY and MAXIMIZE, the same for all groups.
        """
        if torch.cuda.is_current_stream_capturing():
            keep_for_graph(rates)  # whose addresses the graph's table has
        tables = (
            self._placed(gradients),
            self._groups,
            self._table_of("settings", settings, torch.float32),
            self._table_of("rates", _addresses(rates), torch.int64),
        )
        self._launch("step_groups_kernel", (*tables, *pointers), (), 0, policy)

    def end_tasks(
        self,
        draws: Sequence[Draw],
        tasks_seen: Sequence[Tensor],
        ends: Sequence[tuple[float, ...]],
    ) -> None:
        """End the task of all groups: ``ends`` has the kernel's scalars and rules of each."""
        if torch.cuda.is_current_stream_capturing():
            keep_for_graph(tasks_seen)
        tables = (
            self._table_of("draws", draws, torch.int64),
            self._groups,
            self._table_of("ends", ends, torch.float32),
            self._tally,
            self._table_of("tasks_seen", _addresses(tasks_seen), torch.int64),
        )
        self._launch("end_groups_kernel", tables, (), 2, ())


def _row(tensors: Row | None, size: int) -> list[int]:
    if tensors is None:
        return [0] * 8
    return [*(0 if x is None else x.data_ptr() for x in tensors), size]


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, also while a graph is captured."""
    with aside(device) as capturing:
        return tensor.to(device, non_blocking=not capturing)


def _triton_dtype(dtype: torch.dtype) -> Any:
    return getattr(importlib.import_module("triton.language"), str(dtype).removeprefix("torch."))


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if x is None else x.data_ptr() for x in tensors]
