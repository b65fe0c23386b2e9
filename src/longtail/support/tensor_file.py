"""Safetensors files with digests, written and read one tensor at a time.

A file is eight bytes with the length of a header, the header (JSON: for each tensor its dtype,
shape and place, and a dictionary of texts), and the tensors' bytes end to end. The package of that
name writes and reads the same files, but wants all tensors in memory at once to write them, and
maps the whole file to read one. Nothing in such a file can be executed.

The first text, ``digests``, holds a checksum (CRC-32, eight hexadecimal digits) of the header and
one of each tensor. One changed bit is always noticed. Who can write to the file can also write
another checksum: it tells of damage, not of malice, and a cryptographic one would take longer than
the writing.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from longtail.support.files import replacing

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
DTYPES = frozenset(_NAMES)
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LARGEST_HEADER = 100_000_000  # the limit of the format
# Bytes a write or a read. Without a buffer in between that is twice as fast as all at once, and
# what is computed of a piece on the way finds it in the cache.
_PIECE = 1 << 20
_DIGITS = 8  # of a checksum
_NONE = "0" * _DIGITS

# What is wrong with the values of a piece of the tensor of that name, if anything.
Complaint = Callable[[str, Tensor], str | None]

# What a description that is JSON of another form makes its reader raise: 1e400 is infinite there,
# and brackets may be too deep.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class TensorFileError(ValueError):
    """The file is no safetensors file, or not all of one."""


def counted(value: Any) -> int:
    """A number of steps or tasks in a description; an error of `DAMAGED` where it cannot be one."""
    if not 0 <= (number := int(value)) < 1 << 53:  # beyond it a float64 cannot count
        raise ValueError(f"{number} is no count")
    return number


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: what it is, and between which of its bytes it lies."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Header:
    """What a file says of itself, with places counted from its first byte."""

    metadata: dict[str, str]
    entries: dict[str, Entry]
    digests: dict[str, str]


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    flat: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def write_tensors(
    path: Path,
    entries: Mapping[str, Entry],
    metadata: Mapping[str, str],
    tensors: Callable[[str], Tensor],
) -> None:
    """Write a file that is whole or absent.

    Args:
        path: the file; its folder exists.
        entries: dtype and shape of every tensor.
        metadata: texts for the header.
        tensors: gives the tensor of a name when its turn has come, which is in the order of
            ``entries``; contiguous, on the CPU.
    """
    places = _NONE * (1 + len(entries))  # filled in once the tensors have been seen
    header: dict[str, Any] = {"__metadata__": {"digests": places, **metadata}}
    end = 0
    for name, entry in entries.items():
        start, end = end, end + entry.size
        header[name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path, buffering=0) as file:
        _write(file, memoryview(len(text).to_bytes(8, "little") + text))
        digests = _NONE
        for name, entry in entries.items():
            tensor = tensors(name)
            assert tensor.dtype == entry.dtype
            assert tuple(tensor.shape) == entry.shape
            digests += _write(file, bytes_of(tensor)) if entry.size else _NONE
        text = text.replace(places.encode(), digests.encode(), 1)
        own = f"{zlib.crc32(text):08x}{digests[_DIGITS:]}"
        file.seek(8)
        _write(file, memoryview(text.replace(digests.encode(), own.encode(), 1)))


def _write(file: IO[bytes], content: memoryview) -> str:
    """Write all of it, and give its checksum."""
    done, checksum = 0, 0
    while done < len(content):  # an unbuffered write may stop early
        piece = content[done : done + _PIECE]
        written = file.write(piece)
        checksum = zlib.crc32(piece[:written], checksum)
        done += written
    return f"{checksum:08x}"


def not_finite(values: Tensor) -> str | None:
    """What is wrong with values that should be numbers, as a sentence goes on after their name."""
    if not values.is_floating_point() or not values.numel():
        return None
    low, high = torch.aminmax(values)  # NaN wherever there is one
    if bool(low.isfinite() & high.isfinite()):
        return None
    return "has NaN in it" if bool(low.isnan()) else "has infinite values"


def read_header(file: IO[bytes], kind: str) -> Header:
    """What is in a file.

    Args:
        kind: what ``format`` of its metadata must say.

    Raises:
        TensorFileError: with the reason, where it is not a whole safetensors file of that kind.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > _LARGEST_HEADER:
        raise TensorFileError("it is no safetensors file")
    text = file.read(length)
    if len(text) < length and text.lstrip()[:1] == b"{":
        raise TensorFileError("it is cut off within its header")
    try:
        found = json.loads(text)
        metadata = found.pop("__metadata__", None) or {}
        if metadata.get("format") != kind:
            raise TensorFileError(f"it is a safetensors file, but no {kind}")
        entries = {name: _entry(described, 8 + length) for name, described in found.items()}
        digests = _digests(text, metadata, list(entries))
    except TensorFileError:
        raise
    except DAMAGED:
        raise TensorFileError("it is no safetensors file") from None
    end = max((entry.stop for entry in entries.values()), default=8 + length)
    if end > size:
        raise TensorFileError(f"it is cut off: {size:,} of {end:,} bytes are there")
    return Header(metadata, entries, digests)


