"""A training step of fixed shape, captured once as a CUDA graph and replayed.

A step of a small model is some fifty kernels that take less time than their launches. A graph needs
the same shapes every time, so batches are padded to a power of two or the full batch size, and
padding rows weigh nothing:

    loss = Σ_j w_j ℓ_j        w_j = 1/n for the n real rows, 0 for the others

Per step there remain the selection of rows and one replay. The first batches of each size run as
they are, which makes the optimizer's state and warms up kernels, then one is captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longtail.policies import clip_gradients
from longtail.tasks import Batch, Examples, Ragged, leaves, map_leaves

if TYPE_CHECKING:
    from longtail.training import Run

SMALLEST = 8  # rows of the smallest padded batch
WARM_UP = 3  # steps of each size before its capture: kernels compile, tables reach the device


class GraphStep:
    """`step` of `training.py` for methods and models whose steps are all alike.

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
                "one another (a buffer grows, or examples are stored)"
            )
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in run.model.modules()):
            raise ValueError("cuda_graph does not work with BatchNorm: padding would be averaged")
        self.capture = capture
        self.stream = torch.cuda.Stream(run.device) if capture else None
        self.shapes: dict[int, _Captured] = {}

    def __call__(self, run: Run, examples: Examples, index: Tensor) -> None:
        rows = index.shape[-1]
        size = min(run.settings.batch_size, max(SMALLEST, 1 << (rows - 1).bit_length()))
        if rows < size:
            index = pad(index, (0, size - rows))  # with row 0, at weight 0
        batch = examples[index]
        captured = self.shapes.get(size)
        if captured is None:
            captured = self.shapes[size] = _Captured(run, batch, size)
        captured.load(batch, rows)
        if not self.capture:
            captured.step(run)
            return
        assert self.stream is not None
        captured.replay(run, self.stream)


class _Captured:
    """Static inputs of one shape and the graph that reads them."""

    def __init__(self, run: Run, batch: Batch, size: int) -> None:
        if any(isinstance(leaf, Ragged) for leaf in leaves(batch)):
            raise ValueError("cuda_graph needs inputs of one shape, not ragged ones")
        self.batch: Any = map_leaves(torch.empty_like, batch)
        self.weights = torch.zeros(size, device=run.device)
        self.rows = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0

    def load(self, batch: Batch, rows: int) -> None:
        map_leaves(lambda static, new: static.copy_(new), self.batch, batch)
        if rows != self.rows:
            self.weights.zero_()
            self.weights[:rows] = 1.0 / rows
            self.rows = rows

    def step(self, run: Run) -> None:
        method = run.method
        for p in run.parameters:
            p.grad = None
        method.row_weights = self.weights
        with run.autocast:
            loss = method.loss(self.batch)
        loss.backward()
        method.after_backward()
        if run.settings.clip is not None:
            clip_gradients(run.model, run.settings.clip)
        run.optimizer.step()
        method.row_weights = None

    def replay(self, run: Run, stream: torch.cuda.Stream) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.warm < WARM_UP:
            stream.wait_stream(torch.cuda.current_stream(run.device))
            with torch.cuda.stream(stream):
                self.step(run)
            torch.cuda.current_stream(run.device).wait_stream(stream)
            self.warm += 1
        else:
            graph = torch.cuda.CUDAGraph()
            # Gradients of the warm-up must not be alive: the graph makes its own.
            for p in run.parameters:
                p.grad = None
            with torch.cuda.graph(graph, stream=stream):
                self.step(run)
            self.graph = graph
            graph.replay()
