r"""A logarithmic byte for second moments: what one byte of v says, and how wrong it may be.

.. math::
    v = 0 \text{ for code } 0, \qquad v = 2^{(code - OFFSET) / PER\_OCTAVE}
    \text{ for codes 1 to 255}

Zero is exactly zero, and nothing else becomes zero: "no task has moved this weight" is what
``second_moment="task_seen"`` asks for. With three codes an octave a value is off by at most
:math:`2^{1/6}`, 12%, and a step, which is divided by the root, by 6%. The codes reach from
:math:`2^{-60}` (a gradient of 1e-9, a tenth of Adam's epsilon) to :math:`2^{24.7}` (a gradient of
5,000); what lies beyond takes the nearest end, and so does what is no number (code 255).

A code's value is made of its bits, with no logarithm: three codes share an exponent of float32,
and each of them has its own digits, those of 1, 2^(1/3) and 2^(2/3). So every implementation, in
C++, in Triton and here, reads the same float32 from the same byte.
"""

import torch
from torch import Tensor

PER_OCTAVE = 3
OFFSET = 181  # code 1 is 2 ** -60
RANGE = ((1 - OFFSET) / PER_OCTAVE, (255 - OFFSET) / PER_OCTAVE)  # of log2 v
CODE = {"per_octave": PER_OCTAVE, "offset": OFFSET}  # as a file says it
_CHUNK = 1 << 20  # elements at once, so that what is computed on the way stays in the cache

# code + SHIFT = 3 exponent + digit, with the exponent as float32 has it, 127 for 1.
SHIFT = 3 * 127 - OFFSET
DIGIT_1, DIGIT_2 = 0x214518, 0x4B2FF5  # what float32 has after the point of 2^(1/3) and 2^(2/3)


def encode(values: Tensor) -> Tensor:
    """The code of every element, rounded to the nearest; uint8, of the same shape.

    Args:
        values: zero or more, of any floating dtype.

    Raises:
        ValueError: for a negative value or NaN, of which there is no logarithm.
    """
    codes = torch.empty(values.shape, dtype=torch.uint8, device=values.device)
    source, target = values.reshape(-1), codes.view(-1)
    for start in range(0, len(source), _CHUNK):
        part = source[start : start + _CHUNK].float()
        if not bool((part >= 0).all()):
            raise ValueError("a second moment below zero, or NaN, has no code")
        code = part.log2().mul_(PER_OCTAVE).add_(OFFSET).round_().clamp_(1, 255)
        target[start : start + _CHUNK] = code.mul_(part > 0)
    return codes


def decode(
    codes: Tensor, *, per_octave: int = PER_OCTAVE, offset: int = OFFSET, out: Tensor | None = None
) -> Tensor:
    """The values that codes of a file stand for, float32 or, with ``out``, written there.

    Args:
        codes: uint8, of any shape.
        per_octave: the constant a file was written with.
        offset: the same.
        out: contiguous and of the codes' shape.
    """
    exponents = (torch.arange(256, dtype=torch.float64, device=codes.device) - offset) / per_octave
    table = exponents.exp2().float()
    table[0] = 0.0
    found = torch.empty(codes.shape, device=codes.device) if out is None else out
    source, target = codes.reshape(-1), found.view(-1)
    for start in range(0, len(source), _CHUNK):
        target[start : start + _CHUNK] = table[source[start : start + _CHUNK].int()]
    return found


def value_of(codes: Tensor) -> Tensor:
    """The values that codes stand for, float32, by elementwise operations alone.

    Unlike `decode` it has no table, so that it can be compiled and captured in a graph.
    """
    place = codes.int().add_(SHIFT)
    exponent = place.mul(171).bitwise_right_shift_(9)  # place / 3, for numbers below 512
    digit = place.sub_(exponent, alpha=3)
    second = digit.bitwise_right_shift(1)
    bits = exponent.bitwise_left_shift_(23)
    bits.add_(digit, alpha=DIGIT_1).add_(second, alpha=DIGIT_2 - 2 * DIGIT_1)
    return bits.mul_(codes != 0).view(torch.float32)


def round_at_random(values: Tensor, bits: Tensor) -> Tensor:
    r"""One of the two codes next to each value, the upper one at random, so that the mean is right.

    .. math:: P(\text{upper}) = (v - lower) / (upper - lower)

    Below the code's range and above it there is only one.

    Args:
        values: float32, zero or more.
        bits: int64, random, of which the upper 24 of 32 are used.
    """
    found = values.view(torch.int32)
    rest, exponent = found & 0x7FFFFF, found & 0x7F800000
    first, second = (rest >= DIGIT_1).int(), (rest >= DIGIT_2).int()
    lower = first * DIGIT_1 + second * (DIGIT_2 - DIGIT_1)
    upper = DIGIT_1 + first * (DIGIT_2 - DIGIT_1) + second * ((1 << 23) - DIGIT_2)
    low = (exponent + lower).view(torch.float32)
    gap = (exponent + upper).view(torch.float32) - low
    # Both differences are exact in float32, and 24 bits are: all implementations agree.
    up = (bits >> 8).float() * gap < (values - low) * 16777216.0
    code = (exponent >> 23) * 3 + first + second + up.int() - SHIFT
    return (code.clamp_(1, 255) * (found != 0)).to(torch.uint8)
