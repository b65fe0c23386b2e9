"""Steps and forward passes of a few fixed shapes, captured as CUDA graphs and replayed.

A step of a small model is some fifty kernels that take less time than their launches. A graph needs
the same shapes every time, so batches are padded to a power of two or the full batch size, and
padding rows weigh nothing:

    loss = Σ_j w_j ℓ_j        w_j = 1/n for the n real rows, 0 for the others

What is drawn from a memory beside a batch is padded as well, while it holds fewer rows than a draw.
The host decides which rows are read and which stored examples are replayed; their numbers are
copied to fixed places, and the graph reads the rows. Per step there remain these copies, one replay
and, for methods with a buffer, the insertion of new examples. There is one graph for each set of
shapes; the first batches of each run as they are, which makes the optimizer's state and warms up
kernels (and compiles the model where that is asked for), then one is captured.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longtail.methods.base import Method, rows_of
from longtail.methods.buffers import tensors_of
from longtail.replicas import lead_of, members_of
from longtail.tasks import Batch, Examples, Ragged, map_leaves
from longtail.tasks.examples import Packable, locate
from longtail.training.optimizer import MOST_GRAPHS, autocast
from longtail.training.settings import TrainSettings
from longtail.training.step import update

if TYPE_CHECKING:
    from longtail.training import Run

SMALLEST = 8  # rows of the smallest padded batch
LARGEST = 256  # rows of a forward pass that is worth capturing: more keep a GPU busy anyway
WARM_UP = 3  # steps of each shape before its capture: kernels compile, tables reach the device


class GraphStep:
    """`step` of `step.py` for methods and models whose steps are all alike.

    Args:
        run: what is trained.
        capture: False runs the same padded steps without capturing them, on any device.
    """

    def __init__(self, run: Run, capture: bool = True) -> None:
        if capture and run.device.type != "cuda":
            raise ValueError(f"cuda_graph needs a CUDA device, the model is on {run.device}")
        if not run.method.capturable:
            raise ValueError(
                f"cuda_graph does not work with {type(run.method).__name__}: its steps differ from "
                "one another"
            )
        self.capture = capture
        # Padding rows would be averaged by BatchNorm: batches then keep their sizes.
        kinds = nn.modules.batchnorm._BatchNorm
        self.exact = any(isinstance(module, kinds) for module in run.model.modules())
        self.stores = type(run.method).observe is not Method.observe
        self.packs = takes_packed(run.model, run.settings)
        self.graphs = Graphs(run.device) if capture else None
        self.steps: dict[Hashable, _Step] = {}
        self.version = -1
        self.loaded: tuple[Examples | None, Tensor | None, _Step | None] = None, None, None

    def __call__(self, run: Run, examples: Examples, index: Tensor) -> None:
        table, numbers, step = self.loaded  # all epochs of a task of one batch read the same rows
        if step is None or table is not examples or numbers is not index:
            step = self._load(run, examples, index)
        if self.graphs is None:
            step(run)
        else:
            self.graphs.call(step, lambda: step(run))
        if self.stores:
            method, rows = run.method, index.shape[-1]
            method.outputs = rows_of(step.outputs, 0, rows, len(method.lead))
            batch = rows_of(step.batch, 0, rows, len(method.lead[1:]))
            if step.sizes is not None:
                batch = Packable.of(batch[0], sizes=step.sizes[..., :rows]), *batch[1:]
            method.observe(batch)

    def _load(self, run: Run, examples: Examples, index: Tensor) -> _Step:
        """Decide which rows are read, and copy their numbers to where a graph finds them."""
        method, rows, given = run.method, index.shape[-1], index
        size = rows if self.exact else padded_size(rows, run.settings.batch_size, examples)
        index = filled(index, size, examples)
        # With draws there is a shape for each pair of what both need: then they are coarser.
        packed = (2 if method.draws else 1) * self.packs
        key, tensors, build, table = reading(examples, index, packed)
        sizes = table.sizes(tensors[0]) if table is not None and method.draws else None
        needed = None
        slots, drawn, most = None, 0, 0
        buffer = method.buffer if method.draws else None  # pyright: ignore
        if buffer is not None and len(buffer):
            self._forget_old(buffer.version)
            drawn = min(method.draw_size(rows), len(buffer))
            most = drawn if self.exact else min(method.draw_size(size), buffer.capacity)
            slots = buffer.plan(method.draws, drawn, most)
            stored = buffer.sizes(slots)
            if table is not None and stored is not None:
                needed = table.room(stored, packed)
        step = self._step((most, needed, *key), (build, tensors, slots, (size, most), run.device))
        step.sizes, step.room = sizes, needed
        step.load(tensors, slots, None if self.exact else (rows, drawn))
        # Draws differ from step to step, and so may rows that are copied in place of their numbers.
        again = not method.draws and isinstance(key[0], int)
        self.loaded = (examples, given, step) if again else (None, None, None)
        return step

    def _step(self, key: Hashable, arguments: tuple[Any, ...]) -> _Step:
        step = self.steps.get(key)
        if step is None:
            step = _Step(*arguments)
            if len(self.steps) < MOST_GRAPHS:
                self.steps[key] = step
        return step

    def _forget_old(self, version: int) -> None:
        """Drop the graphs that read a buffer's rows where they no longer are."""
        if version != self.version:
            self.steps = {key: step for key, step in self.steps.items() if step.slots is None}
            self.version = version


