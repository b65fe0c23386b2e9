r"""A logarithmic byte for second moments: what one byte of v says, and how wrong it may be.

.. math::
    v = 0 \text{ for code } 0, \qquad v = 2^{(code - OFFSET) / PER\_OCTAVE}
    \text{ for codes 1 to 255}

Zero is exactly zero, and nothing else becomes zero: "no task has moved this weight" is what
``second_moment="task_seen"`` asks for. With three codes an octave a value is off by at most
:math:`2^{1/6}`, 12%, and a step, which is divided by the root, by 6%. The codes reach from
:math:`2^{-60}` (a gradient of 1e-9, a tenth of Adam's epsilon) to :math:`2^{24.7}` (a gradient of
5,000); what lies beyond takes the nearest end.
"""

import torch
from torch import Tensor

PER_OCTAVE = 3
OFFSET = 181  # code 1 is 2 ** -60
_CHUNK = 1 << 20  # elements at once, so that what is computed on the way stays in the cache


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
    """The values that codes stand for, float32 or, with ``out``, written there.

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
