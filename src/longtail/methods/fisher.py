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
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear
from torch.utils import _pytree as pytree

from longtail.replicas import Replicas, lead_of, linear_chain
from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import Batch, Examples, Objective
from longtail.tasks.examples import read

CHUNK = 1024  # examples per pass of the closed form
NUMBERS = 1 << 25  # numbers in the per-example gradients held at once
BATCH = 16  # examples per squared gradient of kinds "batch" and "batch_sum"

Kind = Literal["example", "batch", "batch_sum"]
KIND_HELP = "square gradients per example, or per batch: their mean, or sum"


def check_kind(fisher: str) -> None:
    """Refuse a setting `fisher` that is no `Kind`."""
    if fisher not in get_args(Kind):
        raise ValueError(f"Invalid fisher: {fisher!r}, not 'example', 'batch' or 'batch_sum'")


class _Member(NamedTuple):
    """One model of a stack, or the plain one."""

    module: nn.Module
    modules: list[nn.Module]  # all that were in it when the Fisher object was made
    chain: list[nn.Module] | None
    parameters: list[nn.Parameter]  # that were trainable then

    @classmethod
    def of(cls, module: nn.Module) -> _Member:
        trained = [p for p in module.parameters() if p.requires_grad]
        return cls(module, list(module.modules()), _plain_chain(module), trained)