class _Step:
    """What the steps of one shape read, at fixed places, and the graph that reads it."""

    def __init__(
        self,
        build: Callable[[Sequence[Tensor]], Batch],
        tensors: Sequence[Tensor],
        slots: Tensor | None,
        sizes: tuple[int, int],
        device: torch.device,
    ) -> None:
        self.build = build
        self.held = [torch.empty_like(tensor, device=device) for tensor in tensors]
        self.slots = None if slots is None else torch.empty_like(slots, device=device)
        self.weights, self.draw_weights = (torch.zeros(size, device=device) for size in sizes)
        self.rows: tuple[int, int] | None = None  # of the batch, and of each draw
        self.room: int | None = None  # that each draw needs
        self.sizes: Any = None  # lengths of the batch's rows, on the host
        self.batch: Any = None
        self.outputs: Any = None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(
        self, tensors: Sequence[Tensor], slots: Tensor | None, rows: tuple[int, int] | None
    ) -> None:
        for held, tensor in zip(self.held, tensors, strict=True):
            held.copy_(tensor, non_blocking=True)  # small and pageable: CUDA takes it at once
        if self.slots is not None and slots is not None:
            self.slots.copy_(slots, non_blocking=True)
        if rows is not None and rows != self.rows:
            for weights, n in zip((self.weights, self.draw_weights), rows, strict=True):
                weights.zero_()
                weights[:n].fill_(1.0 / max(1, n))
        self.rows = rows

    def __call__(self, run: Run) -> None:
        method = run.method
        if self.rows is not None:
            method.row_weights, method.draw_weights = self.weights, self.draw_weights
        with contextlib.ExitStack() as stack:
            if self.slots is not None:
                stack.enter_context(method.buffer.planned(self.slots, self.room))  # pyright: ignore
            # The batch is made within the step, where the last one's gradients are gone.
            [(self.batch, self.outputs)] = update(run, map(self.build, [self.held]))
        method.row_weights = method.draw_weights = None


