r"""One Linear layer of S seeds under P policies as a batched matrix product.

    inputs h [S, B, in] that the policies share, or [P, S, B, in]   ->   outputs [P, S, B, out]

The policies' copies of a parameter lie end to end in memory (`lay_out`), so that all of them are
one tensor [P, S, ...] at no cost (`joined`), and so are their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Weights of one replica's layer from which copying them together costs too much.
LARGE = 1 << 15

# Up to so many outputs a CPU multiplies W hᵀ faster than h Wᵀ; ten times for one output.
NARROW = 4


def lay_out(members: Sequence[nn.Module]) -> None:
    """Move the members' copies of each parameter and buffer next to each other in memory."""
    for copies in zip(*(_tensors(member) for member in members), strict=True):
        if not copies[0].numel() or _end_to_end(
            copies
        ):  # whoever holds their addresses (a captured graph) may go on
            continue
        parts = torch.stack([p.detach() for p in copies]).unbind(0)
        for p, part in zip(copies, parts, strict=True):
            p.data = part


def _tensors(member: nn.Module) -> list[Tensor]:
    return [*member.parameters(), *member.buffers()]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one, [P, ...], copied only where they do not lie end to end."""
    if torch.compiler.is_compiling() or not _end_to_end(tensors):
        return torch.stack(tuple(tensors))
    return _Joined.apply(*tensors)  # pyright: ignore[reportReturnType]


def _end_to_end(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    size = first.numel() * first.element_size()
    at, count = first.data_ptr(), len(tensors)
    # The last comparison: two allocations may be neighbours by chance.
    return (
        first.is_contiguous()
        and [t.data_ptr() for t in tensors] == list(range(at, at + count * size, size))
        and first.storage_offset() * first.element_size() + count * size
        <= first.untyped_storage().nbytes()
    )


class _Joined(torch.autograd.Function):
    """`torch.stack` of tensors that lie end to end; gradients are parts of one tensor as well."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(*tensors)  # a change before `backward` would not be seen otherwise
        return _as_one(tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        _ = ctx.saved_tensors
        return grad.contiguous().unbind(0)


def all_as_one(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensors as one, [P, ...], without history; None where they do not lie end to end."""
    return _as_one(tensors) if _end_to_end(tensors) else None


def _as_one(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    strides = (first.numel(), *first.stride())
    return first.data.as_strided((len(tensors), *first.shape), strides)


def linear(layers: Sequence[nn.Linear], h: Tensor, folded: bool = False) -> Tensor:
    """The layer of all policies: `h` is [S, B, in], or [P, S, B, in] once `folded`."""
    P = len(layers)
    weights: list[Tensor] = [layer._parameters["weight"] for layer in layers]  # pyright: ignore
    biases: list[Tensor | None] = [layer._parameters["bias"] for layer in layers]
    S, out, _ = weights[0].shape
    shared_rows = not folded and h.stride(0) == 0  # all replicas see the same rows
    if P == 1 and not shared_rows:
        return _affine(h[0] if folded else h, weights[0], biases[0]).unsqueeze(0)
    # Joining first layers takes a copy, [P, S, out, in] -> [S, P * out, in].
    large = not folded and not shared_rows and out > 1 and weights[0][0].numel() >= LARGE
    if large and h.device.type == "cpu":
        return torch.stack([_affine(h, layer.weight, layer.bias) for layer in layers])
    if large and h.shape[1] <= out:  # a GPU then copies the inputs, which are smaller
        h, folded = h.expand(P, *h.shape), True
    weight, bias = joined(weights), None if biases[0] is None else joined(biases)  # pyright: ignore
    if folded:
        bias = None if bias is None else bias.flatten(0, 1)
        return _affine(h.flatten(0, 1), weight.flatten(0, 1), bias).unflatten(0, (P, S))
    if shared_rows:  # one product for all of them
        product = (h[0] @ weight.flatten(0, 2).t()).unflatten(1, (P, S, out)).permute(1, 2, 0, 3)
        return product if bias is None else product + bias.unsqueeze(2)
    weight = weight.transpose(0, 1).flatten(1, 2)
    bias = None if bias is None else bias.transpose(0, 1).flatten(1, 2)
    # With one output each, [S, P, B] in memory leaves the loss contiguous rows to average.
    product = _affine(h, weight, bias, rows_last=out == 1)
    return product.unflatten(2, (P, out)).permute(2, 0, 1, 3)


def is_special(h: Tensor) -> bool:
    """Whether autocast or a compiler wants to see the products themselves."""
    return torch.compiler.is_compiling() or torch.is_autocast_enabled(h.device.type)


def _affine(h: Tensor, weight: Tensor, bias: Tensor | None, rows_last: bool = False) -> Tensor:
    if torch.is_autocast_enabled(h.device.type):  # which knows the products, not our function
        out = h @ weight.transpose(1, 2)
        return out if bias is None else out + bias.unsqueeze(1)
    return _Affine.apply(h, weight, bias, rows_last)  # pyright: ignore[reportReturnType]


class _Affine(torch.autograd.Function):
    """h Wᵀ + b for a stack of matrices.

    Autograd's own backward of this product gives the weight's gradient transposed, which is then
    copied into the layout of the weight; here it comes out right.
    """

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, rows_last: bool
    ) -> Tensor:
        ctx.save_for_backward(h, weight)
        if weight.shape[1] > NARROW and not rows_last:
            w_t = weight.transpose(1, 2)
            return torch.bmm(h, w_t) if bias is None else torch.baddbmm(bias.unsqueeze(1), h, w_t)
        h_t = h.transpose(1, 2)
        out = (
            torch.bmm(weight, h_t) if bias is None else torch.baddbmm(bias[..., None], weight, h_t)
        )
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        h, weight = ctx.saved_tensors
        needs_h, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if needs_h else None,
            torch.bmm(grad.transpose(1, 2), h) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
            None,
        )
