"""The CUDA step as a `Launch`: one Triton kernel over tables for parameters of one kind.

Tables belong to a stream. Addresses and what a boundary needs are written once; the addresses of
gradients, and the settings of several groups, are copied over the last ones in the order of the
stream, where they have changed. A CUDA graph has its own of these, which are never written again.

While a graph is captured nothing may be copied on its stream, or the graph would do so at every
replay, so tables are then filled on a stream beside it. Triton is imported at the first launch.
"""

import ctypes
import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from operator import is_, itemgetter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from longtail.optim.state import Row, is_averaged

Group = dict[str, Any]

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
BLOCK = 512
NUM_WARPS = 4
MANY = 2  # blocks that a program takes one after the other, where there are enough for the GPU
_ENOUGH = 2**22  # elements
_STREAMS = 4  # whose tables are kept: a graph's stream and that of the boundaries take turns
_LOG2_OF_ZERO = -1e4  # 2 ** (_LOG2_OF_ZERO * t) is 0, and 0 * it is not NaN
# The settings that may be others in every step.
_set_between_steps = itemgetter("lr", "betas", "weight_decay", "eps", "beta3", "maximize")
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Kind(NamedTuple):
    """What parameters share that one launch can take."""

    device: torch.device
    param: torch.dtype
    state: torch.dtype
    past: torch.dtype


class _Scalars(NamedTuple):
    """The settings of a step, as the kernel takes them."""

    seen: list[Any]  # what they were made of
    has_tensors: bool  # whose values may be others in the next step
    floats: tuple[float, ...]  # those of the only group
    rows: list[tuple[float, ...]] | None  # or those of several
    rates: list[Tensor | None]  # of each group the learning rate, where it is on the device
    places: list[int]  # the addresses of those
    rate_dtype: torch.dtype
    flags: tuple[int, int]  # DECAY and MAXIMIZE


class _Warm(NamedTuple):
    """A launch that can be done again if only what its gradients' table holds has changed."""

    scalars: _Scalars
    read: torch.dtype
    again: Callable[[], None]


