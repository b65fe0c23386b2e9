"""One forward and backward pass through all layers of R encoders: see `fused.py`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail_bench.encoder import blocks
from longtail_bench.encoder.blocks import count, kernels, wide
from longtail_bench.encoder.config import LAYER, MATRICES, VECTORS, EncoderConfig
from longtail_bench.encoder.gradients import Operands, row_sums

HALF = torch.bfloat16  # what products take
# Which of a layer's random numbers: attention's, its output's, the feed-forward's.
_ATTENTION, _MIXED, _INNER = range(3)


class Places(NamedTuple):
    """How B sequences of at most T tokens lie in the N rows of a model: see `attention.py`."""

    B: int
    T: int
    N: int
    seen: Tensor | None  # 1 where a token is real, [S, B, T] bytes; None where they are packed
    spans: Tensor | None  # first row and number of rows of each, [S, B, 2]; None where they are not


class LayerPass:
    """Sizes, bf16 matrices and, in backward, room for the gradients.

    Args:
        lead: P and S; R = P * S.
        places: of the sequences in the rows of hidden states, [R, N, H].
        relative: bias of attention [R, heads, T, T], or None.
        seeds: of dropout, [S], or None for no dropout.
        parts: P parts [S, L, ...] of each name in LAYER.
        first: after the last layer only the first position of a sequence is wanted, as it must be
            of packed ones.
        keep: whether there will be a backward pass.
    """

    def __init__(
        self,
        config: EncoderConfig,
        lead: tuple[int, int],
        places: Places,
        relative: Tensor | None,
        seeds: Tensor | None,
        parts: Sequence[Tensor],
        first: bool,
        keep: bool,
    ) -> None:
        self.kernels, self.config = kernels("kernels"), config
        self.relative = None if relative is None else relative.contiguous()
        (self.P, self.S), self.R = lead, lead[0] * lead[1]
        self.B, self.T, self.N, self.seen, self.spans = places
        self.H, self.I = config.hidden, config.intermediate
        self.place = self.seen if self.spans is None else self.spans  # a kernel takes one of them
        assert self.place is not None
        assert first or self.spans is None
        self.device = self.place.device
        self.drop = 0.0 if seeds is None else config.dropout
        self.seeds = self.place if seeds is None else seeds
        self.values = _joined(parts, self.P)
        self.drelative: Tensor | None = None
        self.first = first
        weights = {name: self.values[name] for name in MATRICES}
        # Rows in no sequence are left out by attention, forward and backward.
        left = ("", "") if self.spans is None else ("out_weight", "qkv_weight")
        self.operands = Operands(weights, self.N, self.B if first else self.N, keep, *left)

    def begin(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden states before the first layer in fp32 and bf16."""
        if self.spans is not None:  # where each sequence begins among all rows of all models
            starts = self.spans[..., 0].repeat(self.P, 1)
            self.starts = (starts + _first_rows(self.R, self.N, self.device)).flatten()
        h = hidden.flatten(1, 2)
        return h, self.operands.x("qkv_weight", 0).copy_(h)

    def forward(self, layer: int, h: Tensor, h16: Tensor) -> tuple[Tensor, Tensor, Any]:
        """The hidden states after `layer` in fp32 and bf16, and what `backward` needs."""
        qkv = _product(h16, self._of("qkv_weight", layer).transpose(1, 2))
        mixed = self.operands.x("out_weight", layer)
        lse = h.new_empty(self.R, self.B, self.config.heads, self._queries(layer))
        programs = count(self._queries(layer), blocks.ATTENTION_FORWARD[0])
        sizes = (programs, *blocks.ATTENTION_FORWARD)
        self._attention("attention_forward", layer, (qkv,), (mixed, lse), sizes)
        if self._queries(layer) == 1 and self.spans is not None:
            h = h.flatten(0, 1).index_select(0, self.starts).view(self.R, self.B, self.H)
        a = _product(mixed, self._of("out_weight", layer).transpose(1, 2))
        y16 = self.operands.x("up_weight", layer)
        y, *stats = self._norm(layer, _MIXED, h, a, y16)
        u = _product(y16, self._of("up_weight", layer).transpose(1, 2))
        g = self.operands.x("down_weight", layer)
        self._gelu("gelu_forward", layer, (u,), (g,), blocks.GELU_FORWARD)
        c = _product(g, self._of("down_weight", layer).transpose(1, 2))
        last = layer == self.config.layers - 1
        z16 = torch.empty_like(c) if last else self.operands.x("qkv_weight", layer + 1)
        z, *more = self._norm(layer, _INNER, y, c, z16)
        return z, z16, (h, h16, qkv, lse, mixed, a, y, y16, stats, u, g, c, more)

    def prepare(self) -> None:
        """Room for the gradients: whole for matrices, in partial sums over rows for vectors."""
        L, H = self.config.layers, self.H
        empty = functools.partial(torch.empty, device=self.device)
        self.operands.prepare()
        norms, ups = self._partial_rows(self.N)
        self.norms, self.ups = empty(2, 3, self.R, L, norms, H), empty(self.R, L, ups, self.I)
        parts = count(self.T, blocks.ATTENTION_BACKWARD[0])  # of a sequence
        self.qkvs = empty(self.R, L, self.B * parts, 3 * H)
        if self.relative is not None:
            shape = (self.R, self.B, self.config.heads, self.T, self.T)
            self.drelative = torch.zeros(shape, device=self.device)

    def backward(
        self, layer: int, dy: Tensor, dy16: Tensor | None, saved: Any
    ) -> tuple[Tensor, Tensor]:
        """From the gradient dy + dy16 after `layer` to that before it, in two parts as well.

        dy may have the first positions alone, [R, B, H]: it is 0 at the others.
        """
        h, h16, qkv, lse, mixed, a, y, y16, stats, u, g, c, more = saved
        multiply, dz16 = self.operands.multiply, self.operands.dy("down_weight", layer)
        dz = self._norm_backward(layer, _INNER, dy, dy16, y, c, more, dz16)
        dg = _product(dz16, self._of("down_weight", layer))
        multiply("down_weight", layer, dz16, g)
        du = self.operands.dy("up_weight", layer)
        out, stride = (du, self.ups[:, layer]), self.ups.stride(0)
        self._gelu("gelu_backward", layer, (dg, u), out, blocks.GELU_BACKWARD, stride)
        dy16 = _product(du, self._of("up_weight", layer))
        multiply("up_weight", layer, du, y16)
        dz16 = self.operands.dy("out_weight", layer)
        dz = self._norm_backward(layer, _MIXED, dz, dy16, h, a, stats, dz16)
        dmixed = _product(dz16, self._of("out_weight", layer))
        multiply("out_weight", layer, dz16, mixed)
        dqkv = self.operands.dy("qkv_weight", layer)
        bias = dqkv if self.drelative is None else self.drelative
        given, out = (dmixed, mixed, lse, qkv), (dqkv, self.qkvs[:, layer], bias)
        sizes = (2 * self.qkvs.shape[2] // self.B, *blocks.ATTENTION_BACKWARD)
        self._attention("attention_backward", layer, given, out, sizes, self.qkvs.stride(0))
        dh16 = _product(dqkv, self._of("qkv_weight", layer))
        multiply("qkv_weight", layer, dqkv, h16)
        if self._queries(layer) == 1 and self.spans is not None:
            whole = dz.new_zeros(self.R * self.N, self.H).index_copy_(
                0, self.starts, dz.flatten(0, 1)
            )
            dz = whole.view(self.R, self.N, self.H)
        return dz, dh16

    def gradients(self) -> list[Tensor]:
        """Of each part [S, L, ...] of each name in LAYER."""
        self.operands.finish()
        names = ("attention_gain", "attention_shift", "out_bias")
        names += ("output_gain", "output_shift", "down_bias")
        last = (*self._partial_rows(self.operands.last), self.qkvs.shape[-2])
        norms, ups, qkvs = row_sums((self.norms, self.ups, self.qkvs), last, self.config.layers)
        sums = dict(zip(names, norms.flatten(0, 1), strict=True))
        sums |= {"up_bias": ups, "qkv_bias": qkvs}
        sums |= self.operands.gradients
        return [part for name in LAYER for part in sums[name].chunk(self.P)]

    def _queries(self, layer: int) -> int:
        """Of each sequence: how many positions have a hidden state after this layer's attention."""
        return 1 if self.first and layer == self.config.layers - 1 else self.T

    def _partial_rows(self, rows: int) -> tuple[int, int]:
        """Partial sums that so many rows give, in norms and in feed-forward layers."""
        return count(rows, blocks.norm_backward(self.H)[0]), count(rows, blocks.GELU_BACKWARD[0])

    def _of(self, name: str, layer: int) -> Tensor:
        return self.values[name][:, layer]

    def _salt(self, layer: int, which: int) -> int:
        return 4 * layer + which

    def _norm(
        self, layer: int, which: int, x: Tensor, a: Tensor, y16: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """norm(x + a + bias) in fp32 (and in bf16 into y16), mean and 1 / deviation of each row."""
        bias, kind = _NORMS[which]
        gain = self._of(f"{kind}_gain", layer)
        y, rows = x.new_empty(a.shape), a.shape[1]
        mean, rstd = (torch.empty(self.R, rows, device=x.device) for _ in range(2))
        block, warps = blocks.NORM_FORWARD
        self.kernels.norm_forward[(count(rows, block), self.R)](
            x, a, self._of(bias, layer), gain, self._of(f"{kind}_shift", layer), y, y16, mean, rstd,
            self.seeds, rows, self.S, self.H * (x.shape[1] // rows), gain.stride(0),
            self._salt(layer, which), self.config.eps,
            self.H, wide(self.H), block, self.drop, num_warps=warps,
        )  # fmt: skip
        return y, mean, rstd

    def _norm_backward(
        self,
        layer: int,
        which: int,
        dy: Tensor,
        dy16: Tensor | None,
        x: Tensor,
        a: Tensor,
        stats: Sequence[Tensor],
        dz16: Tensor,
    ) -> Tensor:
        """The gradient of x in fp32; that of a goes into dz16."""
        bias, kind = _NORMS[which]
        gain = self._of(f"{kind}_gain", layer)
        dz, rows = x.new_empty(a.shape), a.shape[1]
        partial = self.norms[which - _MIXED, :, :, layer]  # [3, R, blocks, H]
        height, *block, warps = blocks.norm_backward(self.H)
        self.kernels.norm_backward[(count(rows, height), self.R)](
            dy, dz16 if dy16 is None else dy16, x, a, self._of(bias, layer), gain, *stats, dz, dz16,
            partial, self.seeds, rows, self.S, self.H * (x.shape[1] // rows), rows // dy.shape[1],
            gain.stride(0), self._salt(layer, which),
            partial.stride(0), partial.stride(1),
            self.H, wide(self.H), *block, self.drop, True, dy16 is not None, num_warps=warps,
        )  # fmt: skip
        return dz

    def _gelu(
        self,
        name: str,
        layer: int,
        given: Sequence[Tensor],
        out: Sequence[Tensor],
        sizes: tuple[int, int, int],
        *strides: int,
    ) -> None:
        (height, width, warps), rows = sizes, given[0].shape[1]
        bias, grid = self._of("up_bias", layer), (count(rows, height), count(self.I, width), self.R)
        getattr(self.kernels, name)[grid](
            *given, bias, *out, rows, self.I, bias.stride(0), *strides, height, width,
            num_warps=warps,
        )  # fmt: skip

    def _attention(
        self,
        name: str,
        layer: int,
        given: Sequence[Tensor],
        out: Sequence[Tensor],
        sizes: tuple[int, int, int, int],
        *strides: int,
    ) -> None:
        programs, own, other, warps = sizes
        bias, head = self._of("qkv_bias", layer), self.H // self.config.heads
        kernel, long = getattr(kernels("attention"), name), max(16, wide(self.T))
        kernel[(self.R * self.B, self.config.heads, programs)](
            *given, bias, self.place, self.place,
            bias if self.relative is None else self.relative, *out,
            self.seeds, self.S, self.B, self.T, self.N, self._queries(layer), bias.stride(0),
            self._salt(layer, _ATTENTION), head**-0.5, *strides, self.config.heads, head,
            long, own, min(other, long, 4096 // head), self.relative is not None, self.drop,
            self.spans is not None, num_warps=min(8, warps * max(1, head // 32)), num_stages=1,
        )  # fmt: skip


@functools.cache
def _first_rows(R: int, N: int, device: torch.device) -> Tensor:
    """The first row of each model among those of all, [R, 1]."""
    return torch.arange(0, R * N, N, device=device)[:, None]


_NORMS = {_MIXED: ("out_bias", "attention"), _INNER: ("down_bias", "output")}


def _joined(parts: Sequence[Tensor], P: int) -> dict[str, Tensor]:
    """Each of LAYER as [R, L, ...]: matrices in bf16."""
    own = {name: parts[i * P : (i + 1) * P] for i, name in enumerate(LAYER)}
    values = {name: own[name][0] for name in VECTORS} if P == 1 else _copied(own, VECTORS, None)
    return values | _copied(own, MATRICES, HALF)


def _copied(
    own: dict[str, Sequence[Tensor]], names: Sequence[str], kind: torch.dtype | None
) -> dict[str, Tensor]:
    """The parts of each name end to end, by one launch for all: it takes one pair of dtypes."""
    values, into, source = {}, [], []
    for name in names:
        parts = own[name]
        shape = (len(parts) * parts[0].shape[0], *parts[0].shape[1:])
        values[name] = torch.empty(shape, dtype=kind or parts[0].dtype, device=parts[0].device)
        into += values[name].chunk(len(parts))
        source += parts
    torch._foreach_copy_(into, source)
    return values


def _product(a: Tensor, b: Tensor) -> Tensor:
    """[R, n, k] times [R, k, m]."""
    return torch.mm(a[0], b[0])[None] if len(a) == 1 else torch.bmm(a, b)
