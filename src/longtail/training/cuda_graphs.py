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

import numpy as np
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


class Captured:
    """What all replays of one shape read and leave, at fixed places, and the graph that does it.

    Args:
        held: tensors that are overwritten before each replay.
        build: makes a batch, or a model's inputs, of them.
        weights: row weights of as many rows, each its own tensor.
    """

    def __init__(
        self,
        held: Sequence[Tensor],
        build: Callable[[Sequence[Tensor]], Any],
        weights: Sequence[Tensor] = (),
    ) -> None:
        self.held, self.build, self.weights = list(held), build, list(weights)
        self.left: Any = None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self._weighed: Sequence[tuple[int, float]] = ()

    def load(
        self, tensors: Sequence[Tensor], weighed: Sequence[tuple[int, float]] = (), dim: int = 0
    ) -> None:
        """Copy tensors to where the graph finds them; they may have fewer rows than it reads.

        Args:
            weighed: how many rows count, and how much each of them: one pair for each `weights`.
            dim: along which the rows lie.
        """
        for held, tensor in zip(self.held, tensors, strict=True):
            if held.shape != tensor.shape:
                held = held.narrow(dim, 0, tensor.shape[dim])
            held.copy_(tensor, non_blocking=True)  # small and pageable: CUDA takes it at once
        if weighed and weighed != self._weighed:
            for weights, (rows, weight) in zip(self.weights, weighed, strict=True):
                weights.zero_()
                weights[:rows].fill_(weight)
            self._weighed = weighed


class Graphs:
    """Work on a few shapes, each captured once it has come often enough.

    All graphs share one pool of memory. They may, as they never run at once and nothing lives from
    one to the next but what is held.

    Args:
        device: where they run.
        capture: False does the same work without capturing it, on any device.
    """

    def __init__(self, device: torch.device, capture: bool = True) -> None:
        self.device, self.capture = device, capture
        self.shapes: dict[Hashable, Captured] = {}
        if capture:
            self.stream = torch.cuda.Stream(device)
            self.pool = torch.cuda.graph_pool_handle()

    def keeps(self, key: Hashable) -> bool:
        """Whether a shape is kept, or would be: there is room for so many."""
        return key in self.shapes or len(self.shapes) < MOST_GRAPHS

    def shape(self, key: Hashable, make: Callable[[], Captured]) -> Captured:
        """The shape of this key, made where it is not kept."""
        one = self.shapes.get(key)
        if one is None:
            one = make()
            if self.keeps(key):
                self.shapes[key] = one
        return one

    def run(self, one: Captured, work: Callable[[], None]) -> None:
        """Do the work, which reads and writes what `one` holds."""
        if not self.capture:
            work()
        elif one.graph is not None:
            one.graph.replay()
        elif one.calls < WARM_UP:
            one.calls += 1
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                work()
            current.wait_stream(self.stream)
        else:
            one.graph = self._captured(work)
            one.graph.replay()

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it might find graphs of a run that is over: freeing them ends a capture
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                work()
        except torch.OutOfMemoryError:  # says so itself
            raise
        except RuntimeError as error:
            raise ValueError(f"cuda_graph: this cannot be captured: {error}") from error
        finally:
            if collects:
                gc.enable()
        return graph


