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
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from longtail.replicas import Replicas, lead_of, linear_chain, parameter_groups
from longtail.tasks import Batch, Examples, Objective

CHUNK = 1024  # examples per pass of the closed form
NUMBERS = 1 << 25  # numbers in the per-example gradients held at once
BATCH = 16  # examples per squared gradient of `batch_fisher`


def example_fisher(model: nn.Module, objective: Objective, examples: Examples) -> list[Tensor]:
    """Mean over the examples of their squared gradients, for every trainable parameter."""
    members = list(model.members) if isinstance(model, Replicas) else [model]
    with evaluation_mode(model):
        parts = [_member_fisher(m, objective, examples, lead_of(model)[1:]) for m in members]
    return [F.div_(len(examples)) for part in parts for F in part]


def batch_fisher(model: nn.Module, objective: Objective, examples: Examples) -> list[Tensor]:
    """Mean over batches of 16 (weighted by their size) of their mean gradient squared."""
    parameters = [p for group in parameter_groups(model) for p in group]
    total = [torch.zeros_like(p) for p in parameters]
    with evaluation_mode(model), torch.enable_grad():
        for start in range(0, len(examples), BATCH):
            inputs, targets = _batch(examples, start, BATCH, lead_of(model)[1:])
            losses = objective.loss(model(inputs), targets)
            grads = torch.autograd.grad(losses.mean(-1).sum(), parameters, materialize_grads=True)
            share = losses.shape[-1] / len(examples)
            torch._foreach_addcmul_(total, grads, grads, share)
    return total


def _batch(examples: Examples, start: int, size: int, lead: tuple[int, ...]) -> Batch:
    """Examples from `start` on, [*lead, B, ...]."""
    if not lead:
        return examples[start : start + size]
    return examples[torch.arange(start, min(start + size, len(examples))).expand(*lead, -1)]


def _member_fisher(
    member: nn.Module, objective: Objective, examples: Examples, lead: tuple[int, ...]
) -> list[Tensor]:
    chain, stacked = linear_chain(member), bool(lead)
    closed = chain is not None and _is_plain(chain, member)
    total = {id(p): torch.zeros_like(p) for p in member.parameters() if p.requires_grad}
    numbers = sum(p.numel() for p in member.parameters())
    chunk = CHUNK if closed else max(1, NUMBERS // numbers)
    for start in range(0, len(examples), chunk):
        batch = _batch(examples, start, chunk, lead)
        if closed and isinstance(batch[0], Tensor):
            assert chain is not None
            _add_closed_form(chain, objective, batch, stacked, total)
        else:
            _add_vmapped(member, objective, batch, stacked, total)
    return list(total.values())


def _add_closed_form(
    chain: list[nn.Module],
    objective: Objective,
    batch: Batch,
    stacked: bool,
    total: dict[int, Tensor],
) -> None:
    h, targets = batch
    linear, ins, outs = [], [], []
    with torch.enable_grad():
        for layer in chain:
            if isinstance(layer, nn.Linear):
                linear.append(layer)
                ins.append(h.detach())
                h = h @ layer.weight.detach().transpose(-1, -2)
                if layer.bias is not None:
                    h = h + layer.bias.detach().unsqueeze(-2)
                if not h.requires_grad:
                    h.requires_grad_()
                outs.append(h)
            elif isinstance(layer, nn.Flatten) and layer.start_dim > 0:
                h = h.flatten(layer.start_dim + stacked)
            else:
                h = layer(h)
        deltas = torch.autograd.grad(objective.loss(h, targets).sum(), outs)
    for layer, a, delta in zip(linear, ins, deltas, strict=True):
        squared = delta.square()
        if id(layer.weight) in total:
            total[id(layer.weight)].add_(squared.transpose(-1, -2) @ a.square())
        if layer.bias is not None and id(layer.bias) in total:
            total[id(layer.bias)].add_(squared.sum(-2))


def _add_vmapped(
    member: nn.Module, objective: Objective, batch: Batch, stacked: bool, total: dict[int, Tensor]
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
            total[id(p)].add_(grads[name].square_().sum(1 if stacked else 0))


def _unsqueeze(tree: Any) -> Any:
    """One example as a batch of one."""
    return pytree.tree_map(lambda t: t.unsqueeze(0), tree)


def _is_plain(chain: list[nn.Module], member: nn.Module) -> bool:
    """Are all parameters weights and biases of Linear layers, each used once?"""
    found = [id(p) for layer in chain if isinstance(layer, nn.Linear) for p in layer.parameters()]
    return len(found) == len(set(found)) == len(list(member.parameters()))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode again afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
