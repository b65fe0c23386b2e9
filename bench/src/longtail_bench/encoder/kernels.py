"""The Triton kernels of `fused.py`: what happens between the matrix products of a layer.

Rows are the N tokens of each of R models, `[R, N, H]`, N = B * T unless they are packed; a program
never mixes models. Sums over rows (gradients of gains, shifts and biases) are written as one
partial sum a program and added up by the caller, so the result does not depend on the order in
which programs finish. Products take bf16 operands and add in fp32; everything else is fp32.
"""

# pyright: reportPossiblyUnboundVariable=false
import triton
import triton.language as tl


@triton.jit
def kept(seeds, s, salt, where, DROP: tl.constexpr):
    """0 or 1 / (1 - DROP) at each place; the same for all policies of a seed, and in backward."""
    key = tl.load(seeds + s) * 1024 + salt
    return tl.where(tl.rand(key, where) < DROP, 0.0, 1.0 / (1.0 - DROP))


@triton.jit(do_not_specialize=["salt"])
def norm_forward(
    x, a, bias, gain, shift, y, y16, mean, rstd, seeds, N, S, x_row, stride, salt, eps,
    H: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """y = norm(x + dropout(a + bias)): the end of both halves of a layer.

    Rows of x are x_row numbers apart: H, or more where only some of its rows are wanted.
    """
    r = tl.program_id(1)
    start = tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    n = start + row
    h = tl.arange(0, WIDE)[None, :]
    own = r * stride + h
    inside = (n < N) & (h < H)
    first = (r * N + start).to(tl.int64) * H  # one large number; within the block small ones do
    x += (r * N + start).to(tl.int64) * x_row
    a, y, y16 = a + first, y + first, y16 + first
    at = row * H + h
    branch = tl.load(a + at, inside, 0.0).to(tl.float32) + tl.load(bias + own, h < H, 0.0)
    if DROP > 0:
        branch *= kept(seeds, r % S, salt, ((r % S) * N + n) * H + h, DROP)
    z = tl.where(inside, tl.load(x + row * x_row + h, inside, 0.0) + branch, 0.0)
    center = tl.sum(z, 1, keep_dims=True) / H
    z = tl.where(h < H, z - center, 0.0)
    scale = tl.rsqrt(tl.sum(z * z, 1, keep_dims=True) / H + eps)
    out = z * scale * tl.load(gain + own, h < H, 0.0) + tl.load(shift + own, h < H, 0.0)
    tl.store(y + at, out, inside)
    tl.store(y16 + at, out.to(y16.dtype.element_ty), inside)
    tl.store(mean + r * N + n, center, n < N)
    tl.store(rstd + r * N + n, scale, n < N)


@triton.jit(do_not_specialize=["salt"])
def norm_backward(
    dy, dy16, x, a, bias, gain, mean, rstd, dz, dz16, partial, seeds, N, S,
    x_row, every, stride, salt, kind_stride, model_stride,
    H: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr,
    DROP: tl.constexpr, BRANCH: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """Gradient of `norm_forward`: dz for x, dz16 for a, and partial sums for gain, shift and bias.

    What arrives is dy, plus dy16 if TWO; dy has one row for `every` of the others, the first of
    them. Without a BRANCH, z is x alone. A program does STEPS blocks one after the other and keeps
    the sums over rows where they are, in registers.
    """
    block, r = tl.program_id(0), tl.program_id(1)
    h = tl.arange(0, WIDE)[None, :]
    own = r * stride + h
    start = block * (ROWS * STEPS)
    first = (r * N + start).to(tl.int64) * H
    dy16, a, x = dy16 + first, a + first, x + (r * N + start).to(tl.int64) * x_row
    dz, dz16 = dz + first, dz16 + first
    weight = tl.load(gain + own, h < H, 0.0)
    dgain = tl.zeros([ROWS, WIDE], tl.float32)
    dshift = tl.zeros([ROWS, WIDE], tl.float32)
    dbias = tl.zeros([ROWS, WIDE], tl.float32)
    for step in tl.static_range(STEPS):
        row = step * ROWS + tl.arange(0, ROWS)[:, None]
        n = start + row
        inside = (n < N) & (h < H)
        at = row * H + h
        z = tl.load(x + row * x_row + h, inside, 0.0)
        if BRANCH:
            branch = tl.load(a + at, inside, 0.0).to(tl.float32) + tl.load(bias + own, h < H, 0.0)
            if DROP > 0:
                keep = kept(seeds, r % S, salt, ((r % S) * N + n) * H + h, DROP)
                branch *= keep
            z += branch
        one = r * N + n
        scale = tl.load(rstd + one, n < N, 0.0)
        unit = tl.where(inside, (z - tl.load(mean + one, n < N, 0.0)) * scale, 0.0)
        there = inside & (one // every * every == one)
        d = tl.load(dy + (one // every).to(tl.int64) * H + h, there, 0.0)
        if TWO:
            d += tl.load(dy16 + at, inside, 0.0).to(tl.float32)
        g = d * weight
        along = tl.sum(g * unit, 1, keep_dims=True) / H
        g = tl.where(inside, scale * (g - tl.sum(g, 1, keep_dims=True) / H - unit * along), 0.0)
        tl.store(dz + at, g, inside)
        dgain += d * unit
        dshift += d
        if BRANCH:
            if DROP > 0:
                g *= keep
            tl.store(dz16 + at, g.to(dz16.dtype.element_ty), inside)
            dbias += g
    into = partial + r.to(tl.int64) * model_stride + block * H + h
    tl.store(into, tl.sum(dgain, 0, keep_dims=True), h < H)
    tl.store(into + kind_stride, tl.sum(dshift, 0, keep_dims=True), h < H)
    if BRANCH:
        tl.store(into + 2 * kind_stride, tl.sum(dbias, 0, keep_dims=True), h < H)


@triton.jit
def _normal(v):
    """Φ(v) and φ(v) to 3e-7: Abramowitz and Stegun 7.1.26, which shares φ's exponential.

    `erf` alone would take longer than the rest of a kernel.
    """
    density = tl.exp(-0.5 * v * v)
    t = 1.0 / (1.0 + 0.2316418883 * tl.abs(v))
    tail = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)
    tail = density * t * (0.127414796 + t * (-0.142248368 + t * tail))
    return tl.where(v > 0, 1.0 - tail, tail), density * 0.3989422804


@triton.jit
def gelu_forward(
    u, bias, out, N, WIDTH, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """out = gelu(u + bias) = v Φ(v), not its approximation by tanh."""
    r, start = tl.program_id(2), tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (start + row < N) & (c < WIDTH)
    first = (r * N + start).to(tl.int64) * WIDTH
    u, out = u + first, out + first
    at = row * WIDTH + c
    v = tl.load(u + at, inside, 0.0).to(tl.float32)
    v += tl.load(bias + r * stride + c, c < WIDTH, 0.0)
    below, _ = _normal(v)
    tl.store(out + at, (v * below).to(out.dtype.element_ty), inside)


@triton.jit
def gelu_backward(
    dy, u, bias, du, partial, N, WIDTH, stride, model_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """du = dy (Φ(v) + v φ(v)), and its partial sums over rows for the bias."""
    block, r = tl.program_id(0), tl.program_id(2)
    row = tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (block * ROWS + row < N) & (c < WIDTH)
    first = (r * N + block * ROWS).to(tl.int64) * WIDTH
    at = row * WIDTH + c
    v = tl.load(u + first + at, inside, 0.0).to(tl.float32)
    v += tl.load(bias + r * stride + c, c < WIDTH, 0.0)
    below, density = _normal(v)
    d = tl.load(dy + first + at, inside, 0.0).to(tl.float32) * (below + v * density)
    tl.store(du + first + at, d.to(du.dtype.element_ty), inside)
    into = partial + r.to(tl.int64) * model_stride + block * WIDTH + c
    tl.store(into, tl.sum(d, 0, keep_dims=True), c < WIDTH)


@triton.jit
def _sum_rows(
    partial, out, rows, last, width, program, L, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """out[i] = Σ partial[i, :rows] at a block of columns, or Σ partial[i, :last] in layer L - 1."""
    across = tl.cdiv(width, COLUMNS)
    i = program // across
    c = program % across * COLUMNS + tl.arange(0, COLUMNS)
    stop = tl.where(i % L == L - 1, last, rows)
    partial += i.to(tl.int64) * rows * width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, stop, ROWS):
        n = start + tl.arange(0, ROWS)
        inside = (n < stop)[:, None] & (c < width)[None, :]
        total += tl.load(partial + n[:, None] * width + c[None, :], inside, 0.0)
    tl.store(out + i * width + c, tl.sum(total, 0), c < width)


@triton.jit
def sum_rows(
    a, a_out, a_rows, a_last, a_width, a_start,
    b, b_out, b_rows, b_last, b_width, b_start,
    c, c_out, c_rows, c_last, c_width, c_start,
    L, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums over the rows of three [..., L, rows, width]; programs from `start` on do each."""
    program = tl.program_id(0)
    if program < b_start:
        _sum_rows(a, a_out, a_rows, a_last, a_width, program - a_start, L, ROWS, COLUMNS)
    elif program < c_start:
        _sum_rows(b, b_out, b_rows, b_last, b_width, program - b_start, L, ROWS, COLUMNS)
    else:
        _sum_rows(c, c_out, c_rows, c_last, c_width, program - c_start, L, ROWS, COLUMNS)
