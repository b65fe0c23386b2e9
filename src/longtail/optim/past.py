r"""v_c in one byte: how ``past_dtype`` keeps it, how a step reads it, how a boundary rounds it.

With ``past_dtype="float32"`` it is kept like the other moments (in float64 for float64 parameters);
with ``"uint8"`` as the code of its logarithm, which ``codes.py`` describes.

Within a task v_c is only read. At a boundary it moves by about t / (c + t) of itself, which after a
few dozen tasks is less than half of what a byte can tell apart: rounded to the nearest, the average
would stand still for good. So it is rounded up or down at random, with

.. math:: E[\text{rounded } v] = v

The random bits are a function of a number kept in the group (``past_seed``), the parameter's place
in the group, the element's place in memory, and c. So they are the same in every implementation, on
every device, and after a checkpoint. Parameters that are a stack of ``past_copies`` models count
elements within each copy, which then gets the bits that it would get alone. A sharded parameter
counts within a shard: other bits, and the same mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.optim import codes

PAST_DTYPES = ("float32", "uint8")
_CHUNK = 1 << 18  # elements at once: what is computed on the way has 8 bytes for each
_WORD = 0xFFFFFFFF


class Draw(NamedTuple):
    """Where the random bits of a parameter come from."""

    key: int
    """32 bits made of the group's number and the parameter's place in the group."""

    period: int
    """Elements after which counting starts again; 0 for never."""


_NONE = Draw(0, 0)


def check_past(group: Mapping[str, Any]) -> None:
    """Raise for settings of a group that are none of ours."""
    chosen = group["past_dtype"]
    if not isinstance(chosen, str) or chosen not in PAST_DTYPES:
        choices = ", ".join(map(repr, PAST_DTYPES))
        raise ValueError(f"Invalid past_dtype value: {chosen!r}, must be one of {choices}")
    for name, least in (("past_seed", 0), ("past_copies", 1)):
        value = group[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"Invalid {name} value: {value!r}, a whole number from {least} on")
    if chosen != "float32" and group["differentiable"]:
        raise RuntimeError(f"`past_dtype={chosen!r}` does not support `differentiable`")


def past_dtype_of(past_dtype: str, state_dtype: torch.dtype) -> torch.dtype:
    """The dtype of v_c where the other moments have ``state_dtype``."""
    return torch.uint8 if past_dtype == "uint8" else state_dtype


def is_coded(past: Tensor) -> bool:
    """Whether this v_c is kept in one byte."""
    return past.dtype == torch.uint8


def read_past(past: Tensor, dtype: torch.dtype) -> Tensor:
    """v_c in the dtype of the other moments; the tensor itself if it has it."""
    if not is_coded(past):
        return past.to(dtype)
    if not hasattr(past, "to_local"):
        return codes.value_of(past).to(dtype)
    return _like_sharded(past, codes.value_of(_local(past)).to(dtype))


def converted(past: Tensor, dtype: torch.dtype) -> Tensor:
    """v_c in another dtype, rounded to the nearest; NaN and infinity have the largest code."""
    if past.dtype == dtype:
        return past
    if dtype != torch.uint8:
        return read_past(past, dtype)
    local = _local(past)
    code = codes.encode(local.float().nan_to_num(nan=torch.inf).clamp_(max=2.0**30))
    code = torch.empty_like(local, dtype=torch.uint8).copy_(code)
    return _like_sharded(past, code) if hasattr(past, "to_local") else code


def draw_of(group: Mapping[str, Any], place: int) -> Draw:
    """Where the random bits of the parameter at ``place`` in a group come from, if it has any."""
    if group["past_dtype"] == "float32":
        return _NONE
    key = _mixed((_mixed(group["past_seed"] & _WORD) + place) & _WORD)
    copies = group["past_copies"]
    return Draw(key, group["params"][place].numel() // copies if copies > 1 else 0)


def fold_coded(
    past: Sequence[Tensor],
    now: Sequence[Tensor],
    past_weight: Sequence[Any],
    now_weight: Sequence[Any],
    past_steps: Sequence[Tensor],
    draws: Sequence[Draw],
) -> None:
    """past = past_weight * past + now_weight * now, in float64, rounded at random.

    Weights are float64, as floats or as tensors on the device. ``now`` stays as it is.
    """
    for old, new, a, b, c, draw in zip(
        past, now, past_weight, now_weight, past_steps, draws, strict=True
    ):
        word = _mixed(draw.key ^ c.long())
        source, target = _in_order(_local(new), _local(old))
        for start in range(0, len(target), _CHUNK):
            part = target[start : start + _CHUNK]
            x = source[start : start + _CHUNK].float().double()
            value = (a * read_past(part, torch.float64) + b * x).float()
            bits = _bits(start, len(part), draw.period, word, part.device)
            part.copy_(codes.round_at_random(value, bits))


def _bits(start: int, count: int, period: int, word: Tensor, device: torch.device) -> Tensor:
    """32 random bits of each element from ``start`` on, as int64."""
    place = torch.arange(start, start + count, dtype=torch.int64, device=device)
    if period:
        place %= period
    return _mixed((place + word.to(device)) & _WORD)


def _mixed(x: Any) -> Any:
    """A bijection of 32-bit numbers in which every bit depends on every other, of ints or int64.

    Shifts and products in turn: an integer hash, cheap enough for a kernel that waits for memory.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def _in_order(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both as one row in the order in which ``target`` lies in memory; that one must be dense."""
    order = sorted(range(target.dim()), key=lambda i: -target.stride(i))
    return source.permute(order).reshape(-1), target.permute(order).view(-1)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[attr-defined]


def _like_sharded(sharded: Any, local: Tensor) -> Tensor:
    """A shard of ours as the shard of a tensor that is sharded like another."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=sharded.shape,
        stride=sharded.stride(),
    )
