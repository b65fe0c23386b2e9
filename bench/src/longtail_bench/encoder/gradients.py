"""Gradients of the matrices and vectors of all layers in few launches: see `layers.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from longtail_bench.encoder import blocks
from longtail_bench.encoder.blocks import kernels

# Tokens of a model's batch up to which the gradients of all layers wait for the last one. Such a
# layer's product is a few µs on half of a GPU, together they fill it. A larger one fills it alone,
# and the dy of all layers, half as much again as what forward keeps, would no longer be small.
TOGETHER = 4096
_OUT, _IN = 2, 3  # dimensions of a matrix [R, L, out, in]


class Operands:
    """The x that each matrix took and the dy that came back to it: dW = dy' x.

    Of a small batch they lie side by side over the layers, [L, R, N, .], and one product a model
    gives the gradients of all layers. The last layer is alone where it has fewer rows than others.

    Args:
        weights: [R, L, out, in] each.
        rows: N, of a model's batch.
        last: rows that the last layer has after attention.
        keep: whether there will be a backward pass.
        zero_in: the matrix that takes 0 where nobody writes to what it takes.
        zero_out: the matrix that 0 comes back to where nobody writes to what comes back.
    """

    def __init__(
        self,
        weights: dict[str, Tensor],
        rows: int,
        last: int,
        keep: bool,
        zero_in: str = "",
        zero_out: str = "",
    ) -> None:
        self.weights, self.rows, self.last = weights, rows, last
        self.zero_in, self.zero_out = zero_in, zero_out
        self.together = keep and rows <= TOGETHER
        self.taken: dict[str, Tensor] = {}
        self.returned: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}

    def x(self, name: str, layer: int) -> Tensor:
        """Where to write what the matrix takes, [R, n, in]."""
        return self._room(self.taken, name, layer, _IN, name == self.zero_in)

    def dy(self, name: str, layer: int) -> Tensor:
        """Where to write the gradient of what it gave, [R, n, out]."""
        return self._room(self.returned, name, layer, _OUT, name == self.zero_out)

    def prepare(self) -> None:
        """Room for the gradients."""
        for name, weight in self.weights.items():
            self.gradients[name] = weight.new_empty(weight.shape, dtype=torch.float32)

    def multiply(self, name: str, layer: int, dy: Tensor, x: Tensor) -> None:
        """The gradient of one layer's matrix, unless it waits for those of the others."""
        if not self._waits(name, layer):
            _outer_product(dy, x, self.gradients[name][:, layer])

    def finish(self) -> None:
        """The gradients that waited."""
        for name, dy in self.returned.items():
            x = self.taken[name]
            for r, out in enumerate(self.gradients[name]):
                _outer_product(dy[:, r], x[:, r], out[: len(x)])
        self.taken, self.returned = {}, {}

    def _narrow(self, name: str, layer: int) -> bool:
        L = self.weights[name].shape[1]
        return self.last < self.rows and layer == L - 1 and name != "qkv_weight"

    def _waits(self, name: str, layer: int) -> bool:
        return self.together and not self._narrow(name, layer)

    def _room(
        self, whole: dict[str, Tensor], name: str, layer: int, dimension: int, zeroed: bool
    ) -> Tensor:
        weight = self.weights[name]
        new = weight.new_zeros if zeroed else weight.new_empty
        (R, L), width = weight.shape[:2], weight.shape[dimension]
        if not self._waits(name, layer):
            return new(R, self.last if self._narrow(name, layer) else self.rows, width)
        if name not in whole:
            layers = L - self._narrow(name, L - 1)
            whole[name] = new(layers, R, self.rows, width)
        return whole[name][layer]


def _outer_product(dy: Tensor, x: Tensor, out: Tensor) -> None:
    """[n, rows, out], [n, rows, in]: dy' x [n, out, in] in fp32."""
    if not x.is_cuda:
        torch.bmm(dy.float().transpose(1, 2), x.float(), out=out)
    elif len(x) == 1:
        torch.ops.aten.mm.dtype_out(dy[0].t(), x[0], torch.float32, out=out[0])
    else:
        torch.ops.aten.bmm.dtype_out(dy.transpose(1, 2), x, torch.float32, out=out)


def row_sums(partials: Sequence[Tensor], last: Sequence[int], layers: int = 1) -> list[Tensor]:
    """Sums over the rows of up to three [..., L, rows, width], in one launch: [..., L, width] each.

    Args:
        last: how many rows the last layer has, of each.
    """
    sums, given, programs = [], [], 0
    together, columns, warps = blocks.SUMS
    for partial, stop in zip(partials, last, strict=True):
        *lead, rows, width = partial.shape
        sums.append(partial.new_empty(*lead, width))
        given += [partial, sums[-1], rows, stop, width, programs]
        programs += math.prod(lead) * blocks.count(width, columns)
    for _ in range(3 - len(sums)):  # no program gets there
        given += [*given[:5], programs]
    kernels("kernels").sum_rows[(programs,)](*given, layers, together, columns, num_warps=warps)
    return sums
