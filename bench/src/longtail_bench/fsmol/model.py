r"""A perceptron over fingerprints with one head an assay.

    h = ReLU(W₂ ReLU(W₁ x + b₁) + b₂)        z = a_i · h / rms(h) + c_i    for x of assay i

x are 2,048 bits or counts; (a_i, c_i) is row i of a table of heads. While assay i is learned its
row is the parameter `head` and the only one with a gradient, see `tasks/task_models.py`.

Heads begin at zero and see hidden states of unit size. Most assays have three steps to learn
theirs, too few to unlearn a random one, or to get anywhere from hidden states of 0.03. A head of
zero has no gradient for the trunk, so the first step of a task is the head's alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm

from longtail.replicas import is_special, joined
from longtail.replicas import linear as stacked_linear
from longtail.tasks import TaskModel
from longtail_bench.fsmol.assays import WIDTH

Inputs = tuple[Tensor, Tensor]  # fingerprints uint8 [..., B, W], tasks [..., B]


class BitLinear(nn.Module):
    """x W + b with a row of W for each bit of x, begun as `nn.Linear` would.

    A batch has a few hundred of the 2,048 bits. On a CPU only their rows are multiplied. The others
    have no gradient and, until one of their molecules comes, no moments: a step passes over them.
    """

    def __init__(self, bits: int, outputs: int) -> None:
        super().__init__()
        plain = nn.Linear(bits, outputs)
        self.weight = nn.Parameter(plain.weight.detach().t().contiguous())
        self.bias = plain.bias

    def forward(self, fingerprints: Tensor) -> Tensor:
        """uint8 [B, W] -> [B, outputs]."""
        if is_special(self.weight) or self.weight.device.type != "cpu":
            return torch.addmm(self.bias, unpacked(fingerprints), self.weight)
        return _SomeRows.apply(*_some_bits(fingerprints), self.weight, self.bias)  # pyright: ignore

    @staticmethod
    def forward_stacked(layers: Sequence[BitLinear], fingerprints: Tensor) -> Tensor:
        """uint8 [S, B, W] -> [P, S, B, outputs] of P policies' layers, as one product."""
        weight, bias = joined([e.weight for e in layers]), joined([e.bias for e in layers])
        lead, found = weight.shape[:2], None
        if fingerprints.stride(0) == 0:  # all replicas see the same molecules: unpack them once
            fingerprints = fingerprints[:1]
        if is_special(weight) or weight.device.type != "cpu":
            x = unpacked(fingerprints)
        else:
            x, found = _some_bits(fingerprints)
        # a stride of zero where there is one row of replicas, a copy where there are several
        x = x.expand(lead.numel(), -1, -1) if len(x) == 1 else x.expand(*lead, -1, -1).flatten(0, 1)
        weight, bias = weight.flatten(0, 1), bias.flatten(0, 1).unsqueeze(1)
        if found is None:
            return torch.baddbmm(bias, x, weight).unflatten(0, lead)
        return _SomeRows.apply(x, found, weight, bias).unflatten(0, lead)  # pyright: ignore


