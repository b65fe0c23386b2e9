"""Working beside a CUDA graph that is being captured."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


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