class Fisher:
    """Estimates the Fisher information of the parameters that are trainable when it is made.

    One that is frozen later has none from the tasks that leave it as it is.

    Args:
        model: a plain module, or `Replicas`.
        objective: loss per example.
        kind: "example" averages the squared gradients of single examples; "batch" the squared mean
            gradients of batches of 16, weighted by their size; "batch_sum" adds those up as they
            are, so that F grows with the number of batches b:

                F = Σ_b (1/n_b Σ_{j in b} ∇_θ ℓ(f_θ(x_j), y_j))²
    """

    def __init__(self, model: nn.Module, objective: Objective, kind: Kind = "example") -> None:
        self.model, self.objective, self.kind = model, objective, kind
        self.lead = lead_of(model)[1:]
        members = model.members if isinstance(model, Replicas) else [model]
        # Walking through a small model for its parameters takes as long as some of its kernels.
        self.members = [_Member.of(m) for m in members]

    def __call__(self, examples: Examples, chosen: Tensor | None = None) -> list[Tensor]:
        """From all examples, or from the rows `chosen` [*lead, n]; in the parameters' order."""
        n = len(examples) if chosen is None else chosen.shape[-1]
        with evaluation_mode(self.model), torch.enable_grad():
            if not any(p.requires_grad for member in self.members for p in member.parameters):
                return [torch.zeros_like(p) for m in self.members for p in m.parameters]
            if self.kind != "example":
                return self._per_batch(examples, chosen, n)
            found: list[Tensor] = []
            for member in self.members:
                found += self._of(member, examples, chosen, n)
            return found

    def _per_batch(self, examples: Examples, chosen: Tensor | None, n: int) -> list[Tensor]:
        parameters = [p for member in self.members for p in member.parameters]
        total = [torch.zeros_like(p) for p in parameters]
        live = [i for i, p in enumerate(parameters) if p.requires_grad]
        asked, squared = ([tensors[i] for i in live] for tensors in (parameters, total))
        for inputs, targets in self._batches(examples, chosen, n, BATCH):
            losses = self.objective.loss(self.model(inputs), targets)
            grads = torch.autograd.grad(losses.mean(-1).sum(), asked, materialize_grads=True)
            share = 1.0 if self.kind == "batch_sum" else losses.shape[-1] / n
            torch._foreach_addcmul_(squared, grads, grads, share)
        return total

    def _of(
        self, known: _Member, examples: Examples, chosen: Tensor | None, n: int
    ) -> list[Tensor]:
        member, modules, chain, parameters = known
        if list(member.modules()) != modules:  # the model has grown
            chain = _plain_chain(member)
        total = {id(p): torch.zeros_like(p) for p in parameters}
        size = CHUNK if chain else max(1, NUMBERS // max(1, sum(map(Tensor.numel, parameters))))
        for batch in self._batches(examples, chosen, n, size):
            if chain is not None and _one_row_each(chain, batch[0], len(self.lead)):
                _add_closed_form(chain, self.objective, batch, len(self.lead), n, total)
            else:
                _add_vmapped(member, self.objective, batch, bool(self.lead), n, total)
        return list(total.values())

    def _batches(
        self, examples: Examples, chosen: Tensor | None, n: int, size: int
    ) -> Iterator[Batch]:
        """Batches [*lead, B, ...] of at most `size` examples."""
        for start in range(0, n, size):
            stop = min(start + size, n)
            if chosen is not None:
                yield examples[chosen[..., start:stop]]
            elif self.lead:
                yield examples[torch.arange(start, stop).expand(*self.lead, -1)]
            else:
                yield read(examples, start, stop)


def _one_row_each(chain: list[nn.Module], inputs: Any, lead: int) -> bool:
    """Whether every Linear layer sees one row an example; of several, squares do not add up."""
    if not isinstance(inputs, Tensor):
        return False
    dims = inputs.dim() - lead
    for layer in chain:
        if isinstance(layer, nn.Linear) and dims != 2:
            return False
        if isinstance(layer, nn.Flatten):  # from a dimension counted from the front, or the back
            first = layer.start_dim if layer.start_dim > 0 else dims + layer.start_dim
            dims = min(dims, first + 1)
    return True


def _add_closed_form(
    chain: list[nn.Module],
    objective: Objective,
    batch: Batch,
    lead: int,
    n: int,
    total: dict[int, Tensor],
) -> None:
    h, targets = batch
    layers, ins, outs = [], [], []
    for layer in chain:
        if isinstance(layer, nn.Linear):
            layers.append(layer)
            ins.append(h.detach())
            h = _linear(layer, h)
            outs.append(h)
        elif isinstance(layer, nn.Flatten) and layer.start_dim > 0:
            h = h.flatten(layer.start_dim + lead)
        else:
            h = layer(h)
    deltas = torch.autograd.grad(objective.loss(h, targets).sum(), outs)
    for layer, a, delta in zip(layers, ins, deltas, strict=True):
        squared = delta.square()
        weight, bias = (
            total.get(id(p)) if p is not None and p.requires_grad else None
            for p in (layer.weight, layer.bias)
        )
        if weight is not None:
            add = torch.Tensor.addmm_ if weight.dim() == 2 else torch.Tensor.baddbmm_
            add(weight, squared.transpose(-1, -2), a.square(), alpha=1 / n)
        if bias is not None:
            bias.add_(squared.sum(-2), alpha=1 / n)


def _linear(layer: nn.Linear, h: Tensor) -> Tensor:
    """The layer's output with detached weights.

    It requires gradients, so that autograd gives that with respect to the output alone.
    """
    weight, bias = layer.weight.detach(), layer.bias
    if weight.dim() == 2:
        out = linear(h, weight, None if bias is None else bias.detach())
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
    with sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be batched: one call per example
        grads = squares(trainable, fixed, *batch)
    for name, p in member.named_parameters():
        if p.requires_grad and id(p) in total:
            # not in place: of a parameter without a part in the loss it is one zero, expanded
            total[id(p)].add_(grads[name].square().sum(1 if stacked else 0), alpha=1 / n)


def _unsqueeze(tree: Any) -> Any:
    """One example as a batch of one."""
    return pytree.tree_map(lambda t: t.unsqueeze(0), tree)


def _plain_chain(member: nn.Module) -> list[nn.Module] | None:
    """The layers, if all parameters are weights and biases of Linear layers, each used once."""
    chain = linear_chain(member)
    if chain is None:
        return None
    layers = [layer for layer in chain if isinstance(layer, nn.Linear)]
    found = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    plain = len(found) == len(list(member.parameters())) == len({id(p) for p in found})
    return chain if plain else None
