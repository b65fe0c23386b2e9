"""The Triton kernels of `fused.py` for the embeddings and their gradients."""

import triton
import triton.language as tl


@triton.jit
def embed_forward(
    word, position, kind, ids, positions, types, gain, shift, z, y, mean, rstd,
    N, T, V, M, K, first, eps,
    H: tl.constexpr, WIDE: tl.constexpr, POSITIONS: tl.constexpr, TYPES: tl.constexpr,
    TYPED: tl.constexpr,
):  # fmt: skip
    """z = word + position + type of one token, y = norm(z)."""
    row = tl.program_id(0)
    s, h = (row // N).to(tl.int64), tl.arange(0, WIDE)
    inside = h < H
    value = tl.load(word + (s * V + tl.load(ids + row)) * H + h, inside, 0.0)
    place = first + row % T
    if POSITIONS:
        place = tl.load(positions + row)
    value += tl.load(position + (s * M + place) * H + h, inside, 0.0)
    if TYPES:
        one = s * K
        if TYPED:
            one += tl.load(types + row)
        value += tl.load(kind + one * H + h, inside, 0.0)
    tl.store(z + row.to(tl.int64) * H + h, value, inside)
    center = tl.sum(value, 0) / H
    value = tl.where(inside, value - center, 0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
    own = s * H + h
    out = value * scale * tl.load(gain + own, inside, 0.0) + tl.load(shift + own, inside, 0.0)
    tl.store(y + row.to(tl.int64) * H + h, out, inside)
    tl.store(mean + row, center)
    tl.store(rstd + row, scale)


@triton.jit
def scatter_rows(
    dz, ids, grad, N, V, S, skip,
    H: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """grad[id] = Σ dz of the tokens that are `id`, by the program of the first of them.

    All models r in one launch; model r reads the tokens of replica r % S. The others have nothing
    to do, nor has `skip`, padding. The first one goes over all tokens up to the last of its kind,
    ROWS at once, and loads its own: no atomics, hence the same bits in every run, and a word that
    comes often takes no longer than one that comes twice.
    """
    n, r = tl.program_id(0), tl.program_id(2).to(tl.int64)
    h = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ids += r % S * N
    dz += r * N * H
    mine = tl.load(ids + n)
    if mine != skip:
        j = tl.arange(0, LONG)
        same = tl.load(ids + j, j < N, skip) == mine
        if tl.min(tl.where(same, j, N), 0) == n:
            total = tl.zeros([ROWS, COLUMNS], tl.float32)
            for start in range(n, tl.max(tl.where(same, j, 0), 0) + 1, ROWS):
                k = start + tl.arange(0, ROWS)
                own = tl.load(ids + k, k < N, skip) == mine
                inside = own[:, None] & (h < H)[None, :]
                total += tl.load(dz + k[:, None] * H + h[None, :], inside, 0.0)
            tl.store(grad + (r * V + mine) * H + h, tl.sum(total, 0), h < H)


@triton.jit
def pack(
    ids, types, lengths, packed_ids, packed_types, positions, spans, B, T, N, pad, first,
    MANY: tl.constexpr, BLOCK: tl.constexpr, TYPED: tl.constexpr,
):  # fmt: skip
    """Tokens of B sequences, of T columns each, end to end in N rows, and where each one lies.

    Rows that are left are padding, in no sequence. Tokens beyond the last row are left out: nobody
    may write there.
    """
    s, n = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, MANY)
    length = tl.load(lengths + s * B + k, k < B, 0).to(tl.int32)
    end = tl.minimum(tl.cumsum(length, 0), N)
    begin = tl.minimum(tl.cumsum(length, 0) - length, N)
    before = (end[None, :] <= n[:, None]) & (k < B)[None, :]
    b = tl.sum(before.to(tl.int32), 1)
    t = n - tl.max(tl.where(before, end[None, :], 0), 1)
    real, at = (b < B) & (n < N), (s * B + b) * T + t
    tl.store(packed_ids + s * N + n, tl.load(ids + at, real, pad), n < N)
    tl.store(positions + s * N + n, first + tl.where(real, t, 0), n < N)
    if TYPED:
        tl.store(packed_types + s * N + n, tl.load(types + at, real, 0), n < N)
    if tl.program_id(0) == 0:
        span = spans + (s * B + k) * 2
        tl.store(span, begin, k < B)
        tl.store(span + 1, end - begin, k < B)


@triton.jit
def places_backward(
    dz, types, spans, position, partial, B, T, N, M, S, first,
    H: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TYPED: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Gradient of one row of the position table, and of type 1 (with TYPED) and of all at it."""
    row, r = tl.program_id(0), tl.program_id(1).to(tl.int64)
    h = tl.arange(0, WIDE)[None, :]
    t = row - first
    total = tl.zeros([ROWS, WIDE], tl.float32)
    second = tl.zeros([ROWS, WIDE], tl.float32)
    if (t >= 0) & (t < T):
        for start in range(0, B, ROWS):
            b = start + tl.arange(0, ROWS)[:, None]
            there, at = b < B, b * T + t
            if PACKED:
                span = spans + (r % S * B + b) * 2
                there &= t < tl.load(span + 1, b < B, 0)
                at = tl.load(span, b < B, 0) + t
            value = tl.load(dz + (r * N + at) * H + h, there & (h < H), 0.0)
            total += value
            if TYPED:
                kind = tl.load(types + r % S * N + at, there, 0)
                second += tl.where(kind == 1, value, 0.0)
    every, ones = tl.sum(total, 0, keep_dims=True), tl.sum(second, 0, keep_dims=True)
    if (t >= 0) & (t < T):
        tl.store(partial + (r * 2 * T + t) * H + h, every - ones, h < H)
        tl.store(partial + ((r * 2 + 1) * T + t) * H + h, ones, h < H)
    tl.store(position + (r * M + row) * H + h, every, h < H)
