"""The Triton kernels of `fused.py` for attention: no [T, T] matrix ever reaches memory.

A program has a block of queries (in backward, of queries or of keys) of one head of one sequence
and goes over all blocks of the other side, up to the sequence's last real token; outputs after it
are 0. Of the T tokens of a sequence the first Q ask: all, or one where only [CLS] is wanted. See
`kernels.py` for rows, models and sums.

Sequences lie in the N rows of a model in one of two ways. Each has T rows, of which `mask` tells
the real ones; or, PACKED, each follows the one before it, and `spans` [S, B, 2] tells its first row
and how many it has, all of them real and at most T.
"""

import triton
import triton.language as tl

from longtail_bench.encoder.kernels import kept


@triton.jit
def _heads(qkv, qkv_bias, t, T, part, HEADS: tl.constexpr, D: tl.constexpr):
    """Queries (part 0), keys (1) or values (2) of a head at the tokens t, [len(t), D] in fp32."""
    column = part * HEADS * D + tl.arange(0, D)
    at = t[:, None] * (3 * HEADS * D) + column[None, :]
    value = tl.load(qkv + at, (t < T)[:, None], 0.0).to(tl.float32)
    return value + tl.load(qkv_bias + column)[None, :]


@triton.jit
def _kept_pairs(seeds, s, b, B, salt, head, t, u, HEADS: tl.constexpr, DROP: tl.constexpr):
    """Dropout of attention from t to u; t and u broadcast against each other."""
    return kept(seeds, s, salt, (((s * B + b) * HEADS + head) * 512 + t) * 512 + u, DROP)


@triton.jit
def _real_tokens(mask, T, LONG: tl.constexpr):
    """How many tokens there are up to the last real one."""
    t = tl.arange(0, LONG)
    return tl.max(tl.where(tl.load(mask + t, t < T, 0) != 0, t + 1, 0), 0)


@triton.jit
def _sequence(mask, spans, r, s, b, B, T, N, LONG: tl.constexpr, PACKED: tl.constexpr):
    """A sequence's first row, how many rows it has, and how many of them up to the last real."""
    if PACKED:
        span = spans + (s * B + b) * 2
        row = r.to(tl.int64) * N + tl.load(span)
        rows = tl.load(span + 1)
        real = rows
    else:
        row = (r * B + b).to(tl.int64) * T
        rows = T
        real = _real_tokens(mask, T, LONG)
    return row, rows, real


@triton.jit
def _answers(row, r, b, B, Q, PACKED: tl.constexpr):
    """The first row of a sequence's outputs: its own, or one a sequence where only one asks."""
    if PACKED:
        return tl.where(Q == 1, (r * B + b).to(tl.int64), row)
    else:
        return (r * B + b).to(tl.int64) * Q


@triton.jit
def _seen(mask, u, rows, PACKED: tl.constexpr):
    """Which of the tokens u are real."""
    if PACKED:
        return u < rows
    else:
        return tl.load(mask + u, u < rows, 0) != 0


