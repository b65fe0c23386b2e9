"""Pieces that both Triton kernels are made of."""

# ruff: noqa: SIM300
import triton
import triton.language as tl


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
