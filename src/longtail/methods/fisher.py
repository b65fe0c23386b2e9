r"""The diagonal of the empirical Fisher information, from one pass over a task's examples.

    F = 1/n Σ_j (∇_θ ℓ(f_θ(x_j), y_j))²

For a Linear layer with input a and output gradient δ the gradient of one example is δ aᵀ, hence

    Σ_j g_j² = (δ²)ᵀ (a²)        (weights),        Σ_j δ_j²        (bias)

which costs about as much as one backward pass and is used for chains of Linear and pointwise
layers. Other models get per-example gradients from `torch.func`. Modules are in evaluation mode
during the pass: dropout is off and BatchNorm's statistics stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from longtail.examples import read
from longtail.replicas import Replicas, lead_of, linear_chain, parameter_groups
from longtail.tasks import Batch, Examples, Objective

CHUNK = 1024  # examples per pass of the closed form
NUMBERS = 1 << 25  # numbers in the per-example gradients held at once
BATCH = 16  # examples per squared gradient of `batch_fisher`


class Rows:
    """The examples the Fisher is taken from: all, or those in `chosen` [*lead, n]."""

    def __init__(self, model: nn.Module, examples: Examples, chosen: Tensor | None = None) -> None:
        self.examples, self.chosen, self.lead = examples, chosen, lead_of(model)[1:]
        self.count = len(examples) if chosen is None else chosen.shape[-1]

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches [*lead, B, ...] of at most `size` examples."""
        for start in range(0, self.count, size):
            stop = min(start + size, self.count)
            if self.chosen is not None:
                yield self.examples[self.chosen[..., start:stop]]
            elif self.lead:
                yield self.examples[torch.arange(start, stop).expand(*self.lead, -1)]
            else:
                yield read(self.examples, start, stop)


def example_fisher(model: nn.Module, objective: Objective, rows: Rows) -> list[Tensor]:
    """Mean over the examples of their squared gradients, for every trainable parameter."""
    members = model.members if isinstance(model, Replicas) else [model]
    found: list[Tensor] = []
    with evaluation_mode(model):
        for member in members:
            found += _member_fisher(member, objective, rows, bool(lead_of(model)))
    return found


def batch_fisher(model: nn.Module, objective: Objective, rows: Rows) -> list[Tensor]:
    """Mean over batches of 16 (weighted by their size) of their mean gradient squared."""
    parameters = [p for group in parameter_groups(model) for p in group]
    total = [torch.zeros_like(p) for p in parameters]
    with evaluation_mode(model), torch.enable_grad():
        for inputs, targets in rows.batches(BATCH):
            losses = objective.loss(model(inputs), targets)
            grads = torch.autograd.grad(losses.mean(-1).sum(), parameters, materialize_grads=True)
            share = losses.shape[-1] / rows.count
            torch._foreach_addcmul_(total, grads, grads, share)
    return total


def _member_fisher(
    member: nn.Module, objective: Objective, rows: Rows, stacked: bool
) -> list[Tensor]:
    parameters = list(member.parameters())
    total = {id(p): torch.zeros_like(p) for p in parameters if p.requires_grad}
    chain = linear_chain(member)
    if chain is not None and not _covers(chain, parameters):
        chain = None
    chunk = CHUNK if chain else max(1, NUMBERS // sum(p.numel() for p in parameters))
    for batch in rows.batches(chunk):
        if chain is not None and isinstance(batch[0], Tensor):
            _add_closed_form(chain, objective, batch, rows.count, total)
        else:
            _add_vmapped(member, objective, batch, stacked, rows.count, total)
    return list(total.values())


def _add_closed_form(
    chain: list[nn.Module], objective: Objective, batch: Batch, n: int, total: dict[int, Tensor]
) -> None:
    h, targets = batch
    linear, ins, outs = [], [], []
    with torch.enable_grad():
        for layer in chain:
            if isinstance(layer, nn.Linear):
                linear.append(layer)
                ins.append(h.detach())
                h = _linear(layer, h)
                outs.append(h)
            elif isinstance(layer, nn.Flatten) and layer.start_dim > 0:
                h = h.flatten(targets.dim())
            else:
                h = layer(h)
        deltas = torch.autograd.grad(objective.loss(h, targets).sum(), outs)
    for layer, a, delta in zip(linear, ins, deltas, strict=True):
        squared = delta.square()
        weight, bias = total.get(id(layer.weight)), total.get(id(layer.bias))
        if weight is not None:
            add = torch.Tensor.addmm_ if weight.dim() == 2 else torch.Tensor.baddbmm_
            add(weight, squared.transpose(-1, -2), a.square(), alpha=1 / n)
        if bias is not None:
            bias.add_(squared.sum(-2), alpha=1 / n)


def _linear(layer: nn.Linear, h: Tensor) -> Tensor:
    """The layer's output, differentiable in itself and not in the weights."""
    weight, bias = layer.weight.detach(), layer.bias
    if weight.dim() == 2:
        out = F.linear(h, weight, None if bias is None else bias.detach())
    else:
        out = h @ weight.transpose(-1, -2)
        out = out if bias is None else out + bias.detach().unsqueeze(-2)
    return out if out.requires_grad else out.requires_grad_()


def _add_vmapped(
    member: nn.Module,
    objective: Objective,
    batch: Batch,
    stacked: bool,
    n: int,
    total: dict[int, Tensor],
) -> None:
    trainable = {n: p.detach() for n, p in member.named_parameters() if p.requires_grad}
    fixed = {n: p.detach() for n, p in member.named_parameters() if not p.requires_grad}
    fixed.update(member.named_buffers())

    def loss(trainable: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, y: Any) -> Tensor:
        x, y = _unsqueeze(x), _unsqueeze(y)
        return objective.loss(functional_call(member, {**trainable, **fixed}, (x,)), y).sum()

    squares = vmap(grad(loss), in_dims=(None, None, 0, 0))
    if stacked:
        squares = vmap(squares)
    grads = squares(trainable, fixed, *batch)
    for name, p in member.named_parameters():
        if p.requires_grad:
            total[id(p)].add_(grads[name].square_().sum(1 if stacked else 0), alpha=1 / n)


def _unsqueeze(tree: Any) -> Any:
    """One example as a batch of one."""
    return pytree.tree_map(lambda t: t.unsqueeze(0), tree)


def _covers(chain: list[nn.Module], parameters: list[nn.Parameter]) -> bool:
    """Are all parameters weights and biases of Linear layers, each used once?"""
    found = [layer.weight for layer in chain if isinstance(layer, nn.Linear)]
    found += [
        layer.bias for layer in chain if isinstance(layer, nn.Linear) and layer.bias is not None
    ]
    return len(found) == len(parameters) == len({id(p) for p in found})


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode again afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:  # past Module.__setattr__, which costs as much as a small layer
        module.__dict__["training"] = False
    try:
        yield
    finally:
        for module in training:
            module.__dict__["training"] = True