class Graphs:
    """Captures what is called often enough; all graphs share one pool of memory.

    They may, as they never run at once and nothing lives from one to the next but what is held.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def call(self, entry: Any, function: Callable[[], None]) -> None:
        """`function`, which reads and writes what `entry` holds; `entry` keeps calls and graph."""
        if entry.graph is not None:
            entry.graph.replay()
        elif entry.calls < WARM_UP:
            entry.calls += 1
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                function()
            current.wait_stream(self.stream)
        else:
            entry.graph = self._captured(function)
            entry.graph.replay()

    def _captured(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it might find graphs of a run that is over: freeing them ends a capture
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                function()
        except torch.OutOfMemoryError:  # says so itself
            raise
        except RuntimeError as error:
            raise ValueError(f"cuda_graph: this cannot be captured: {error}") from error
        finally:
            if collects:
                gc.enable()
        return graph


class GraphForward(nn.Module):
    """A model whose small evaluation batches replay a graph: `model(inputs)`, padded by rows.

    Use it in evaluation mode, without gradients; otherwise it is the model. Parameters may change
    in place. Large batches, and shapes that come rarely, run as they are.

    Args:
        model: a plain module or `Replicas`.
        capture: False pads batches without capturing anything, on any device.
    """

    def __init__(self, model: nn.Module, capture: bool = True) -> None:
        super().__init__()
        self.model, self.lead = model, lead_of(model)
        device = next(model.parameters()).device
        self._graphs = Graphs(device) if capture else None
        self._passes: dict[Hashable, _Forward] = {}

    def forward(self, inputs: Any) -> Any:
        dim = len(self.lead[1:])
        tensors = list(tensors_of(inputs))
        rows = tensors[0].shape[dim]
        if rows > LARGEST or self.model.training or torch.is_grad_enabled():
            return self.model(inputs)
        size = max(SMALLEST, 1 << (rows - 1).bit_length())
        key = (size, *[(t.shape[:dim], t.shape[dim + 1 :], t.dtype) for t in tensors])
        one = self._passes.get(key)
        if one is None:
            if len(self._passes) >= MOST_GRAPHS:
                return self.model(inputs)
            one = self._passes[key] = _Forward(inputs, tensors, dim, size)
        for held, tensor in zip(one.held, tensors, strict=True):
            held.narrow(dim, 0, rows).copy_(tensor)
        if self._graphs is None:
            one(self.model)
        else:
            self._graphs.call(one, lambda: one(self.model))
        # Copies: the next batch of this shape overwrites what the graph wrote.
        found = rows_of(one.outputs, 0, rows, len(self.lead))
        return map_leaves(
            lambda x: Ragged(*map(Tensor.clone, x)) if isinstance(x, Ragged) else x.clone(), found
        )


class _Forward:
    """Inputs of one shape at a fixed place, and the graph that reads them."""

    def __init__(self, inputs: Any, tensors: Sequence[Tensor], dim: int, size: int) -> None:
        self.held = [t.new_zeros((*t.shape[:dim], size, *t.shape[dim + 1 :])) for t in tensors]
        self.inputs = rebuilt(inputs, self.held)
        self.outputs: Any = None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, model: nn.Module) -> None:
        device = self.held[0].device.type
        if not torch.is_autocast_enabled(device):
            self.outputs = model(self.inputs)
            return
        # Weights that autocast has cast before would be read from its cache, at every replay.
        kind = torch.get_autocast_dtype(device)
        with torch.autocast(device, kind, cache_enabled=False):
            self.outputs = model(self.inputs)


def padded_size(rows: int, full: int, examples: Examples) -> int:
    """How many rows a batch is filled up to."""
    if getattr(examples, "full_batches", False):
        return full
    return min(full, max(SMALLEST, 1 << (rows - 1).bit_length()))


def filled(index: Tensor, size: int, examples: Examples) -> Tensor:
    """Row numbers [..., n], and after them up to `size` those of rows that shall weigh nothing."""
    missing = size - index.shape[-1]
    assert missing >= 0
    return pad(index, (0, missing), value=getattr(examples, "blank", 0)) if missing else index


def takes_packed(model: nn.Module, settings: TrainSettings) -> bool:
    """Whether the model says that it computes rows without their padding, trained like this."""
    device = next(model.parameters()).device
    packs = getattr(members_of(model)[0], "packs", None)
    with autocast(device, settings.autocast):
        return packs is not None and not settings.compile and packs()


class Reading(NamedTuple):
    """How a captured step gets its rows."""

    key: tuple[Hashable, ...]  # of the graph that reads them
    tensors: list[Tensor]  # what is copied for it
    build: Callable[[Sequence[Tensor]], Batch]  # what it makes of that
    table: Any  # that they are of, where they are packed; else None


def reading(examples: Examples, index: Tensor, packed: int = 0) -> Reading:
    """The rows of these numbers.

    Where the table can be read on the device, the row numbers are copied; else the rows.

    Args:
        packed: see `Examples.packs`; 0 for rows with their padding.
    """
    table, index = locate(examples, index)
    stage = getattr(table, "stage", None)
    if stage is not None:
        packs = packed > 0 and getattr(table, "packs", False)
        shape, numbers = stage(index, packed) if packs else stage(index)
        return Reading(
            (id(table), shape, numbers.shape),
            [numbers],
            lambda x: table.assemble(shape, x[0]),  # pyright: ignore
            table if packs else None,
        )
    if getattr(table, "capturable", False):
        return Reading((id(table), index.shape), [index], lambda x: table[x[0]], None)
    batch = table[index]
    tensors = list(tensors_of(batch))
    key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    return Reading(key, tensors, lambda x: rebuilt(batch, x), None)


def rebuilt(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """Tensors in the structure of `tree`, from which `tensors_of` would take them in this order."""
    left = iter(tensors)

    def leaf(value: Any) -> Any:
        return Ragged(next(left), next(left)) if isinstance(value, Ragged) else next(left)

    return map_leaves(leaf, tree)
