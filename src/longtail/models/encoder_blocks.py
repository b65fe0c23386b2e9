"""Block sizes of the kernels of `encoder_fused`, and where to find them.

Sizes are chosen for an H200 and a step of 12 sequences of 64 to 96 tokens, hidden size 384.
"""

from __future__ import annotations

import importlib
from typing import Any

ROWS = 4  # of a block in the norms' backward
QUERIES = 32  # of a block of attention, and keys
GELU = (8, 256)  # rows and columns of a block
SUMS = (32, 64)  # partial sums added at once, and columns
SCATTER = (32, 128, 4)  # tokens looked at at once for the word table's gradient, columns, warps


def wide(n: int) -> int:
    """The next power of two: what a block must be."""
    return 1 << (n - 1).bit_length()


def warps(n: int) -> int:
    """So few that a row's sums need no other warp, as long as 16 numbers a thread are enough."""
    return max(1, wide(n) // 512)


def kernels(name: str) -> Any:
    """A module of kernels, imported at the first use: Triton is not everywhere."""
    return importlib.import_module(f"longtail.models.{name}")
