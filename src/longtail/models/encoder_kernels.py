"""The Triton kernels of `encoder_fused`: what happens between the matrix products of a layer.

Rows are the N = B * T tokens of each of R models, `[R, N, H]`; a program never mixes models. Sums
over rows (gradients of gains, shifts and biases) are written as one partial sum a program and added
up by the caller, so the result does not depend on the order in which programs finish. Products take
bf16 operands and add in fp32; everything else is fp32.
"""

# pyright: reportPossiblyUnboundVariable=false
import triton
import triton.language as tl


@triton.jit
def kept(seeds, s, salt, where, DROP: tl.constexpr):
    """0 or 1 / (1 - DROP) at each place; the same for all policies of a seed, and in backward."""
    key = tl.load(seeds + s) * 1024 + salt
    return tl.where(tl.rand(key, where) < DROP, 0.0, 1.0 / (1.0 - DROP))


@triton.jit
def norm_forward(
    x, a, bias, gain, shift, y, y16, mean, rstd, seeds, N, S, stride, salt, eps,
    H: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """y = norm(x + dropout(a + bias)): the end of both halves of a layer."""
    r = tl.program_id(1)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    h = tl.arange(0, WIDE)[None, :]
    own = r * stride + h
    inside = (n < N) & (h < H)
    at = (r * N + n).to(tl.int64) * H + h
    branch = tl.load(a + at, inside, 0.0).to(tl.float32) + tl.load(bias + own, h < H, 0.0)
    if DROP > 0:
        branch *= kept(seeds, r % S, salt, ((r % S) * N + n) * H + h, DROP)
    z = tl.where(inside, tl.load(x + at, inside, 0.0) + branch, 0.0)
    center = tl.sum(z, 1, keep_dims=True) / H
    z = tl.where(h < H, z - center, 0.0)
    scale = tl.rsqrt(tl.sum(z * z, 1, keep_dims=True) / H + eps)
    out = z * scale * tl.load(gain + own, h < H, 0.0) + tl.load(shift + own, h < H, 0.0)
    tl.store(y + at, out, inside)
    tl.store(y16 + at, out.to(y16.dtype.element_ty), inside)
    tl.store(mean + r * N + n, center, n < N)
    tl.store(rstd + r * N + n, scale, n < N)


@triton.jit
def norm_backward(
    dy, dy16, x, a, bias, gain, mean, rstd, dz, dz16, partial, seeds, N, S, stride, salt,
    kind_stride, model_stride,
    H: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr,
    BRANCH: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Gradient of `norm_forward`: dz for x, dz16 for a, and partial sums for gain, shift and bias.

    What arrives is dy, plus dy16 if TWO; without a BRANCH, z is x alone.
    """
    block, r = tl.program_id(0), tl.program_id(1)
    n = block * ROWS + tl.arange(0, ROWS)[:, None]
    h = tl.arange(0, WIDE)[None, :]
    own = r * stride + h
    inside = (n < N) & (h < H)
    at = (r * N + n).to(tl.int64) * H + h
    z = tl.load(x + at, inside, 0.0)
    if BRANCH:
        branch = tl.load(a + at, inside, 0.0).to(tl.float32) + tl.load(bias + own, h < H, 0.0)
        if DROP > 0:
            keep = kept(seeds, r % S, salt, ((r % S) * N + n) * H + h, DROP)
            branch *= keep
        z += branch
    scale = tl.load(rstd + r * N + n, n < N, 0.0)
    unit = tl.where(inside, (z - tl.load(mean + r * N + n, n < N, 0.0)) * scale, 0.0)
    d = tl.load(dy + at, inside, 0.0)
    if TWO:
        d += tl.load(dy16 + at, inside, 0.0).to(tl.float32)
    g = d * tl.load(gain + own, h < H, 0.0)
    along = tl.sum(g * unit, 1, keep_dims=True) / H
    g = tl.where(inside, scale * (g - tl.sum(g, 1, keep_dims=True) / H - unit * along), 0.0)
    tl.store(dz + at, g, inside)
    columns = tl.arange(0, WIDE)
    into = partial + r.to(tl.int64) * model_stride + block * H + columns
    tl.store(into, tl.sum(d * unit, 0), columns < H)
    tl.store(into + kind_stride, tl.sum(d, 0), columns < H)
    if BRANCH:
        if DROP > 0:
            g *= keep
        tl.store(dz16 + at, g.to(dz16.dtype.element_ty), inside)
        tl.store(into + 2 * kind_stride, tl.sum(g, 0), columns < H)


@triton.jit
def gelu_forward(
    u, bias, out, N, WIDTH, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """out = gelu(u + bias), the exact one: v Φ(v)."""
    r = tl.program_id(2)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (n < N) & (c < WIDTH)
    at = (r * N + n).to(tl.int64) * WIDTH + c
    v = tl.load(u + at, inside, 0.0).to(tl.float32)
    v += tl.load(bias + r * stride + c, c < WIDTH, 0.0)
    v *= 0.5 * (1.0 + tl.erf(v * 0.7071067811865476))
    tl.store(out + at, v.to(out.dtype.element_ty), inside)


@triton.jit
def gelu_backward(
    dy, u, bias, du, partial, N, WIDTH, stride, model_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """du = dy (Φ(v) + v φ(v)), and its partial sums over rows for the bias."""
    block, r = tl.program_id(0), tl.program_id(2)
    n = block * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    c = columns[None, :]
    inside = (n < N) & (c < WIDTH)
    at = (r * N + n).to(tl.int64) * WIDTH + c
    v = tl.load(u + at, inside, 0.0).to(tl.float32)
    v += tl.load(bias + r * stride + c, c < WIDTH, 0.0)
    below = 0.5 * (1.0 + tl.erf(v * 0.7071067811865476))
    density = tl.exp(-0.5 * v * v) * 0.3989422804014327
    d = tl.load(dy + at, inside, 0.0).to(tl.float32) * (below + v * density)
    tl.store(du + at, d.to(du.dtype.element_ty), inside)
    into = partial + r.to(tl.int64) * model_stride + block * WIDTH + columns
    tl.store(into, tl.sum(d, 0), columns < WIDTH)


@triton.jit
def _attended(
    qkv, qkv_bias, mask, relative, b, head, r, S, B, T, stride, factor,
    HEADS: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr, RELATIVE: tl.constexpr,
):  # fmt: skip
    """q / √d, k and v of one head of one sequence, [LONG, D] in bf16, and softmax, [LONG, LONG]."""
    t = tl.arange(0, LONG)
    d = tl.arange(0, D)
    own = qkv_bias + r * stride + head * D + d
    at = ((r * B + b) * T + t).to(tl.int64)[:, None] * (3 * HEADS * D) + head * D + d[None, :]
    real = (t < T)[:, None]
    q = tl.load(qkv + at, real, 0.0).to(tl.float32) + tl.load(own)[None, :]
    k = tl.load(qkv + at + HEADS * D, real, 0.0).to(tl.float32) + tl.load(own + HEADS * D)[None, :]
    v = tl.load(qkv + at + 2 * HEADS * D, real, 0.0).to(tl.float32)
    v += tl.load(own + 2 * HEADS * D)[None, :]
    half: tl.constexpr = qkv.dtype.element_ty
    q, k, v = (q * factor).to(half), k.to(half), v.to(half)
    seen = (tl.load(mask + ((r % S) * B + b) * T + t, t < T, 0) != 0)[None, :]
    score = tl.dot(q, tl.trans(k))
    if RELATIVE:
        pairs = ((r * HEADS + head) * T + t[:, None]) * T + t[None, :]
        score += tl.load(relative + pairs, real & (t < T)[None, :], 0.0)
    score = tl.where(seen, score, -1e30)
    weight = tl.where(seen, tl.exp(score - tl.max(score, 1)[:, None]), 0.0)
    total = tl.sum(weight, 1)[:, None]
    return q, k, v, weight / tl.where(total == 0.0, 1.0, total)


@triton.jit
def attention_forward(
    qkv, qkv_bias, mask, relative, out, seeds, S, B, T, stride, salt, factor,
    HEADS: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """softmax(q k' / √d + relative) v for one head of one sequence, which fits into one program."""
    r, b, head = tl.program_id(0) // B, tl.program_id(0) % B, tl.program_id(1)
    _, _, v, weight = _attended(
        qkv, qkv_bias, mask, relative, b, head, r, S, B, T, stride, factor,
        HEADS, D, LONG, RELATIVE,
    )  # fmt: skip
    t = tl.arange(0, LONG)
    if DROP > 0:
        place = ((((r % S) * B + b) * HEADS + head) * LONG + t[:, None]) * LONG + t[None, :]
        weight *= kept(seeds, r % S, salt, place, DROP)
    mixed = tl.dot(weight.to(v.dtype), v)
    at = ((r * B + b) * T + t).to(tl.int64)[:, None] * (HEADS * D) + head * D
    tl.store(out + at + tl.arange(0, D)[None, :], mixed.to(out.dtype.element_ty), (t < T)[:, None])


@triton.jit
def attention_backward(
    dout, qkv, qkv_bias, mask, relative, dqkv, partial, drelative, seeds,
    S, B, T, stride, salt, factor, model_stride,
    HEADS: tl.constexpr, D: tl.constexpr, LONG: tl.constexpr,
    RELATIVE: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Gradient of `attention_forward`, of which nothing was kept but its inputs.

    dv = p' do,  ds = p (do v' - Σ p do v'),  dq = ds k / √d,  dk = ds' q / √d. The gradient of the
    relative bias is added to what layers above left in `drelative` [R, B, heads, T, T].
    """
    r, b, head = tl.program_id(0) // B, tl.program_id(0) % B, tl.program_id(1)
    q, k, v, p = _attended(
        qkv, qkv_bias, mask, relative, b, head, r, S, B, T, stride, factor,
        HEADS, D, LONG, RELATIVE,
    )  # fmt: skip
    t = tl.arange(0, LONG)
    d = tl.arange(0, D)
    real = (t < T)[:, None]
    row = ((r * B + b) * T + t).to(tl.int64)[:, None]
    do = tl.load(dout + row * (HEADS * D) + head * D + d[None, :], real, 0.0)
    dp = tl.dot(do, tl.trans(v))
    used = p
    if DROP > 0:
        place = ((((r % S) * B + b) * HEADS + head) * LONG + t[:, None]) * LONG + t[None, :]
        keep = kept(seeds, r % S, salt, place, DROP)
        used = p * keep
        dp *= keep
    dv = tl.dot(tl.trans(used.to(do.dtype)), do)
    ds = p * (dp - tl.sum(p * dp, 1)[:, None])
    if RELATIVE:
        pairs = (((r * B + b) * HEADS + head).to(tl.int64) * T + t[:, None]) * T + t[None, :]
        both = real & (t < T)[None, :]
        tl.store(drelative + pairs, tl.load(drelative + pairs, both, 0.0) + ds, both)
    ds16 = ds.to(k.dtype)
    dq = tl.dot(ds16, k) * factor
    dk = tl.dot(tl.trans(ds16), q)
    into = dqkv + row * (3 * HEADS * D) + head * D + d[None, :]
    sums = partial + r.to(tl.int64) * model_stride + b * (3 * HEADS * D) + head * D + d
    tl.store(into, dq.to(do.dtype), real)
    tl.store(into + HEADS * D, dk.to(do.dtype), real)
    tl.store(into + 2 * HEADS * D, dv.to(do.dtype), real)
    tl.store(sums, tl.sum(tl.where(real, dq, 0.0), 0))
    tl.store(sums + HEADS * D, tl.sum(tl.where(real, dk, 0.0), 0))
    tl.store(sums + 2 * HEADS * D, tl.sum(tl.where(real, dv, 0.0), 0))


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
