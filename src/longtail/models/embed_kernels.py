"""The Triton kernels of `encoder_fused` for the embeddings and their gradients."""

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
    dz, ids, grad, N, V, skip, H: tl.constexpr, WIDE: tl.constexpr, MANY: tl.constexpr
):  # fmt: skip
    """grad[id] = Σ dz of the tokens that are `id`, by the program of the first of them, in order.

    No atomics: the sum is the same in every run. Rows of `skip`, padding, get no gradient.
    """
    n, s = tl.program_id(0), tl.program_id(1)
    mine = tl.load(ids + s * N + n)
    if mine != skip:
        at = tl.arange(0, MANY)
        same = (tl.load(ids + s * N + at, at < N, -1) == mine) & (at < N)
        if tl.min(tl.where(same, at, MANY), 0) == n:
            h = tl.arange(0, WIDE)
            total = tl.zeros([WIDE], tl.float32)
            j = n
            for _ in range(tl.sum(same.to(tl.int32), 0)):
                total += tl.load(dz + (s * N + j).to(tl.int64) * H + h, h < H, 0.0)
                j = tl.min(tl.where(same & (at > j), at, MANY), 0)
            tl.store(grad + (s.to(tl.int64) * V + mine) * H + h, total, h < H)


@triton.jit
def places_backward(
    dz, types, position, partial, B, T, M, first,
    H: tl.constexpr, WIDE: tl.constexpr, TYPED: tl.constexpr,
):  # fmt: skip
    """Gradient of one row of the position table, and of type 1 (with TYPED) and of all at it."""
    row, s = tl.program_id(0), tl.program_id(1)
    h = tl.arange(0, WIDE)
    inside = h < H
    t = row - first
    total = tl.zeros([WIDE], tl.float32)
    second = tl.zeros([WIDE], tl.float32)
    if (t >= 0) & (t < T):
        for b in range(B):
            token = (s * B + b) * T + t
            value = tl.load(dz + token.to(tl.int64) * H + h, inside, 0.0)
            total += value
            if TYPED:
                second += tl.where(tl.load(types + token) == 1, value, 0.0)
        tl.store(partial + ((s * T + t) * 2) * H + h, total - second, inside)
        tl.store(partial + ((s * T + t) * 2 + 1) * H + h, second, inside)
    tl.store(position + (s * M + row).to(tl.int64) * H + h, total, inside)
