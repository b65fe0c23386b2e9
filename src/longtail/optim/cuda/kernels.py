"""The Triton kernels of Continual Adam: the step and the boundary of many tensors in one launch.

Program ``i`` takes the chunk ``chunks[i] = (tensor, chunk of that tensor)``; row ``tensor`` of
``table`` holds the addresses of p, m, v, v_c, m_c, t and c, the number of elements, two numbers
that random bits are made of at a boundary, and the number of the parameter's group. With t counted
from one, b(k) = 1 - beta**k and the task-wise average switched on for both moments, an element's
step is::

    m = beta1 m + (1 - beta1) g
    v = beta2 v + (1 - beta2) g^2
    p = p - lr (1 - beta3^t) (t m / b1(t) + c m_c) / (t + c)
            / (sqrt((t v / b2(t) + c v_c) / (t + c)) + eps)

where, with SEEN, elements with v_c = 0 have v / b2(t) under the root, as plain Adam. v_c may be
kept in one byte (V), as the code of its logarithm, which is read by integer arithmetic, as in
`longtail.optim.codes`, and rounded at random at a boundary, by the random bits of
`longtail.optim.past`.

The scalars of one group are arguments. Those of SEVERAL groups are rows of ``settings``, and what
the groups' policies differ in is decided as the kernel runs: a moment without a task-wise average
is one whose past weighs nothing, and nothing of it is read.

The program that finishes a tensor last writes its new t (and c), so the counts need no launch of
their own. Imported only where Triton is: `longtail.optim.cuda.launch` is the way in.
"""

# pyright: reportPossiblyUnboundVariable=false
# ruff: noqa: SIM300
import triton
import triton.language as tl

from longtail.optim.codes import DIGIT_1, DIGIT_2, SHIFT

_ROW = tl.constexpr(11)  # p, m, v, v_c, m_c, t, c, size, key, period, group
_SETTINGS = tl.constexpr(25)  # ten scalars of two numbers each, then the five flags of a group
_ENDS = tl.constexpr(8)  # log2(beta1) and log2(beta2), of two numbers each, then four flags
# The codes of v_c: code + SHIFT = 3 exponent + digit, with the exponent of float32.
_SHIFT = tl.constexpr(SHIFT)
_DIGIT_1 = tl.constexpr(DIGIT_1)
_DIGIT_2 = tl.constexpr(DIGIT_2)


@triton.jit
def wide(high, low, F: tl.constexpr):
    """A Python float arrives as two float32; only float64 needs both."""
    if F == tl.float64:
        return tl.cast(high, F) + tl.cast(low, F)
    else:
        return high


@triton.jit
def one_minus_power(t, log2_beta, log2_beta_low, F: tl.constexpr):
    """1 - beta**t, from log2(beta): rounding 0.999 to float32 moves 1 - 0.999 by 2e-5 of itself."""
    if F == tl.float64:
        return 1.0 - tl.exp2(t.to(F) * wide(log2_beta, log2_beta_low, F))
    else:
        x = t * log2_beta
        y = x * 0.6931471805599453
        # -expm1(y), whose leading digits 1 - exp2(x) would lose
        series = 1.0 + y * (1.0 / 8.0)
        series = 1.0 + y * (1.0 / 7.0) * series
        series = 1.0 + y * (1.0 / 6.0) * series
        series = 1.0 + y * (1.0 / 5.0) * series
        series = 1.0 + y * (1.0 / 4.0) * series
        series = 1.0 + y * (1.0 / 3.0) * series
        series = 1.0 + y * (1.0 / 2.0) * series
        return tl.where(x > -0.5, -y * series, 1.0 - tl.exp2(x))


