"""What becomes of a tensor when its parameter has grown: more tokens, more classes.

Rows, or columns, are taken to be added and cut off at the end of one dimension.
"""

import torch
from torch import Tensor

GROWTH = ("mean", "zero")


def check_growth(grow: str) -> None:
    """Raise for a rule that is none of `GROWTH`."""
    if grow not in GROWTH:
        raise ValueError(f"Invalid grow: {grow!r}, must be one of {', '.join(map(repr, GROWTH))}")


def fit(saved: tuple[int, ...], shape: tuple[int, ...]) -> str | None:
    """How a shape follows from a saved one: loaded, grown or shrunk; None if it does not."""
    if saved == shape:
        return "loaded"
    different = [i for i, (a, b) in enumerate(zip(saved, shape, strict=False)) if a != b]
    if len(saved) != len(shape) or len(different) != 1 or not saved[different[0]]:
        return None
    return "grown" if shape[different[0]] > saved[different[0]] else "shrunk"


def resized(value: Tensor, shape: tuple[int, ...], grow: str) -> Tensor:
    """The value with its last rows cut off, or with rows added by the rule ``grow``."""
    for dim, size in enumerate(shape):
        missing = size - value.shape[dim]
        if missing < 0:
            value = value.narrow(dim, 0, size)
        elif missing:
            value = _with_rows(value, dim, missing, grow)
    return value


def _with_rows(value: Tensor, dim: int, missing: int, grow: str) -> Tensor:
    rows = value.mean(dim, keepdim=True) if grow == "mean" else value.new_zeros(())
    added = [*value.shape]
    added[dim] = missing
    return torch.cat([value, rows.expand(added)], dim)


def shared_part(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The first rows and columns that a tensor has in common with one of another shape: a view."""
    for dim, size in enumerate(shape):
        tensor = tensor.narrow(dim, 0, min(size, tensor.shape[dim]))
    return tensor
