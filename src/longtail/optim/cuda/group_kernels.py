"""The step and the boundary of several parameter groups in one launch each.

Ten policies on the same small models are ten parameter groups, and ten launches take longer than
their arithmetic. Here the settings of a group are a row of a table that is read at run time::

    settings[group] = the scalars of `step_kernel`, each as two float32; FIRST, SECOND, CARRY

and the policies share one code: a moment without a task-wise average is one whose past weighs
nothing, so past1 = 0 or past2 = 0, and nothing of it is read. The arithmetic is that of
`longtail.optim.cuda.kernels`, in the same order.
"""

# pyright: reportPossiblyUnboundVariable=false
import triton
import triton.language as tl

from longtail.optim.cuda.kernels import (
    drawn,
    fold,
    is_last,
    one_minus_power,
    walk,
    weights,
    wide,
)

_ROW = tl.constexpr(8)  # entries in a row of the table: p, m, v, v_c, m_c, t, c, size
_SETTINGS = tl.constexpr(23)  # ten scalars of two numbers, three flags
_ENDS = tl.constexpr(6)  # log2(beta1), log2(beta2), of two numbers each, two rules


@triton.jit
def _scalar(row, i: tl.constexpr, F: tl.constexpr):
    return wide(tl.load(row + 2 * i), tl.load(row + 2 * i + 1), F)


@triton.jit
def _one_minus(t, row, i: tl.constexpr, F: tl.constexpr):
    return one_minus_power(t, tl.load(row + 2 * i), tl.load(row + 2 * i + 1), F)


@triton.jit
def step_groups_kernel(
    table, chunks, arrived, grads, groups, settings, rates, scale_at, found_inf_at,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, V: tl.constexpr, F: tl.constexpr,
    DECAY: tl.constexpr, MAXIMIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of all groups, ``groups[tensor]``.

    ``rates[group]`` is the address of the learning rate, float32, or 0 where the settings have it.
    The rest is as in `step_kernel`.
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
    group = tl.load(groups + tensor)
    scalars = settings + group * _SETTINGS
    row = table + tensor.to(tl.int64) * _ROW
    t_at = tl.load(row + 5).to(tl.pointer_type(tl.float32))
    c_at = tl.load(row + 6).to(tl.pointer_type(tl.float32))
    size = tl.load(row + 7)
    t = tl.load(t_at) + 1.0
    c = tl.load(c_at)

    rate_at = tl.load(rates + group)
    told = tl.load(rate_at.to(tl.pointer_type(tl.float32)), mask=rate_at != 0, other=0.0)
    rate = tl.where(rate_at != 0, told.to(F), _scalar(scalars, 0, F))
    weight_decay = _scalar(scalars, 1, F)
    if DECAY == 2:
        weight_decay = 1.0 - rate * weight_decay
    grad_scale = tl.load(scale_at).to(F) if scale_at is not None else 1.0
    first = tl.load(scalars + 20) != 0.0
    second = tl.load(scalars + 21) != 0.0
    carry = tl.load(scalars + 22) != 0.0
    tw = t.to(F)
    cw = c.to(F)
    corr1 = _one_minus(t, scalars, 7, F)
    corr2 = _one_minus(tl.where(carry, t + c, t), scalars, 8, F)
    step_size = rate * _one_minus(t, scalars, 9, F) / corr1
    past1 = tl.where(first, cw * corr1 / tw, tw * 0.0)
    past2 = tl.where(second, cw * corr2 / tw, tw * 0.0)
    step_size = tl.where(first, step_size * tw / (tw + cw), step_size)
    corr2 = tl.where(second, corr2 * (tw + cw) / tw, corr2)
    denom_scale = 1.0 / tl.sqrt(corr2)

    walk(
        tl.load(row), g_at, tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4),
        size, chunk, weight_decay, _scalar(scalars, 2, F), _scalar(scalars, 3, F),
        _scalar(scalars, 4, F), _scalar(scalars, 5, F), _scalar(scalars, 6, F),
        grad_scale, step_size, past1, past2, 1.0, denom_scale, P, G, S, V, F,
        True, True, False, DECAY, MAXIMIZE, scale_at is not None, CHUNK, BLOCK,
    )  # fmt: skip
    if is_last(arrived + tensor, size, CHUNK):
        tl.store(t_at, t)


@triton.jit
def _end_moment(
    now_at, past_at, rule, start, end, now_weight, past_weight, word, period,
    S: tl.constexpr, V: tl.constexpr, F: tl.constexpr, VECTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``rule``: 0 keeps the moment, 1 starts it from zero, 2 averages it over tasks."""
    if rule == 2.0:
        for at in range(start, end, BLOCK):
            fold(
                now_at, past_at, at, end - at, now_weight, past_weight, word, period,
                S, V, F, True, True, VECTOR, BLOCK,
            )  # fmt: skip
    if rule == 1.0:
        for at in range(start, end, BLOCK):
            fold(
                now_at, past_at, at, end - at, now_weight, past_weight, word, period,
                S, V, F, False, True, VECTOR, BLOCK,
            )  # fmt: skip


@triton.jit
def end_groups_kernel(
    table, chunks, arrived, draws, groups, ends, tally, tasks_seen,
    S: tl.constexpr, V: tl.constexpr, F: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The boundary of all groups; see `end_task_kernel`.

    ``tally[group]`` are three numbers as there, ``tasks_seen[group]`` the address of its count.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + 2 * program)
    chunk = tl.load(chunks + 2 * program + 1)
    group = tl.load(groups + tensor)
    row = table + tensor.to(tl.int64) * _ROW
    scalars = ends + group * _ENDS
    counts = tally + group * 3
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
        word, period = drawn(draws, tensor, c)
        W: tl.constexpr = F if V == S else tl.float64
        old1, now1 = weights(t, c, tl.load(scalars), tl.load(scalars + 1), F)
        old2, now2 = weights(t, c, tl.load(scalars + 2), tl.load(scalars + 3), W)
        rule1 = tl.load(scalars + 4)
        rule2 = tl.load(scalars + 5)

        start = chunk.to(tl.int64) * CHUNK
        end = tl.minimum(start + CHUNK, size)
        NARROW: tl.constexpr = BLOCK // 4
        if ((m_at | v_at | vc_at | mc_at) % 16 == 0) & (end % 8 == 0):
            _end_moment(
                m_at, mc_at, rule1, start, end, now1, old1, word, period, S, S, F, True, BLOCK
            )
            _end_moment(
                v_at, vc_at, rule2, start, end, now2, old2, word, period, S, V, F, True, BLOCK
            )
        else:
            _end_moment(
                m_at, mc_at, rule1, start, end, now1, old1, word, period, S, S, F, False, NARROW
            )
            _end_moment(
                v_at, vc_at, rule2, start, end, now2, old2, word, period, S, V, F, False, NARROW
            )

        if is_last(arrived + tensor, size, CHUNK):
            tl.store(c_at, c + t)
            tl.store(t_at, 0.0)
            tl.atomic_add(counts + 2, 1)

    if tl.atomic_add(counts + 1, 1) == tl.load(counts) - 1:
        tl.store(counts + 1, 0)
        if tl.atomic_xchg(counts + 2, 0) > 0:
            seen = tl.load(tasks_seen + group).to(tl.pointer_type(tl.int64))
            tl.atomic_add(seen, 1)