@triton.jit
def located(address, start, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(dtype))
    if ALIGNED:
        # No more than four elements at once: of 16-bit tensors eight fit, but the state's do not.
        pointer = tl.multiple_of(pointer, min(dtype.primitive_bitwidth // 2, 16))
    return pointer + start


@triton.jit
def present(at, count, VECTOR: tl.constexpr):
    """Which elements are there; written so that the compiler sees that eight at a time are."""
    if VECTOR:
        return at < count // 8 * 8
    else:
        return at < count


@triton.jit
def sqrt(x, F: tl.constexpr):
    if F == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def ratio(x, y, F: tl.constexpr):
    if F == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def value_of(code):
    """The float32 that a code, int32, stands for."""
    place = code + _SHIFT
    exponent = (place * 171) >> 9  # place / 3, for numbers below 512
    digit = place - 3 * exponent
    rest = tl.where(digit == 0, 0, tl.where(digit == 1, _DIGIT_1, _DIGIT_2))
    bits = tl.where(code == 0, 0, (exponent << 23) | rest)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def read_past(x, V: tl.constexpr, F: tl.constexpr):
    """v_c as numbers of the arithmetic."""
    if V == tl.uint8:
        return value_of(x.to(tl.int32)).to(F)
    else:
        return x.to(F)


@triton.jit
def mixed(x):
    """A bijection of uint32 in which every bit depends on every other."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def round_at_random(x, random):
    """Of float32 x one of the two codes next to it, by 32 random bits; its mean is x."""
    bits = x.to(tl.int32, bitcast=True)
    rest = bits & 0x7FFFFF
    exponent = bits & 0x7F800000
    first = rest >= _DIGIT_1
    second = rest >= _DIGIT_2
    lower = tl.where(second, _DIGIT_2, tl.where(first, _DIGIT_1, 0))
    upper = tl.where(second, 8388608, tl.where(first, _DIGIT_2, _DIGIT_1))
    low = (exponent + lower).to(tl.float32, bitcast=True)
    gap = (exponent + upper).to(tl.float32, bitcast=True) - low
    share = (random >> 8).to(tl.int32).to(tl.float32)
    up = share * gap < (x - low) * 16777216.0
    code = (exponent >> 23) * 3 + first.to(tl.int32) + second.to(tl.int32) + up.to(tl.int32)
    code = tl.minimum(tl.maximum(code - _SHIFT, 1), 255)
    return tl.where(bits == 0, 0, code).to(tl.uint8)


@triton.jit
def is_last(arrived, size, CHUNK: tl.constexpr):
    """Whether every other program of the tensor has passed here, and so has read the counts.

    A program comes here after its stores, whose values depend on the counts: its reads are done,
    and nothing else needs an order. So the atomic is relaxed and need not wait for the stores.
    """
    tl.debug_barrier()  # this program's own warps are all here
    last = True
    if size > CHUNK:
        others = tl.cdiv(size, CHUNK) - 1
        last = tl.atomic_add(arrived, 1, sem="relaxed") == others
        if last:
            tl.store(arrived, 0)
    return last


@triton.jit
def _update(
    p_at, g_at, m_at, v_at, vc_at, mc_at, start, left,
    decay, uphill, eps, beta1, rest1, beta2, rest2, grad_scale, step_size, past1, past2, unseen,
    denom_scale,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, V: tl.constexpr, F: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, SEEN: tl.constexpr, DECAY: tl.constexpr,
    MAXIMIZE: tl.constexpr, SEVERAL: tl.constexpr, SCALED: tl.constexpr, VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The ``left`` elements of a chunk from ``start`` on, or a block of them if they are more.

    With VECTOR, in accesses of 16 bytes.
    """
    at = tl.arange(0, BLOCK)
    count = tl.minimum(left, BLOCK).to(tl.int32)
    here = present(at, count, VECTOR)
    ps = located(p_at, start, P, VECTOR) + at
    gs = located(g_at, start, G, VECTOR) + at
    ms = located(m_at, start, S, VECTOR) + at
    vs = located(v_at, start, S, VECTOR) + at
    g = tl.load(gs, mask=here).to(F)
    m = tl.load(ms, mask=here).to(F)
    v = tl.load(vs, mask=here).to(F)
    # A tensor in its first task has no past: the predicate saves reading it.
    if SECOND:
        vc = tl.load(
            located(vc_at, start, V, VECTOR) + at,
            mask=present(at, tl.where(past2 > 0.0, count, 0), VECTOR),
            other=0,
        )
        vc = read_past(vc, V, F)
    if FIRST:
        mc = tl.load(
            located(mc_at, start, S, VECTOR) + at,
            mask=present(at, tl.where(past1 > 0.0, count, 0), VECTOR),
            other=0.0,
        ).to(F)
    p = tl.load(ps, mask=here).to(F)

    if SCALED:
        g = ratio(g, grad_scale, F)
    if MAXIMIZE == 1:
        g = -g
    if MAXIMIZE == 2:
        g = tl.where(uphill, -g, g)
    if DECAY == 1:
        if SEVERAL:  # 0 times a parameter that is infinite is no number
            g = tl.where(decay != 0.0, g + decay * p, g)
        else:
            g += decay * p
    if DECAY == 2:
        p *= decay
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    numerator = m
    if FIRST:
        numerator += past1 * mc
    denominator = v
    if SECOND:
        denominator += past2 * vc
    if SEEN:
        denominator = tl.where(vc == 0.0, v * unseen, denominator)
    p -= step_size * ratio(numerator, sqrt(denominator, F) * denom_scale + eps, F)

    tl.store(ps, p.to(P), mask=here)
    tl.store(ms, m.to(S), mask=here)
    tl.store(vs, v.to(S), mask=here)


@triton.jit
def _walk(
    p_at, g_at, m_at, v_at, vc_at, mc_at, size, chunk, decay, uphill, eps, beta1, rest1, beta2,
    rest2, grad_scale, step_size, past1, past2, unseen, denom_scale,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, V: tl.constexpr, F: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, SEEN: tl.constexpr, DECAY: tl.constexpr,
    MAXIMIZE: tl.constexpr, SEVERAL: tl.constexpr, SCALED: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """All elements of a chunk of a tensor of ``size``."""
    start = chunk.to(tl.int64) * CHUNK
    end = tl.minimum(start + CHUNK, size)
    NARROW: tl.constexpr = BLOCK // 4
    addresses = p_at | g_at | m_at | v_at
    if SECOND:
        addresses = addresses | vc_at
    if FIRST:
        addresses = addresses | mc_at
    # Two loops and not one in a branch inside: that is how the compiler learns of the alignment.
    if (addresses % 16 == 0) & (end % 8 == 0):
        for at in range(start, end, BLOCK):
            _update(
                p_at, g_at, m_at, v_at, vc_at, mc_at, at, end - at, decay, uphill, eps, beta1,
                rest1, beta2, rest2, grad_scale, step_size, past1, past2, unseen, denom_scale, P, G,
                S, V, F, FIRST, SECOND, SEEN, DECAY, MAXIMIZE, SEVERAL, SCALED, True, BLOCK,
            )  # fmt: skip
    else:
        for at in range(start, end, NARROW):
            _update(
                p_at, g_at, m_at, v_at, vc_at, mc_at, at, end - at, decay, uphill, eps, beta1,
                rest1, beta2, rest2, grad_scale, step_size, past1, past2, unseen, denom_scale, P, G,
                S, V, F, FIRST, SECOND, SEEN, DECAY, MAXIMIZE, SEVERAL, SCALED, False, NARROW,
            )  # fmt: skip


@triton.jit
def _scalar(row, i: tl.constexpr, F: tl.constexpr):
    """The ``i``-th scalar of a group."""
    return wide(tl.load(row + 2 * i), tl.load(row + 2 * i + 1), F)


@triton.jit
def _one_minus_power_of(t, row, i: tl.constexpr, F: tl.constexpr):
    return one_minus_power(t, tl.load(row + 2 * i), tl.load(row + 2 * i + 1), F)


@triton.jit
def step_kernel(
    table, chunks, arrived, grads, settings, rates, lr_at, scale_at, found_inf_at,
    lr, lr_low, decay, decay_low, eps, eps_low, beta1, beta1_low, rest1, rest1_low,
    beta2, beta2_low, rest2, rest2_low,
    log2_beta1, log2_beta1_low, log2_beta2, log2_beta2_low, log2_beta3, log2_beta3_low,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, V: tl.constexpr, F: tl.constexpr,
    RATE: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, SEEN: tl.constexpr,
    CARRY: tl.constexpr, DECAY: tl.constexpr, MAXIMIZE: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One step. A gradient's address of 0 leaves its tensor alone, a found_inf all of them.

    FIRST, SECOND: that moment has a task-wise average. SEEN: elements where the second's is zero
    are left out of it. CARRY: the second is kept across tasks. DECAY: 0 none, 1 added to the
    gradient, 2 decoupled. MAXIMIZE: 0 no, 1 yes, 2 some groups. P, G, S, V, F: the dtypes of
    parameter, gradient, state, v_c and arithmetic. Each float comes with what float32 cuts off,
    for `wide`.

    With ``settings`` the floats are not looked at: a row of it has those of a group, and then
    FIRST, SECOND, SEEN, CARRY and MAXIMIZE as numbers; as arguments these then say what any group
    needs. ``rates[group]`` is the address of the learning rate, of type RATE, or 0 where the
    settings have it.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    chunk = tl.load(chunks + 2 * program + 1)
    g_at = tl.load(grads + tensor)
    if g_at == 0:
        return
    if found_inf_at is not None:  # noqa: SIM102, known at compile time
        if tl.load(found_inf_at) != 0.0:
            return
    row = table + tensor.to(tl.int64) * _ROW
    p_at = tl.load(row)
    m_at = tl.load(row + 1)
    v_at = tl.load(row + 2)
    vc_at = tl.load(row + 3)
    mc_at = tl.load(row + 4)
    t_at = tl.load(row + 5).to(tl.pointer_type(tl.float32))
    c_at = tl.load(row + 6).to(tl.pointer_type(tl.float32))
    size = tl.load(row + 7)
    t = tl.load(t_at) + 1.0
    c = tl.load(c_at)
    tw = t.to(F)
    cw = c.to(F)

    SEVERAL: tl.constexpr = settings is not None
    if SEVERAL:
        group = tl.load(row + 10)
        own = settings + group * _SETTINGS
        rate_at = tl.load(rates + group)
        told = tl.load(rate_at.to(tl.pointer_type(RATE)), mask=rate_at != 0, other=0.0)
        rate = tl.where(rate_at != 0, told.to(F), _scalar(own, 0, F))
        weight_decay = _scalar(own, 1, F)
        epsilon = _scalar(own, 2, F)
        b1 = _scalar(own, 3, F)
        r1 = _scalar(own, 4, F)
        b2 = _scalar(own, 5, F)
        r2 = _scalar(own, 6, F)
        first = tl.load(own + 20) != 0.0
        second = tl.load(own + 21) != 0.0
        seen = tl.load(own + 22) != 0.0
        carry = tl.load(own + 23) != 0.0
        uphill = tl.load(own + 24) != 0.0
        corr1 = _one_minus_power_of(t, own, 7, F)
        corr2 = _one_minus_power_of(tl.where(carry, t + c, t), own, 8, F)
        corr3 = _one_minus_power_of(t, own, 9, F)
    else:
        if lr_at is not None:
            rate = tl.load(lr_at).to(F)
        else:
            rate = wide(lr, lr_low, F)
        weight_decay = wide(decay, decay_low, F)
        epsilon = wide(eps, eps_low, F)
        b1 = wide(beta1, beta1_low, F)
        r1 = wide(rest1, rest1_low, F)
        b2 = wide(beta2, beta2_low, F)
        r2 = wide(rest2, rest2_low, F)
        first = FIRST
        second = SECOND
        seen = SEEN
        uphill = MAXIMIZE == 1
        corr1 = one_minus_power(t, log2_beta1, log2_beta1_low, F)
        corr2 = one_minus_power(t + c if CARRY else t, log2_beta2, log2_beta2_low, F)
        corr3 = one_minus_power(t, log2_beta3, log2_beta3_low, F)

    if DECAY == 2:
        weight_decay = 1.0 - rate * weight_decay
    grad_scale = tl.load(scale_at).to(F) if scale_at is not None else 1.0
    step_size = rate * corr3 / corr1
    past1 = tw * 0.0
    past2 = tw * 0.0
    unseen = tw * 0.0 + 1.0
    if FIRST:
        past1 = tl.where(first, cw * corr1 / tw, past1)
        step_size = tl.where(first, step_size * tw / (tw + cw), step_size)
    if SECOND:
        past2 = tl.where(second, cw * corr2 / tw, past2)
        corr2 = tl.where(second, corr2 * (tw + cw) / tw, corr2)
    if SEEN:
        unseen = tl.where(seen, (tw + cw) / tw, unseen)
    denom_scale = 1.0 / tl.sqrt(corr2)

    _walk(
        p_at, g_at, m_at, v_at, vc_at, mc_at, size, chunk, weight_decay, uphill, epsilon, b1, r1,
        b2, r2, grad_scale, step_size, past1, past2, unseen, denom_scale, P, G, S, V, F,
        FIRST, SECOND, SEEN, DECAY, MAXIMIZE, SEVERAL, scale_at is not None, CHUNK, BLOCK,
    )  # fmt: skip
    if is_last(arrived + tensor, size, CHUNK):
        tl.store(t_at, t)


@triton.jit
def weights(t, c, log2_beta, log2_beta_low, F: tl.constexpr):
    """What the past and the present, not yet bias corrected, weigh in the new average."""
    tw = t.to(F)
    cw = c.to(F)
    total = tw + cw
    return cw / total, tw / (total * one_minus_power(t, log2_beta, log2_beta_low, F))


@triton.jit
def _fold(
    now_at, past_at, start, left, averaged, zeroed, now_weight, past_weight, word, period,
    S: tl.constexpr, V: tl.constexpr, F: tl.constexpr, TASK: tl.constexpr, ZERO: tl.constexpr,
    VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """past = past_weight past + now_weight now where ``averaged``; now = 0 where ``zeroed``.

    TASK and ZERO: whether any group asks for that. A past of type V other than S is rounded at
    random, by ``word`` and the element, which is counted anew after each ``period`` of them, if
    that is not 0; weights are then float64.
    """
    at = tl.arange(0, BLOCK)
    count = tl.minimum(left, BLOCK).to(tl.int32)
    now = located(now_at, start, S, VECTOR) + at
    if TASK:
        here = present(at, tl.where(averaged, count, 0), VECTOR)
        past = located(past_at, start, V, VECTOR) + at
        if V == S:
            x = tl.load(now, mask=here).to(F)
            old = tl.load(past, mask=here).to(F)
            new = (now_weight * x + past_weight * old).to(S)
        else:
            x = tl.load(now, mask=here).to(tl.float32).to(tl.float64)
            old = read_past(tl.load(past, mask=here), V, tl.float64)
            value = (past_weight * old + now_weight * x).to(tl.float32)
            place = (tl.where(period > 0, start % tl.maximum(period, 1), start) + at).to(tl.uint32)
            if period > 0:
                place = place % period.to(tl.uint32)
            new = round_at_random(value, mixed(place + word))
        tl.store(past, new, mask=here)
    if ZERO:
        here = present(at, tl.where(zeroed, count, 0), VECTOR)
        tl.store(now, tl.zeros([BLOCK], S), mask=here)


@triton.jit
def end_task_kernel(
    table, chunks, arrived, settings, took,
    log2_beta1, log2_beta1_low, log2_beta2, log2_beta2_low,
    S: tl.constexpr, V: tl.constexpr, F: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    ZERO_FIRST: tl.constexpr, ZERO_SECOND: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v_c = (t v / b2(t) + c v_c) / (t + c), likewise m_c; c = c + t; t = m = v = 0.

    ``took[group]`` becomes 1 if a tensor of the group took a step in the task. With ``settings``,
    a row of it has the floats of a group, and then what becomes of its moments, as numbers.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    chunk = tl.load(chunks + 2 * program + 1)
    row = table + tensor.to(tl.int64) * _ROW
    t_at = tl.load(row + 5).to(tl.pointer_type(tl.float32))
    c_at = tl.load(row + 6).to(tl.pointer_type(tl.float32))
    t = tl.load(t_at)
    if t > 0.0:
        c = tl.load(c_at)
        m_at = tl.load(row + 1)
        v_at = tl.load(row + 2)
        vc_at = tl.load(row + 3)
        mc_at = tl.load(row + 4)
        size = tl.load(row + 7)
        word = mixed(tl.load(row + 8).to(tl.uint32) ^ c.to(tl.int64).to(tl.uint32))
        period = tl.load(row + 9)
        group = tl.load(row + 10)
        # Weights of a past that is rounded at random are the same bits on every device.
        W: tl.constexpr = F if V == S else tl.float64
        if settings is not None:
            own = settings + group * _ENDS
            old1, now1 = weights(t, c, tl.load(own), tl.load(own + 1), F)
            old2, now2 = weights(t, c, tl.load(own + 2), tl.load(own + 3), W)
            first = tl.load(own + 4) != 0.0
            second = tl.load(own + 5) != 0.0
            zero_first = tl.load(own + 6) != 0.0
            zero_second = tl.load(own + 7) != 0.0
        else:
            old1, now1 = weights(t, c, log2_beta1, log2_beta1_low, F)
            old2, now2 = weights(t, c, log2_beta2, log2_beta2_low, W)
            first = FIRST
            second = SECOND
            zero_first = ZERO_FIRST
            zero_second = ZERO_SECOND

        start = chunk.to(tl.int64) * CHUNK
        end = tl.minimum(start + CHUNK, size)
        NARROW: tl.constexpr = BLOCK // 4
        addresses = m_at | v_at
        if SECOND:
            addresses = addresses | vc_at
        if FIRST:
            addresses = addresses | mc_at
        if (addresses % 16 == 0) & (end % 8 == 0):
            for at in range(start, end, BLOCK):
                _fold(
                    m_at, mc_at, at, end - at, first, zero_first, now1, old1, word, period,
                    S, S, F, FIRST, ZERO_FIRST, True, BLOCK,
                )  # fmt: skip
                _fold(
                    v_at, vc_at, at, end - at, second, zero_second, now2, old2, word, period,
                    S, V, F, SECOND, ZERO_SECOND, True, BLOCK,
                )  # fmt: skip
        else:
            for at in range(start, end, NARROW):
                _fold(
                    m_at, mc_at, at, end - at, first, zero_first, now1, old1, word, period,
                    S, S, F, FIRST, ZERO_FIRST, False, NARROW,
                )  # fmt: skip
                _fold(
                    v_at, vc_at, at, end - at, second, zero_second, now2, old2, word, period,
                    S, V, F, SECOND, ZERO_SECOND, False, NARROW,
                )  # fmt: skip

        if is_last(arrived + tensor, size, CHUNK):
            tl.store(c_at, c + t)
            tl.store(t_at, 0.0)
            tl.store(took + group, 1)