class CudaLaunch:
    """The launches over parameters of one kind, of one group or several."""

    def __init__(
        self,
        kind: Kind,
        members: Sequence[Any],
        groups: Sequence[Group],
        captured: list[Tensor],
    ) -> None:
        self._kind, self._captured = kind, captured
        self._numbers = sorted({x.group for x in members})  # of the groups that it has members of
        rows, sizes = [], []
        for x in members:
            sizes.append(x.row.exp_avg.numel())
            place = self._numbers.index(x.group)  # in the tables of settings
            rows.append([*map(_address, x.row), sizes[-1], *x.draw, place])
        self._rows = torch.tensor(rows, dtype=torch.int64)
        self._chunk = BLOCK * MANY if sum(sizes) >= _ENOUGH else BLOCK
        self._chunks = _chunks(sizes, self._chunk)
        self._tables: dict[int, _Tables] = {}  # by stream, the latest last
        self._scalars: _Scalars | None = None  # of the last step, where no tensor was among them

        # What the kernels' flags say of each group, and whether any of them needs it.
        self._steps, self._ends = [], []
        for g in (groups[i] for i in self._numbers):
            first, second = g["first_moment"], g["second_moment"]
            averaged = first == "task", is_averaged(second)
            self._steps.append((*averaged, second == "task_seen", second == "ema"))
            self._ends.append((*averaged, first != "ema", second != "ema"))
        self._any_step = tuple(map(any, zip(*self._steps, strict=True)))
        self._any_end = tuple(map(any, zip(*self._ends, strict=True)))

    @staticmethod
    def kind_of(row: Row) -> Kind | None:
        """The kind of a parameter; None if the kernel cannot take it."""
        p, state = row.param, row.exp_avg.dtype
        if p is None or not row.is_flat() or not {p.dtype, state} <= DTYPES or not triton_works():
            return None
        past = state if row.past_exp_avg_sq is None else row.past_exp_avg_sq.dtype
        return Kind(p.device, p.dtype, state, past)

    def step(
        self,
        gradients: Sequence[Tensor | None],
        groups: Sequence[Group],
        decoupled: bool,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        read = next((g.dtype for g in gradients if g is not None), None)
        if read is None:
            return
        device = self._kind.device
        unscaled = grad_scale is None and found_inf is None
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        tables = self._tables.get(stream) or self._tables_on(stream)
        tables.capturing = torch.cuda.is_current_stream_capturing()
        own = [groups[i] for i in self._numbers]
        seen = list(chain.from_iterable(map(_set_between_steps, own)))
        scalars = self._scalars
        # The very objects of the last step: of those, tensors alone could have changed since.
        if scalars is None or scalars.has_tensors or not all(map(is_, seen, scalars.seen)):
            self._scalars = scalars = self._scalars_of(own, seen, decoupled)
        try:
            addresses = list(map(Tensor.data_ptr, cast(Sequence[Tensor], gradients)))
        except TypeError:
            addresses = [0]
        if 0 in addresses:  # one is missing, or is empty: its steps count
            addresses = [0 if g is None else g.data_ptr() or 1 for g in gradients]
        table = tables.changing("gradients", addresses, torch.int64)
        warm = tables.warm
        if (
            warm is not None
            and (warm.scalars is scalars and warm.read is read and unscaled)
            and not tables.capturing
            and torch._C._cuda_getDevice() == device.index
        ):
            warm.again()
            return
        settings = places = rate = None
        if scalars.rows is None:
            (rate,) = scalars.rates
        else:
            settings = tables.changing("settings", scalars.rows, torch.float32)
            places = tables.changing("rates", scalars.places, torch.int64)
        others = [None if x is None else x.to(device) for x in (grad_scale, found_inf)]
        pointers = (table, settings, places, rate, *others)
        _, param, state, past = self._kind
        exact = torch.float64 if torch.float64 in (param, read, state) else torch.float32
        dtypes = (param, read, state, past, exact, scalars.rate_dtype)
        flags = (*self._any_step, *scalars.flags, self._chunk, BLOCK)
        again = tables.launch("step_kernel", pointers, scalars.floats, dtypes, flags)
        tables.warm = _Warm(scalars, read, again) if again is not None and unscaled else None
        if tables.capturing:
            read_by_graph = (*tables.fixed, *pointers, *scalars.rates)
            self._captured += [x for x in read_by_graph if x is not None]

    def end_task(self, groups: Sequence[Group]) -> list[Tensor | bool]:
        _, _, state, past = self._kind
        stream = torch._C._cuda_getCurrentRawStream(self._kind.device.index)
        tables = self._tables.get(stream) or self._tables_on(stream)
        tables.capturing = torch.cuda.is_current_stream_capturing()
        took = tables.took.zero_()
        floats = []
        for i in self._numbers:
            beta1, beta2 = groups[i]["betas"]
            floats.append(_end_floats(float(beta1), float(beta2)))
        settings = None
        if len(floats) > 1:
            rows = [(*a, *map(float, b)) for a, b in zip(floats, self._ends, strict=True)]
            settings, floats = tables.changing("ends", rows, torch.float32), [(0.0,) * 4]
        exact = torch.float64 if state is torch.float64 else torch.float32
        flags = (*self._any_end, self._chunk, BLOCK)
        tables.launch("end_task_kernel", (settings, took), floats[0], (state, past, exact), flags)
        if tables.capturing:
            self._captured += [x for x in (*tables.fixed, settings, took) if x is not None]
        result: list[Tensor | bool] = [False] * len(groups)
        for number, stepped in zip(self._numbers, tables.stepped, strict=True):
            result[number] = stepped
        return result

    def _tables_on(self, stream: int) -> "_Tables":
        """New ones for a stream."""
        if len(self._tables) == _STREAMS:
            self._tables.pop(next(iter(self._tables)))
        tables = _Tables(self._rows, self._chunks, self._kind.device, stream, len(self._numbers))
        self._tables[stream] = tables
        return tables

    def _scalars_of(self, own: Sequence[Group], seen: list[Any], decoupled: bool) -> _Scalars:
        rows, rates, has_tensors = [], [], False
        for g in own:
            lr, (beta1, beta2) = g["lr"], g["betas"]
            has_tensors |= any(isinstance(x, Tensor) for x in (lr, beta1, beta2))
            on_device = isinstance(lr, Tensor) and not lr.is_cpu
            rates.append(lr.to(self._kind.device) if on_device else None)
            rate = 0.0 if on_device else float(lr)
            numbers = (g["weight_decay"], g["eps"], beta1, beta2, g["beta3"])
            rows.append(_step_floats(rate, *map(float, numbers)))
        # The kernel reads all rates as one type: the widest.
        rate_dtypes = {x.dtype for x in rates if x is not None} or {torch.float32}
        rate_dtype = rate_dtypes.pop() if len(rate_dtypes) == 1 else torch.float64
        rates = [None if x is None else x.to(rate_dtype) for x in rates]
        places = list(map(_address, rates))
        decay = 2 if decoupled else 1
        flags = (
            decay if any(g["weight_decay"] for g in own) else 0,
            # All groups are maximized, or some, or none.
            1 if all(g["maximize"] for g in own) else 2 * any(g["maximize"] for g in own),
        )
        if len(own) == 1:
            floats, table = rows[0], None
        else:
            table = []
            for row, policy, g in zip(rows, self._steps, own, strict=True):
                table.append((*row, *map(float, policy), float(g["maximize"])))
            floats = (0.0,) * len(rows[0])
        return _Scalars(seen, has_tensors, floats, table, rates, places, rate_dtype, flags)


class _Tables:
    """What the kernels read on one stream, and how they were launched there last."""

    def __init__(
        self, rows: Tensor, chunks: Tensor, device: torch.device, stream: int, groups: int
    ) -> None:
        self._device, self._stream = device, stream
        self._programs = len(chunks)
        # Beside the tables: how many programs of each tensor are done.
        arrived = torch.zeros(len(rows), dtype=torch.int32)
        self.fixed = [_upload(x, device) for x in (rows, chunks, arrived)]
        # Of each group whether a task that was ended had steps.
        self.took = _upload(torch.zeros(groups, dtype=torch.int64), device)
        self.stepped = self.took.unbind()
        self.capturing = False
        self.warm: _Warm | None = None
        self._changing: dict[str, tuple[Any, Tensor]] = {}
        self._compiled: dict[Any, Any] = {}
        self._again: dict[str, tuple[Any, Callable[[], None]]] = {}

    def changing(self, name: str, values: Any, dtype: torch.dtype) -> Tensor:
        """The values on the device, copied over the last ones in the order of the stream."""
        last, table = self._changing.get(name, (None, None))
        if table is None or self.capturing:
            table = _upload(torch.tensor(values, dtype=dtype), self._device)
        elif last != values:
            # From pageable memory, which CUDA has copied when this returns.
            table.copy_(torch.tensor(values, dtype=dtype), non_blocking=True)
        if not self.capturing:  # a graph's own is never written again
            self._changing[name] = values, table
        return table

    def launch(
        self,
        name: str,
        pointers: Sequence[Tensor | None],
        floats: tuple[float, ...],
        dtypes: tuple[torch.dtype, ...],
        flags: tuple[Any, ...],
    ) -> Callable[[], None] | None:
        """Launch a kernel; the third time with the same arguments by what is known of it.

        Returns:
            How to launch it once more, once that is known.
        """
        addresses = [None if x is None else x.data_ptr() for x in pointers]
        key = addresses, floats, dtypes, flags
        last, again = self._again.get(name, (None, None))
        here = torch._C._cuda_getDevice() == self._device.index
        if again is not None and last == key and here and not self.capturing:
            again()
            return again
        kernel = getattr(importlib.import_module("longtail.optim.cuda.kernels"), name)
        constants = (*map(_triton_dtype, dtypes), *flags)
        variant = (name, constants, *[None if x is None else x.dtype for x in pointers])
        # While a graph is captured, loading a kernel is not allowed otherwise.
        with torch.cuda.device(self._device), _relaxed() if self.capturing else nullcontext():
            whole = (*self.fixed, *pointers)
            again = self._launch(kernel, variant, whole, (*floats, *constants))
        if again is None or self.capturing:
            return None
        self._again[name] = key, again
        return again

    def _launch(
        self, kernel: Any, variant: Any, pointers: Sequence[Any], rest: tuple[Any, ...]
    ) -> Callable[[], None] | None:
        """Launch; returns how to do it again with the same arguments, once that is known.

        The public way, ``kernel[grid](...)``, looks at every argument to choose among compiled
        versions: tens of microseconds, as much as a step of a small model takes. The version is
        known after the first launch, and its own launcher takes arguments made ready once.
        """
        grid = (self._programs,)
        public = functools.partial(kernel[grid], *pointers, *rest, num_warps=NUM_WARPS)
        compiled = self._compiled.get(variant)
        if compiled is None:
            self._compiled[variant] = public()
            return None
        addresses = [None if x is None else x.data_ptr() for x in pointers]
        for direct in self._direct(compiled, (*addresses, *rest)):
            try:
                direct()
                return direct
            except TypeError:  # a Triton whose launcher takes other arguments: nothing ran
                continue
        public()
        return None

    def _direct(self, compiled: Any, arguments: tuple[Any, ...]) -> Iterator[Callable[[], None]]:
        """The callables that can launch the compiled kernel, fastest first."""
        head = (self._programs, 1, 1, self._stream)
        hooks = (None, None, None)
        try:
            run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        except AttributeError:
            return
        if getattr(run, "global_scratch_size", 1) == 0 == getattr(run, "profile_scratch_size", 1):
            cluster = (run.launch_cooperative_grid, run.launch_pdl, None, None)
            whole = (*head, function, *cluster, packed, *hooks, *arguments)
            yield functools.partial(run.launch, *whole)
        yield functools.partial(run, *head, function, packed, *hooks, *arguments)


@functools.cache
def triton_works() -> bool:
    """Whether this machine has a GPU, and a Triton, that can run the kernels."""
    if torch.version.hip or not torch.cuda.is_available():
        return False
    try:
        # Builds Triton's own helper, which fails without a C compiler or Python's headers.
        from triton.runtime import driver

        return driver.active.get_current_target().arch >= 80
    except Exception:
        return False


def _upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, also while a graph is captured."""
    if not torch.cuda.is_current_stream_capturing():
        return tensor.to(device, non_blocking=True)
    side = _free_stream(device)
    with _relaxed(), torch.cuda.stream(side):
        uploaded = tensor.to(device)
        side.synchronize()
    return uploaded


def _free_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream outside the capture: torch hands out 32 in turn, the captured ones among them."""
    while True:
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            if not torch.cuda.is_current_stream_capturing():
                return side


@contextmanager
def _relaxed() -> Iterator[None]:
    """Let this thread allocate, load code and wait for streams that take no part in a capture."""
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def _chunks(sizes: Sequence[int], chunk: int) -> Tensor:
    """Which program takes which chunk of which tensor."""
    # An empty tensor has a chunk too: its steps are counted like any other's.
    counts = torch.tensor([max(1, -(-size // chunk)) for size in sizes])
    tensor = torch.arange(len(sizes)).repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.stack((tensor, torch.arange(len(tensor)) - first), dim=1).to(torch.int32)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@functools.lru_cache(maxsize=1024)
def _step_floats(
    lr: float, weight_decay: float, eps: float, beta1: float, beta2: float, beta3: float
) -> tuple[float, ...]:
    """The kernel's scalars, each as two float32, whose sum is good for float64."""
    numbers = (lr, weight_decay, eps, beta1, 1 - beta1, beta2, 1 - beta2)
    split = [part for x in (*numbers, *map(_log2, (beta1, beta2, beta3))) for part in _split(x)]
    return tuple(split)


@functools.lru_cache(maxsize=1024)
def _end_floats(beta1: float, beta2: float) -> tuple[float, ...]:
    return (*_split(_log2(beta1)), *_split(_log2(beta2)))


def _split(x: float) -> tuple[float, float]:
    high = ctypes.c_float(x).value
    return high, x - high


def _log2(beta: float) -> float:
    return math.log2(beta) if beta > 0 else _LOG2_OF_ZERO


@functools.cache
def _triton_dtype(dtype: torch.dtype) -> Any:
    return getattr(importlib.import_module("triton.language"), str(dtype).removeprefix("torch."))