@triton.jit(do_not_specialize=["salt"])
def attention_forward(
    qkv, qkv_bias, mask, spans, relative, out, lse, seeds, S, B, T, N, Q, stride, salt, factor,
    HEADS: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
    OTHER: tl.constexpr, RELATIVE: tl.constexpr, DROP: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """softmax(q k' / √d + relative) v for a block of queries of one head of one sequence.

    Keys come in blocks too; what was summed is scaled down when a larger score appears. lse
    [R, B, heads, Q] is the logarithm of each softmax's sum, for the way back.
    """
    r, b, head = tl.program_id(0) // B, tl.program_id(0) % B, tl.program_id(1)
    s = r % S
    mask += (s * B + b) * T
    row, rows, real = _sequence(mask, spans, r, s, b, B, T, N, LONG, PACKED)
    qkv, qkv_bias = qkv + 3 * row * (HEADS * D) + head * D, qkv_bias + r * stride + head * D
    relative += (r * HEADS + head).to(tl.int64) * T * T
    t = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    half: tl.constexpr = qkv.dtype.element_ty
    q = (_heads(qkv, qkv_bias, t, rows, 0, HEADS, D) * factor).to(half)
    top = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    mixed = tl.zeros([BLOCK, D], tl.float32)
    stop = tl.where(tl.program_id(2) * BLOCK < real, real, 0)
    for start in range(0, stop, OTHER):
        u = start + tl.arange(0, OTHER)
        k = _heads(qkv, qkv_bias, u, rows, 1, HEADS, D).to(half)
        score = tl.dot(q, tl.trans(k))
        if RELATIVE:
            both = (t < T)[:, None] & (u < T)[None, :]
            score += tl.load(relative + t[:, None] * T + u[None, :], both, 0.0)
        seen = _seen(mask, u, rows, PACKED)[None, :]
        higher = tl.maximum(top, tl.max(tl.where(seen, score, -1e30), 1))
        weight = tl.where(seen, tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        top = higher
        if DROP > 0:
            weight *= _kept_pairs(seeds, s, b, B, salt, head, t[:, None], u[None, :], HEADS, DROP)
        v = _heads(qkv, qkv_bias, u, rows, 2, HEADS, D).to(half)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(half), v)
    total = tl.maximum(total, 1e-30)
    tl.store(lse + ((r * B + b) * HEADS + head) * Q + t, top + tl.log(total), t < Q)
    at = t[:, None] * (HEADS * D) + tl.arange(0, D)[None, :]
    out += _answers(row, r, b, B, Q, PACKED) * (HEADS * D) + head * D
    tl.store(out + at, (mixed / total[:, None]).to(half), (t < tl.minimum(rows, Q))[:, None])


@triton.jit
def _queries_backward(
    dout, out, lse, qkv, qkv_bias, mask, relative, dqkv, partial, drelative, seeds,
    s, b, head, t, stop, B, T, rows, asked, salt, factor,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, OTHER: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """ds = p (do v' - Σ do out),  dq = ds k / √d  for the queries t."""
    d = tl.arange(0, D)[None, :]
    half: tl.constexpr = qkv.dtype.element_ty
    q = (_heads(qkv, qkv_bias, t, rows, 0, HEADS, D) * factor).to(half)
    at = t[:, None] * (HEADS * D) + d
    do = tl.load(dout + at, (t < asked)[:, None], 0.0)
    mixed = tl.load(out + at, (t < asked)[:, None], 0.0).to(tl.float32)
    along = tl.sum(do.to(tl.float32) * mixed, 1)[:, None]
    top = tl.load(lse + t, t < asked, 0.0)[:, None]
    dq = tl.zeros([BLOCK, D], tl.float32)
    for start in range(0, stop, OTHER):
        u = start + tl.arange(0, OTHER)
        both = (t < asked)[:, None] & (u < rows)[None, :]
        k = _heads(qkv, qkv_bias, u, rows, 1, HEADS, D).to(half)
        score = tl.dot(q, tl.trans(k))
        if RELATIVE:
            score += tl.load(relative + t[:, None] * T + u[None, :], both, 0.0)
        seen = both & _seen(mask, u, rows, PACKED)[None, :]
        p = tl.where(seen, tl.exp(score - top), 0.0)
        dp = tl.dot(do, tl.trans(_heads(qkv, qkv_bias, u, rows, 2, HEADS, D).to(half)))
        if DROP > 0:
            dp *= _kept_pairs(seeds, s, b, B, salt, head, t[:, None], u[None, :], HEADS, DROP)
        ds = p * (dp - along)
        if RELATIVE:
            pairs = drelative + t[:, None] * T + u[None, :]
            tl.store(pairs, tl.load(pairs, both, 0.0) + ds, both)
        dq += tl.dot(ds.to(half), k)
    dq *= factor
    tl.store(dqkv + t[:, None] * (3 * HEADS * D) + d, dq.to(half), (t < rows)[:, None])
    tl.store(partial + tl.arange(0, D), tl.sum(dq, 0))


@triton.jit
def _keys_backward(
    dout, out, lse, qkv, qkv_bias, mask, relative, dqkv, partial, seeds,
    s, b, head, t, stop, B, T, rows, asked, salt, factor,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, OTHER: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dk = ds' q / √d,  dv = p' do  for the keys t; everything is transposed."""
    d = tl.arange(0, D)[None, :]
    half: tl.constexpr = qkv.dtype.element_ty
    k = _heads(qkv, qkv_bias, t, rows, 1, HEADS, D).to(half)
    v = _heads(qkv, qkv_bias, t, rows, 2, HEADS, D).to(half)
    seen = _seen(mask, t, rows, PACKED)[:, None]
    dk = tl.zeros([BLOCK, D], tl.float32)
    dv = tl.zeros([BLOCK, D], tl.float32)
    for start in range(0, stop, OTHER):
        u = start + tl.arange(0, OTHER)
        both = seen & (u < asked)[None, :]
        q = (_heads(qkv, qkv_bias, u, rows, 0, HEADS, D) * factor).to(half)
        score = tl.dot(k, tl.trans(q))
        if RELATIVE:
            score += tl.load(relative + u[None, :] * T + t[:, None], both, 0.0)
        p = tl.where(both, tl.exp(score - tl.load(lse + u, u < asked, 0.0)[None, :]), 0.0)
        at = u[:, None] * (HEADS * D) + d
        do = tl.load(dout + at, (u < asked)[:, None], 0.0)
        dp = tl.dot(v, tl.trans(do))
        used = p
        if DROP > 0:
            keep = _kept_pairs(seeds, s, b, B, salt, head, u[None, :], t[:, None], HEADS, DROP)
            used = p * keep
            dp *= keep
        mixed = tl.load(out + at, (u < asked)[:, None], 0.0).to(tl.float32)
        ds = p * (dp - tl.sum(do.to(tl.float32) * mixed, 1)[None, :])
        dv += tl.dot(used.to(half), do)
        dk += tl.dot(ds.to(half), q)
    into = dqkv + t[:, None] * (3 * HEADS * D) + d
    tl.store(into + HEADS * D, dk.to(half), (t < rows)[:, None])
    tl.store(into + 2 * HEADS * D, dv.to(half), (t < rows)[:, None])
    sums = partial + tl.arange(0, D)
    tl.store(sums + HEADS * D, tl.sum(dk, 0))
    tl.store(sums + 2 * HEADS * D, tl.sum(dv, 0))


@triton.jit(do_not_specialize=["salt"])
def attention_backward(
    dout, out, lse, qkv, qkv_bias, mask, spans, relative, dqkv, partial, drelative, seeds,
    S, B, T, N, Q, stride, salt, factor, model_stride,
    HEADS: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
    OTHER: tl.constexpr, RELATIVE: tl.constexpr, DROP: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Gradient of `attention_forward`: half of the programs have a block of queries, half of keys.

    p = exp(s - lse) is computed again. The gradient of the relative bias is added to what the
    layers above left in `drelative` [R, B, heads, T, T].
    """
    r, b, head = tl.program_id(0) // B, tl.program_id(0) % B, tl.program_id(1)
    blocks = tl.num_programs(2) // 2
    block = tl.program_id(2) % blocks
    s = r % S
    mask += (s * B + b) * T
    row, rows, real = _sequence(mask, spans, r, s, b, B, T, N, LONG, PACKED)
    first, query = row * (HEADS * D), _answers(row, r, b, B, Q, PACKED) * (HEADS * D)
    dout, out = dout + query + head * D, out + query + head * D
    qkv, dqkv = qkv + 3 * first + head * D, dqkv + 3 * first + head * D
    qkv_bias += r * stride + head * D
    lse += ((r * B + b) * HEADS + head) * Q
    relative += (r * HEADS + head).to(tl.int64) * T * T
    drelative += ((r * B + b) * HEADS + head).to(tl.int64) * T * T
    partial += r.to(tl.int64) * model_stride + (b * blocks + block) * (3 * HEADS * D) + head * D
    t = block * BLOCK + tl.arange(0, BLOCK)
    asked = tl.minimum(real, Q)  # after them come queries that forward may have left out
    if tl.program_id(2) < blocks:
        stop = tl.where(block * BLOCK < asked, real, 0)
        _queries_backward(
            dout, out, lse, qkv, qkv_bias, mask, relative, dqkv, partial, drelative, seeds,
            s, b, head, t, stop, B, T, rows, asked, salt, factor,
            HEADS, D, BLOCK, OTHER, RELATIVE, DROP, PACKED,
        )  # fmt: skip
    else:
        stop = tl.where(block * BLOCK < real, asked, 0)
        _keys_backward(
            dout, out, lse, qkv, qkv_bias, mask, relative, dqkv, partial, seeds,
            s, b, head, t, stop, B, T, rows, asked, salt, factor,
            HEADS, D, BLOCK, OTHER, RELATIVE, DROP, PACKED,
        )  # fmt: skip
