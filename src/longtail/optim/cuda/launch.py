"""Launching a compiled Triton kernel again without Triton's work of finding it.

The public way, ``kernel[grid](...)``, looks at every argument to choose among compiled versions:
tens of microseconds, as much as a step of a small model takes. Here the version is known after the
first launch, and its own launcher is called with arguments made ready once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor


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
