r"""EWC's pass over a task's examples, captured as CUDA graphs like the steps of `cuda_graphs.py`.

    F = Σ_b (n_b / n) g_b²        g_b: mean gradient of the n_b examples of batch b, 16 at most

One pass a task is as many launches as a step of training, and a sequence of thousands of small
tasks has about as many of them as steps. A graph wants one shape, so batches are filled up with
rows of weight 0, and the factor goes into the weights of the others, where a graph can read it:

    g' = Σ_j w_j ∇ℓ_j = √(n_b / n) g_b        w_j = √(n_b / n) / n_b        F = Σ_b g'²

For the kind "batch_sum", F = Σ_b g_b², w_j is 1 / n_b.

Under autocast the pass is in the precision of training; `methods/fisher.py`, which is the ground
truth for all else, computes in that of the weights.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from longtail.methods import Method
from longtail.methods.fisher import BATCH, Fisher
from longtail.replicas import lead_of, parameter_groups
from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import Examples, Objective
from longtail.tasks.examples import rows_device
from longtail.training.cuda_graphs import (
    Captured,
    Graphs,
    filled,
    padded_size,
    reading,
    takes_packed,
)
from longtail.training.optimizer import autocast, captures
from longtail.training.settings import TrainSettings


@runtime_checkable
class HasFisher(Protocol):
    """A method that measures Fisher information at the end of a task."""

    fisher: Any


def capture_fisher(method: Method, settings: TrainSettings) -> None:
    """Let EWC, and whatever else has a `Fisher`, take squared gradients of batches from graphs.

    Only where steps are captured, too.
    A subclass that computes them in a way of its own keeps it.
    """
    if not isinstance(method, HasFisher) or type(method.fisher) is not Fisher:
        return
    kind = method.settings.fisher
    if kind != "example":
        device = next(method.model.parameters()).device
        if captures(settings, device):
            method.fisher = GraphFisher(
                method.model,
                method.objective,
                settings.autocast,
                kind=kind,
                packs=takes_packed(method.model, settings),
            )


class GraphFisher:
    """`Fisher` of a kind that squares batches: the same numbers up to rounding, on a GPU.

    Args:
        model: a plain module, or `Replicas`; its parameters change in place.
        objective: loss per example.
        precision: "bf16" or "none", what `autocast` is in the settings.
        capture: False runs the same padded passes without capturing them, on any device.
        kind: "batch" or "batch_sum".
        packs: whether the model computes rows without their padding.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        precision: str = "none",
        capture: bool = True,
        kind: str = "batch",
        packs: bool = False,
    ) -> None:
        self.model, self.objective, self.precision = model, objective, precision
        self.kind, self.packs = kind, packs
        self.lead = lead_of(model)[1:]
        self.parameters = [p for group in parameter_groups(model) for p in group]
        self.device = self.parameters[0].device
        self.total = [torch.zeros_like(p) for p in self.parameters]
        self.graphs = Graphs(self.device, capture)

    def __call__(self, examples: Examples, chosen: Tensor | None = None) -> list[Tensor]:
        """From all examples, or from the rows `chosen` [*lead, n]; the next call overwrites it."""
        torch._foreach_zero_(self.total)
        if chosen is None:
            order = torch.arange(len(examples), device=rows_device(examples, self.device))
            chosen = order.expand(*self.lead, -1)
        n = chosen.shape[-1]
        with evaluation_mode(self.model), torch.enable_grad():
            for start in range(0, n, BATCH):
                shape = self._load(examples, chosen[..., start : start + BATCH], n)
                self.graphs.run(shape, lambda shape=shape: self._pass(shape))
        return self.total

    def _load(self, examples: Examples, index: Tensor, n: int) -> Captured:
        """Copy the rows' numbers and their weight to where a graph finds them."""
        rows = index.shape[-1]
        size = padded_size(rows, BATCH, examples)
        index = filled(index, size, examples)
        key, tensors, build, _ = reading(examples, index, packed=int(self.packs))

        def make() -> Captured:
            held = [torch.empty_like(tensor, device=self.device) for tensor in tensors]
            return Captured(held, build, [torch.zeros(size, device=self.device)])

        shape = self.graphs.shape(key, make)
        share = 1.0 if self.kind == "batch_sum" else rows / n
        shape.load(tensors, [(rows, math.sqrt(share) / rows)])
        return shape

    def _pass(self, shape: Captured) -> None:
        inputs, targets = shape.build(shape.held)
        with autocast(self.device, self.precision):
            losses = self.objective.loss(self.model(inputs), targets)
        loss = (losses * shape.weights[0]).sum()
        grads = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        torch._foreach_addcmul_(self.total, grads, grads)
