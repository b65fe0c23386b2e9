"""`Encoder.embed` and `Encoder.encode` in bf16 on CUDA: few launches, no copies, fp32 gradients.

A layer of a small batch takes less time to compute than to launch, so it is four matrix products
and four kernels forward and as many backward:

    qkv = h W_qkv'     m = attention(qkv + b_qkv)     a = m W_o'     h = norm(h + a + b_o)
    u = h W_1'         g = gelu(u + b_1)              c = g W_2'     h = norm(h + c + b_2)

Between them lie bf16 operands and an fp32 h, for the residual. The matrices are cast once a step,
all in one launch, and their gradients leave the products in fp32, each in its place in the
parameter's gradient: one more product a matrix, for all layers at once where a batch is small.
Biases are added in fp32, inside the kernels. Nothing is summed with atomics: the same inputs give
the same bits.

Of twelve sequences padded to the longest half is padding. Where the host knows how many tokens
there are, `pack` lays them end to end, and all of the above has so many rows in place of B * T.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]

from longtail_bench.encoder import blocks
from longtail_bench.encoder.blocks import kernels, wide
from longtail_bench.encoder.config import LAYER, TABLES, EncoderConfig, Stacked
from longtail_bench.encoder.gradients import row_sums
from longtail_bench.encoder.layers import LayerPass, Places

LONGEST = 512  # tokens of a sequence that attention takes
TOKENS = 8192  # tokens of a model's batch up to which equal words find each other
FEWEST = 512  # tokens that this takes at least, so that fewer kernels are compiled
STEP = 64  # rows that sequences are packed into are a multiple of it


def usable(config: EncoderConfig, x: Tensor, tokens: int) -> bool:
    """Whether the kernels take sequences of so many tokens: bf16 autocast on CUDA, known shapes."""
    head = config.hidden // config.heads
    return (
        x.is_cuda
        and x.numel() > 0  # a grid of no programs cannot be launched
        and tokens <= LONGEST
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
        and head in (16, 32, 64, 128)
        and config.activation == "gelu"
        and config.types <= 2
        and config.hidden <= 2048
        and not torch.compiler.is_compiling()
        and peek_interpreter_stack() is None  # vmap and grad want plain ops
        and _triton_works()
    )


@functools.cache
def _triton_works() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from triton.runtime import driver

        return driver.active.get_current_target().arch >= 80
    except Exception:  # no C compiler, no driver: the plain operations work everywhere
        return False


class Packed(NamedTuple):
    """Sequences end to end, in N rows a replica, of which the last may be left."""

    ids: Tensor  # [S, 1, N]
    types: Tensor | None  # likewise
    positions: Tensor  # likewise, rows of the position table
    spans: Tensor  # first row and number of rows of each sequence [S, B, 2]
    width: int  # columns that they had


def packed_rows(tokens: int, steps: int = 1) -> int:
    """How many rows so many tokens are packed into: one of a few numbers, so graphs are few."""
    return blocks.count(tokens, steps * STEP) * steps * STEP


def pack(
    config: EncoderConfig,
    S: int,
    ids: Tensor,
    types: Tensor | None,
    lengths: Tensor,
    rows: int,
) -> Packed:
    """The first `lengths` [S, B] tokens of ids [S, B, T], one each at least, in `rows` rows.

    Args:
        S: replicas; what they share has a first dimension of one.
        rows: as `packed_rows` tells of the replica with the most tokens.
    """
    found, kinds, sizes = (_rows(x, S) for x in (ids, types, lengths))
    assert found is not None
    assert sizes is not None
    _check_room(sizes, rows)
    B, T = found.shape[1:]
    packed, places = (found.new_empty(S, 1, rows) for _ in range(2))
    packed_kinds = None if kinds is None else torch.empty_like(packed)
    spans = torch.empty(S, B, 2, dtype=torch.int32, device=ids.device)
    many, block, warps = wide(B), *blocks.PACK
    kernels("embeddings").pack[(blocks.count(rows, block), S)](
        found, found if kinds is None else kinds, sizes, packed,
        packed if packed_kinds is None else packed_kinds, places, spans, B, T, rows, config.pad,
        config.position_offset, many, block, kinds is not None, num_warps=warps,
    )  # fmt: skip
    return Packed(packed, packed_kinds, places, spans, T)


def _check_room(sizes: Tensor, rows: int) -> None:
    """Stops where there are more tokens than rows. A graph that is replayed does not look again."""
    if not (sizes.is_cuda and torch.cuda.is_current_stream_capturing()):
        told = f"sequences of more tokens than the {rows} rows that they are packed into"
        torch.ops.aten._assert_async.msg((sizes.sum(-1) <= rows).all(), told)


def embed(config: EncoderConfig, stacked: Stacked, ids: Tensor, types: Tensor | None) -> Tensor:
    """[R, B, T, H] in fp32, before dropout."""
    S = stacked.lead[1]
    return _embedded(config, stacked, _rows(ids, S), _rows(types, S), None, None, ids.shape[-1])


def embed_packed(config: EncoderConfig, stacked: Stacked, packed: Packed) -> Tensor:
    """[R, 1, N, H] in fp32, before dropout."""
    return _embedded(config, stacked, *packed)


def _embedded(config: EncoderConfig, stacked: Stacked, *given: Any) -> Tensor:
    names = ["embed_gain", "embed_shift", *(name for name in TABLES if name in stacked.parts)]
    parts = [part for name in names for part in stacked.parts[name]]
    return _Embed.apply(config, stacked.lead[0], *given, *parts)  # pyright: ignore


def encode(
    config: EncoderConfig,
    stacked: Stacked,
    hidden: Tensor,
    mask: Tensor,
    relative: Tensor | None,
    first: bool = False,
) -> Tensor:
    """[R, B, T, H] in fp32, or [R, B, H] of the first; `relative` is [R, heads, T, T]."""
    _, S = stacked.lead
    B, T = hidden.shape[1:3]
    seen = mask.expand(S, B, T).contiguous().view(torch.uint8)
    return _encoded(config, stacked, hidden, Places(B, T, B * T, seen, None), relative, first)


def encode_packed(
    config: EncoderConfig,
    stacked: Stacked,
    hidden: Tensor,
    packed: Packed,
    relative: Tensor | None,
) -> Tensor:
    """The first hidden state of each sequence, [R, B, H] in fp32.

    Args:
        hidden: [R, 1, N, H].
        relative: [R, heads, T, T], T the width that they had.
    """
    places = Places(packed.spans.shape[1], packed.width, hidden.shape[2], None, packed.spans)
    return _encoded(config, stacked, hidden, places, relative, True)


def _encoded(
    config: EncoderConfig,
    stacked: Stacked,
    hidden: Tensor,
    places: Places,
    relative: Tensor | None,
    first: bool,
) -> Tensor:
    parts = [part for name in LAYER for part in stacked.parts[name]]
    if not torch.is_grad_enabled():  # of which a Function's context knows nothing
        hidden, parts = hidden.detach(), [part.detach() for part in parts]
        relative = None if relative is None else relative.detach()
    with torch.autocast("cuda", enabled=False):  # the products below say themselves what they take
        return _Layers.apply(config, stacked, first, hidden, places, relative, *parts)  # pyright: ignore


def _rows(index: Tensor | None, S: int) -> Tensor | None:
    return None if index is None else index.expand(S, *index.shape[1:]).contiguous()


class _Embed(torch.autograd.Function):
    """Ids [S, B, T] to [R, B, T, H]; P parts of gain, shift and each table, [S, ...].

    Or, with `spans`, packed ids [S, 1, N] of sequences that had `width` columns.
    """

    GIVEN = 7  # arguments of forward before the parameters

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        config: EncoderConfig,
        P: int,
        ids: Tensor,
        types: Tensor | None,
        positions: Tensor | None,
        spans: Tensor | None,
        width: int,
        *parts: Tensor,
    ) -> Tensor:
        (S, B, T), H = ids.shape, config.hidden
        gains, shifts, words, places, *kinds = (parts[i : i + P] for i in range(0, len(parts), P))
        z, y = (torch.empty(P * S, B, T, H, device=ids.device) for _ in range(2))
        mean, rstd = (torch.empty(P * S, B * T, device=ids.device) for _ in range(2))
        outs = zip(*(x.chunk(P) for x in (z, y, mean, rstd)), strict=True)
        for p, out in enumerate(outs):
            kernels("embeddings").embed_forward[(S * B * T,)](
                words[p], places[p], kinds[0][p] if kinds else words[p], ids,
                ids if positions is None else positions, ids if types is None else types,
                gains[p], shifts[p], *out, B * T, T, config.vocab, config.positions, config.types,
                config.position_offset, config.eps, config.hidden, wide(H), positions is not None,
                bool(kinds), bool(kinds) and types is not None,
            )  # fmt: skip
        ctx.config, ctx.index = config, (ids, types, spans, width)
        ctx.kept = gains, z, mean, rstd
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        config: EncoderConfig = ctx.config
        ids, types, spans, width = ctx.index
        gains, z, mean, rstd = ctx.kept
        P, (S, B, _), H, N = len(gains), ids.shape, config.hidden, ids[0].numel()
        gain = gains[0] if P == 1 else torch.cat(gains)
        rows, *block, warps = blocks.norm_backward(H)
        dz, partial = torch.empty_like(z), z.new_empty(2, P * S, blocks.count(N, rows), H)
        kernels("kernels").norm_backward[(blocks.count(N, rows), P * S)](
            dy.contiguous(), dy, z, z, gain, gain, mean, rstd, dz, dz, partial, ids, N, S,
            H, 1, H, 0, partial.stride(0), partial.stride(1), H, wide(H), *block,
            0.0, False, False, num_warps=warps,
        )  # fmt: skip
        given = _Embed.GIVEN
        needs = [
            any(ctx.needs_input_grad[given + i : given + i + P]) for i in range(2 * P, 5 * P, P)
        ]
        absent: list[Tensor | None] = [None] * P
        words = places = kinds = absent
        partials = [partial]
        if needs[0]:
            words = _scattered(dz, ids, config.vocab, config.pad).chunk(P)
        if any(needs[1:]):
            place = z.new_empty(P * S, config.positions, H)
            partials.append(z.new_empty(P * S, 2, width, H))
            kernels("embeddings").places_backward[(config.positions, P * S)](
                dz, ids if types is None else types, ids if spans is None else spans, place,
                partials[1], B if spans is None else spans.shape[1], width, N,
                config.positions, S, config.position_offset, H, wide(H), blocks.PLACES[0],
                types is not None, spans is not None,
                num_warps=blocks.more_warps(blocks.PLACES[1], H),
            )  # fmt: skip
            places = place.chunk(P)
        norm, *typed = row_sums(partials, [x.shape[-2] for x in partials])
        if typed:
            kinds = typed[0][:, : config.types].contiguous().chunk(P)
        found = [*norm[0].chunk(P), *norm[1].chunk(P), *words, *places, *kinds]
        return *[None] * given, *found[: len(ctx.needs_input_grad) - given]


def _scattered(dz: Tensor, ids: Tensor, rows: int, skip: int) -> Tensor:
    """Gradient [R, rows, H] of tables whose rows `ids` [S, B, T] got dz [R, B, T, H]."""
    (S, B, T), (R, *_, H) = ids.shape, dz.shape
    if B * T > TOKENS:
        parts = [
            torch.ops.aten.embedding_dense_backward(dz[r], ids[r % S], rows, skip, False)
            for r in range(R)
        ]
        return torch.stack(parts)
    grad = dz.new_zeros(R, rows, H)
    together, columns, warps = blocks.SCATTER
    kernels("embeddings").scatter_rows[(B * T, blocks.count(H, columns), R)](
        dz, ids, grad, B * T, rows, S, skip, H, max(FEWEST, wide(B * T)), together, columns,
        num_warps=warps,
    )  # fmt: skip
    return grad


class _Layers(torch.autograd.Function):
    """All layers of all R models; parameters come as P parts [S, L, ...] of each name in LAYER."""

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        config: EncoderConfig,
        stacked: Stacked,
        first: bool,
        hidden: Tensor,
        places: Places,
        relative: Tensor | None,
        *parts: Tensor,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        run = LayerPass(config, stacked.lead, places, relative, stacked.seeds, parts, first, keep)
        hidden = hidden.contiguous()
        h, h16 = run.begin(hidden)
        saved = []
        for layer in range(config.layers):
            h, h16, values = run.forward(layer, h, h16)
            if keep:
                saved.append(values)
        if keep:
            ctx.run, ctx.saved, ctx.shape = run, saved, hidden.shape
        return h if first else h.view(hidden.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        run: LayerPass = ctx.run
        dh, dh16 = dy.contiguous().view(run.R, -1, run.H), None
        run.prepare()
        for layer in reversed(range(run.config.layers)):
            dh, dh16 = run.backward(layer, dh, dh16, ctx.saved[layer])
        assert dh16 is not None
        if dh.shape == dh16.shape:
            dh = dh + dh16
        else:  # one layer, and its first positions alone
            dh, first = dh16.float(), dh
            dh[:, :: run.T] += first
        drelative = None if run.drelative is None else run.drelative.sum(1)
        ctx.saved = None
        return None, None, None, dh.view(ctx.shape), None, drelative, *run.gradients()