def _digests(text: bytes, metadata: dict[str, str], names: list[str]) -> dict[str, str]:
    """The checksum of every tensor; that of the header is looked at here."""
    digests = metadata["digests"]
    if len(digests) != _DIGITS * (1 + len(names)):
        raise TensorFileError("it has no checksum for each of its tensors")
    blank = _NONE + digests[_DIGITS:]
    if f"{zlib.crc32(text.replace(digests.encode(), blank.encode(), 1)):08x}" != digests[:_DIGITS]:
        raise TensorFileError("its header is damaged: it is not what its checksum was taken of")
    starts = range(_DIGITS, len(digests), _DIGITS)
    return {name: digests[i : i + _DIGITS] for name, i in zip(names, starts, strict=True)}


def verify(file: IO[bytes], header: Header, complaint: Complaint) -> None:
    """Read all tensors once, before any of them is made use of.

    Raises:
        TensorFileError: for a tensor that is not what was written, or whose values are complained
            of; its name is said.
    """
    space = torch.empty(_PIECE, dtype=torch.uint8)
    for name, entry in header.entries.items():
        checksum, wrong = 0, None
        file.seek(entry.start)
        for start in range(entry.start, entry.stop, _PIECE):
            piece = space[: min(_PIECE, entry.stop - start)]
            _fill(file, bytes_of(piece))
            checksum = zlib.crc32(bytes_of(piece), checksum)
            wrong = wrong or complaint(name, piece.view(entry.dtype))
        if f"{checksum:08x}" != header.digests[name]:
            raise TensorFileError(f"{name} is damaged: it is not what its checksum was taken of")
        if wrong is not None:
            raise TensorFileError(f"{name} {wrong}")


def _entry(described: dict[str, Any], data: int) -> Entry:
    start, stop = map(int, described["data_offsets"])
    entry = Entry(
        _DTYPES[described["dtype"]], tuple(map(int, described["shape"])), data + start, data + stop
    )
    if start < 0 or min(entry.shape, default=0) < 0 or stop - start != entry.size:
        raise ValueError("a tensor and its place differ in size")
    return entry


def read_tensor(file: IO[bytes], entry: Entry, out: Tensor | None = None) -> Tensor:
    """A tensor of an open file.

    Args:
        out: where to put it, without a copy in between: contiguous, on the CPU, of the same dtype
            and number of elements.
    """
    tensor = torch.empty(entry.shape, dtype=entry.dtype) if out is None else out
    if entry.size:
        file.seek(entry.start)
        _fill(file, bytes_of(tensor))
    return tensor


def _fill(file: IO[bytes], target: memoryview) -> None:
    done = 0
    while done < len(target):  # an unbuffered read may stop early
        count = file.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise TensorFileError("it was cut off while it was read")
        done += count
