"""Launching a compiled Triton kernel again, and working beside a CUDA graph that is captured.

The public way, ``kernel[grid](...)``, looks at every argument to choose among compiled versions:
tens of microseconds, as much as a step of a small model takes. Here the version is known after the
first launch, and its own launcher is called with arguments made ready once.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

# What graphs read whose Python object cannot be found: before torch could tell, or when some other
# library captures. Nobody says when these graphs are gone.
_kept_for_good: list[Tensor] = []


class Launch(NamedTuple):
    """A launch that can be repeated: ``call(*arguments)``."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]


class Launcher:
    """One kernel over one grid on one stream, in as many variants as flags and dtypes ask for."""

    def __init__(self, programs: int, warps: int, stream: int) -> None:
        self._programs = programs
        self._warps = warps
        self._stream = stream
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self,
        kernel: Any,
        variant: Any,
        pointers: Sequence[Tensor | None],
        floats: Sequence[float],
        constants: Sequence[Any],
    ) -> Launch | None:
        """Launch; returns how to do it again with the same arguments, once that is known."""
        public = Launch(
            partial(kernel[(self._programs,)], num_warps=self._warps),
            (*pointers, *floats, *constants),
        )
        compiled = self._compiled.get(variant)
        if compiled is None:
            self._compiled[variant] = public.call(*public.arguments)
            return None
        addresses = [None if x is None else x.data_ptr() for x in pointers]
        for launch in self._direct(compiled, (*addresses, *floats, *constants)):
            try:
                launch.call(*launch.arguments)
                return launch
            except TypeError:  # a Triton whose launcher takes other arguments: nothing ran
                continue
        public.call(*public.arguments)
        return public

    def _direct(self, compiled: Any, arguments: tuple[Any, ...]) -> Iterator[Launch]:
        """Ways into the compiled kernel, the shortest first."""
        head = (self._programs, 1, 1, self._stream)
        hooks = (None, None, None)
        try:
            run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        except AttributeError:
            return
        if getattr(run, "global_scratch_size", 1) == 0 == getattr(run, "profile_scratch_size", 1):
            cluster = (run.launch_cooperative_grid, run.launch_pdl, None, None)
            yield Launch(run.launch, (*head, function, *cluster, packed, *hooks, *arguments))
        yield Launch(run, (*head, function, packed, *hooks, *arguments))


def current_stream(device: torch.device) -> int:
    # What Triton itself calls; the public torch.cuda.current_stream takes ten times as long.
    return torch._C._cuda_getCurrentRawStream(device.index)


@contextmanager
def aside(device: torch.device) -> Iterator[bool]:
    """If a graph is being captured, do this now and wait for it, instead of at each replay.

    Yields whether that is so.
    """
    if not torch.cuda.is_current_stream_capturing():
        yield False
        return
    side = _free_stream(device)
    with relaxed(), torch.cuda.stream(side):
        yield True
        side.synchronize()


def _free_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream outside the capture: torch hands out 32 in turn, the captured ones among them."""
    while True:
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            if not torch.cuda.is_current_stream_capturing():
                return side


@contextmanager
def relaxed() -> Iterator[None]:
    """Let this thread allocate, load code and wait for streams that take no part in a capture."""
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def keep_for_graph(tensors: Iterable[Tensor | None]) -> None:
    """Let tensors live as long as the graph that is being captured, which will read them."""
    kept = [x for x in tensors if x is not None]
    graph = _graph_being_captured()
    if graph is None:
        _kept_for_good.extend(kept)
    else:
        weakref.finalize(graph, _let_go, kept).atexit = False


def _graph_being_captured() -> Any:
    """The object that a user holds, or None if torch cannot tell."""
    find = getattr(torch.cuda.CUDAGraph, "get_currently_capturing_graph", None)
    try:
        graph = None if find is None else find()
    except RuntimeError:  # the capture is not torch's
        return None
    # A wrapper made for this call alone would be of the class below, and die before the graph.
    return graph if isinstance(graph, torch.cuda.CUDAGraph) else None


def _let_go(tensors: list[Tensor]) -> None:
    """The last replay may still run. As torch does with any tensor, take it to be on the stream
    that is current where the graph is dropped, and let nothing else have the memory before."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