class _SomeRows(torch.autograd.Function):
    """x W[found] + b of one W or a stack of them; the gradient of W's other rows is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, found: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(x, found)
        ctx.shape, ctx.bias = weight.shape, bias.shape
        product = torch.addmm if weight.dim() == 2 else torch.baddbmm
        return product(bias, x, weight.index_select(-2, found))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, found = ctx.saved_tensors
        weight = grad.new_zeros(ctx.shape).index_copy_(-2, found, x.mT @ grad)
        return None, None, weight, grad.sum(-2).view(ctx.bias)


def _some_bits(fingerprints: Tensor) -> tuple[Tensor, Tensor]:
    """The bits that some molecule has, float32 [..., B, U], and which these are, [U]."""
    # NumPy, since torch cannot unpack and takes longer for so few numbers
    values = fingerprints.numpy()
    some = np.bitwise_or.reduce(values.reshape(-1, values.shape[-1]), 0)
    if len(some) != WIDTH:
        values, some = np.unpackbits(values, -1), np.unpackbits(some)
    found = np.flatnonzero(some)
    chosen = values.take(found, -1).astype(np.float32)
    return torch.from_numpy(chosen), torch.from_numpy(found)


class Trunk(nn.ModuleList):
    """Linear layers, a ReLU after each."""

    def __init__(self, hidden: Sequence[int]) -> None:
        further = (nn.Linear(a, b) for a, b in pairwise(hidden))
        super().__init__([BitLinear(WIDTH, hidden[0]), *further])

    def forward(self, fingerprints: Tensor) -> Tensor:
        """uint8 [B, W] -> [B, H]."""
        first, *further = self.children()
        h = first.forward(fingerprints).relu_()
        # calling the layers as modules would take as long as the second one does
        for layer in further:
            h = linear(h, layer.weight, layer.bias).relu_()  # pyright: ignore[reportArgumentType]
        return h

    @staticmethod
    def forward_stacked(trunks: Sequence[Trunk], fingerprints: Tensor) -> Tensor:
        """uint8 [S, B, W] -> [P, S, B, H]."""
        first, *further = zip(*trunks, strict=True)
        h = BitLinear.forward_stacked(first, fingerprints).relu()
        for layers in further:
            h = stacked_linear(layers, h, folded=True).relu()
        return h


class MoleculeNet(TaskModel):
    """Logits [B] of molecules of any assays.

    In a saved model the row ``current`` of ``heads`` is out of date: ``head`` has that one.

    Args:
        tasks: how many heads there are.
        hidden: widths of the trunk's layers.
        joint: learn all heads at once, for multi-task training; else that of one task at a time.
    """

    heads: Tensor
    current: Tensor

    def __init__(self, tasks: int, hidden: Sequence[int], joint: bool = False) -> None:
        super().__init__()
        self.joint = joint
        self.trunk = Trunk(hidden)
        table = torch.zeros(tasks, hidden[-1] + 1)
        if joint:
            self.head = nn.Parameter(table)
            return
        self.head = nn.Parameter(table[0].clone())
        self.register_buffer("heads", table)
        self.register_buffer("current", torch.tensor(0))

    def task_parameters(self) -> list[nn.Parameter]:
        return [] if self.joint else [self.head]

    @torch.no_grad()
    def begin_task(self, task: int) -> None:
        if self.joint:
            return
        self._write_back()
        self.head.copy_(self.heads[..., task, :])
        self.current.fill_(task)

    def _write_back(self) -> None:
        """The present head into the table, by index on the device: nobody has to wait for it."""
        place = self.current[..., None, None].expand(*self.head.shape[:-1], 1, self.head.shape[-1])
        self.heads.scatter_(-2, place, self.head.detach().unsqueeze(-2))

    def forward(self, inputs: Inputs) -> Tensor:
        fingerprints, task = inputs
        return self.answer(self.trunk(fingerprints), task)

    def answer(self, h: Tensor, task: Tensor) -> Tensor:
        """Logits [B] of hidden states [B, H]."""
        h = rms_norm(h, h.shape[-1:])
        if self.joint:
            row = embedding(task, self.head)
        elif _all_are(task, self.current):
            return linear(h, self.head[None, :-1], self.head[-1:]).squeeze(-1)
        else:
            row = embedding(task, self.heads)
            row = torch.where((task == self.current)[..., None], self.head, row)
        return (h * row[..., :-1]).sum(-1) + row[..., -1]

    @staticmethod
    def forward_stacked(members: Sequence[MoleculeNet], inputs: Inputs) -> Tensor:
        """Logits [P, S, B] of inputs [S, B, ...]: see `replicas`."""
        fingerprints, task = inputs
        h = Trunk.forward_stacked([member.trunk for member in members], fingerprints)
        return _stacked_answer(members, h, task)


def _stacked_answer(members: Sequence[MoleculeNet], h: Tensor, task: Tensor) -> Tensor:
    """Logits [P, S, B] of hidden states [P, S, B, H] and tasks [S, B]; as `answer` does it.

    For all policies at once: one by one, what a GPU has to launch for them is most of a step.
    """
    h = rms_norm(h, h.shape[-1:])
    head = joined([member.head for member in members])  # [P, S, H + 1], or all heads of each
    table, current = head, None
    if not members[0].joint:
        current = members[0].current[..., None]  # of all policies
        if _all_are(task, current):
            return (h @ head[..., :-1, None]).squeeze(-1) + head[..., -1:]
        table = joined([member.heads for member in members])
    first = torch.arange(table[..., 0, 0].numel(), device=task.device) * table.shape[2]
    row = embedding(task + first.view(*table.shape[:2], 1), table.flatten(0, 2))
    if current is not None:
        row = torch.where((task == current)[..., None], head.unsqueeze(-2), row)
    return (h * row[..., :-1]).sum(-1) + row[..., -1]


def _all_are(task: Tensor, current: Tensor) -> bool:
    """Whether one row serves all; worth knowing, but not worth waiting for a GPU."""
    if task.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    # NumPy compares a few numbers in a tenth of the time
    return bool((task.numpy() == current.numpy()).all())


def unpacked(fingerprints: Tensor) -> Tensor:
    """Counts as they are, packed bits one by one: float32 [..., 2048]."""
    if fingerprints.shape[-1] == WIDTH:
        return fingerprints.float()
    return embedding(fingerprints.int(), _bytes(fingerprints.device)).flatten(-2)


@functools.cache
def _bytes(device: torch.device) -> Tensor:
    """The eight bits of each byte, the highest first: [256, 8]."""
    byte = torch.arange(256, device=device)[:, None]
    return ((byte >> torch.arange(7, -1, -1, device=device)) & 1).float()
