"""Block sizes of the kernels of `fused.py`, and where to find them.

Chosen for 12 sequences of 64 to 96 tokens at hidden size 384: a step of them is a few µs a kernel,
so what counts is that one wave of programs fills an H200 and that none waits for itself for long.
"""

from __future__ import annotations

import importlib
from typing import Any

NORM_FORWARD = (4, 4)  # rows of a block, warps
NORM_BACKWARD = (4, 1, 2)  # rows of a block, times a program does one, warps of 512 columns
GELU_FORWARD = (4, 256, 4)  # rows and columns of a block, warps
GELU_BACKWARD = (8, 256, 1)
# Positions of a program, those of the other side at once, warps for heads of 32 numbers.
ATTENTION_FORWARD = (32, 32, 2)
ATTENTION_BACKWARD = (16, 32, 2)
SUMS = (64, 64, 8)  # partial sums added at once, columns, warps
PLACES = (4, 4)  # sequences added at once for the position table's gradient, warps likewise
PACK = (64, 1)  # rows of a block of packed tokens, warps
SCATTER = (32, 128, 4)  # tokens looked at at once for the word table's gradient, columns, warps


def wide(n: int) -> int:
    """The next power of two: what a block must be."""
    return 1 << (n - 1).bit_length()


def count(n: int, block: int) -> int:
    """How many blocks n takes."""
    return -(-n // block)


def more_warps(warps: int, width: int) -> int:
    """For rows of more than 512 numbers, so that a thread has no more of them."""
    return min(16, warps * max(1, wide(width) // 512))


def norm_backward(width: int) -> tuple[int, int, int, int]:
    """Rows a program of `norm_backward` has, rows of a block, blocks and warps."""
    rows, steps, warps = NORM_BACKWARD
    return rows * steps, rows, steps, more_warps(warps, width)


def kernels(name: str) -> Any:
    """A module of kernels, imported at the first use: Triton is not everywhere."""
    return importlib.import_module(f"longtail_bench.encoder.{name}")