class _Loaded(NamedTuple):
    """A batch whose rows, or their numbers, lie where a graph finds them."""

    shape: Captured
    draws: bool  # whether the last tensor it holds are the slots of stored examples
    room: int | None  # that each draw needs
    sizes: np.ndarray | None  # lengths of the batch's rows, where the host knows them


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
        # Padding rows would be averaged by BatchNorm: batches then keep their sizes.
        kinds = nn.modules.batchnorm._BatchNorm
        self.exact = any(isinstance(module, kinds) for module in run.model.modules())
        self.stores = type(run.method).observe is not Method.observe
        self.packs = takes_packed(run.model, run.settings)
        self.graphs = Graphs(run.device, capture)
        self.version = -1
        self.loaded: tuple[Examples | None, Tensor | None, _Loaded | None] = None, None, None

    def __call__(self, run: Run, examples: Examples, index: Tensor) -> None:
        table, numbers, loaded = self.loaded  # all epochs of a task of one batch read the same rows
        if loaded is None or table is not examples or numbers is not index:
            loaded = self._load(run, examples, index)
        self.graphs.run(loaded.shape, lambda: self._step(run, loaded))
        if self.stores:
            method, rows = run.method, index.shape[-1]
            batch, outputs = loaded.shape.left
            method.outputs = rows_of(outputs, 0, rows, len(method.lead))
            batch = rows_of(batch, 0, rows, len(method.lead[1:]))
            if loaded.sizes is not None:
                batch = Packable.of(batch[0], sizes=loaded.sizes[..., :rows]), *batch[1:]
            method.observe(batch)

    def _load(self, run: Run, examples: Examples, index: Tensor) -> _Loaded:
        """Decide which rows are read, and copy their numbers to where a graph finds them."""
        method, rows, given = run.method, index.shape[-1], index
        size = rows if self.exact else padded_size(rows, run.settings.batch_size, examples)
        index = filled(index, size, examples)
        # With draws there is a shape for each pair of what both need: then they are coarser.
        packed = (2 if method.draws else 1) * self.packs
        key, tensors, build, table = reading(examples, index, packed)
        sizes = table.sizes(tensors[0]) if table is not None and method.draws else None
        needed = None
        drawn, most = 0, 0
        buffer = method.buffer if method.draws else None  # pyright: ignore
        if buffer is not None and len(buffer):
            self._forget_old(buffer.version)
            drawn = min(method.draw_size(rows), len(buffer))
            most = drawn if self.exact else min(method.draw_size(size), buffer.capacity)
            slots = buffer.plan(method.draws, drawn, most)
            tensors = [*tensors, slots]
            stored = buffer.sizes(slots)
            if table is not None and stored is not None:
                needed = table.room(stored, packed)

        def make() -> Captured:
            held = [torch.empty_like(tensor, device=run.device) for tensor in tensors]
            weights = [torch.zeros(n, device=run.device) for n in (size, most)]
            return Captured(held, build, weights)

        shape = self.graphs.shape((most, needed, *key), make)
        counts = () if self.exact else (rows, drawn)
        shape.load(tensors, [(n, 1.0 / max(1, n)) for n in counts])
        loaded = _Loaded(shape, most > 0, needed, sizes)
        # Draws differ from step to step, and so may rows that are copied in place of their numbers.
        again = not method.draws and isinstance(key[0], int)
        self.loaded = (examples, given, loaded) if again else (None, None, None)
        return loaded

    def _step(self, run: Run, loaded: _Loaded) -> None:
        method, shape = run.method, loaded.shape
        if not self.exact:
            method.row_weights, method.draw_weights = shape.weights
        held, draws = shape.held, contextlib.nullcontext()
        if loaded.draws:
            *held, slots = held
            draws = method.buffer.planned(slots, loaded.room)  # pyright: ignore
        with draws:
            # The batch is made within the step, where the last one's gradients are gone.
            [shape.left] = update(run, map(shape.build, [held]))
        method.row_weights = method.draw_weights = None

    def _forget_old(self, version: int) -> None:
        """Drop the graphs that read a buffer's rows where they no longer are."""
        if version != self.version:
            shapes = self.graphs.shapes
            self.graphs.shapes = {key: shapes[key] for key in shapes if not key[0]}  # pyright: ignore
            self.version = version


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
        self.graphs = Graphs(next(model.parameters()).device, capture)

    def forward(self, inputs: Any) -> Any:
        dim = len(self.lead[1:])
        tensors = list(tensors_of(inputs))
        rows = tensors[0].shape[dim]
        if rows > LARGEST or self.model.training or torch.is_grad_enabled():
            return self.model(inputs)
        size = max(SMALLEST, 1 << (rows - 1).bit_length())
        key = (size, *[(t.shape[:dim], t.shape[dim + 1 :], t.dtype) for t in tensors])
        if not self.graphs.keeps(key):
            return self.model(inputs)

        def make() -> Captured:
            held = [t.new_zeros((*t.shape[:dim], size, *t.shape[dim + 1 :])) for t in tensors]
            built = rebuilt(inputs, held)
            return Captured(held, lambda _: built)

        shape = self.graphs.shape(key, make)
        shape.load(tensors, dim=dim)
        self.graphs.run(shape, lambda: self._pass(shape))
        # Copies: the next batch of this shape overwrites what the graph wrote.
        outputs = rows_of(shape.left, 0, rows, len(self.lead))
        return map_leaves(
            lambda x: Ragged(*map(Tensor.clone, x)) if isinstance(x, Ragged) else x.clone(), outputs
        )

    def _pass(self, shape: Captured) -> None:
        inputs = shape.build(shape.held)
        device = shape.held[0].device.type
        if not torch.is_autocast_enabled(device):
            shape.left = self.model(inputs)
            return
        # Weights that autocast has cast before would be read from its cache, at every replay.
        kind = torch.get_autocast_dtype(device)
        with torch.autocast(device, kind, cache_enabled=False):
            shape.left = self.model(inputs)


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
