"""Launching a compiled Triton kernel again, and working beside a CUDA graph that is captured.

The public way, ``kernel[grid](...)``, looks at every argument to choose among compiled versions:
tens of microseconds, as much as a step of a small model takes. Here the version is known after the
first launch, and its own launcher is called with arguments made ready once.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_SEMAPHORE = 64  # bytes: sem_t has 32 or fewer


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
            functools.partial(kernel[(self._programs,)], num_warps=self._warps),
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
        """The callables that can launch the compiled kernel, fastest first."""
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
    """Run the block's kernels now, also where a graph is being captured.

    The graph would record them and repeat them at each replay, so they are then launched on a
    stream that takes no part in the capture, and waited for.

    Yields:
        Whether a graph is being captured.
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


# What CUDA graphs read, by the address of a semaphore that CUDA posts when the graph is gone.
_reads: dict[int, list[Tensor]] = {}


def keep_for_graph(tensors: Iterable[Tensor | None]) -> None:
    """Let tensors live as long as the graph that is being captured, which will read them.

    The graph owns a semaphore, by way of a CUDA user object: CUDA posts it when the graph and all
    that was instantiated from it are destroyed and their last replay has ended. It does so in a
    thread of its own, where Python is not to be called, so `free_for_dead_graphs` looks later.
    Where a driver cannot do that, the semaphore is never posted and the tensors are kept for good.
    """
    free_for_dead_graphs()
    libc = _libc()
    gone = libc.calloc(1, _SEMAPHORE)
    libc.sem_init(gone, 0, 0)
    _reads[gone] = [x for x in tensors if x is not None]
    _post_with_graph(gone, libc.sem_post)


def free_for_dead_graphs() -> None:
    """Let go of what was kept for graphs that are gone."""
    if not _reads:
        return
    libc = _libc()
    for gone in list(_reads):
        if libc.sem_trywait(gone) == 0:
            del _reads[gone]
            libc.free(gone)


def _post_with_graph(gone: int, post: Any) -> None:
    """Make the graph that the current stream is captured into call ``post(gone)`` at its end."""
    driver = ctypes.CDLL("libcuda.so.1")
    stream = current_stream(torch.device("cuda", torch.cuda.current_device()))
    status, graph, owned = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    try:
        driver.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), None, ctypes.byref(graph), None, None
        )
        call = ctypes.cast(post, ctypes.c_void_p)
        no_sync = move = 1  # no waiting for the call; the graph alone holds the object
        if graph.value and not driver.cuUserObjectCreate(
            ctypes.byref(owned), ctypes.c_void_p(gone), call, 1, no_sync
        ):
            driver.cuGraphRetainUserObject(graph, owned, 1, move)
    except AttributeError:  # an older driver
        pass


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.calloc.restype = ctypes.c_void_p
    libc.calloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    libc.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    for function in (libc.sem_trywait, libc.sem_post, libc.free):
        function.argtypes = (ctypes.c_void_p,)
    libc.free.restype = None
    return libc
