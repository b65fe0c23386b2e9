"""Safetensors files, written and read one tensor at a time.

A file is eight bytes with the length of a header, the header (JSON: for each tensor its dtype,
shape and place, and a dictionary of texts), and the tensors' bytes end to end. The package of that
name writes and reads the same files, but wants all tensors in memory at once to write them, and
maps the whole file to read one. Nothing in such a file can be executed.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from longtail.support.files import naming

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LARGEST_HEADER = 100_000_000  # the limit of the format
_PIECE = 1 << 20  # bytes a write, without a buffer in between: twice as fast as all at once


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
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
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
    with replacing(path) as file:
        _write(file, memoryview(len(text).to_bytes(8, "little") + text))
        for name, entry in entries.items():
            tensor = tensors(name)
            assert tensor.dtype == entry.dtype
            assert tuple(tensor.shape) == entry.shape
            if entry.size:
                _write(file, bytes_of(tensor))


def _write(file: IO[bytes], content: memoryview) -> None:
    done = 0
    while done < len(content):  # an unbuffered write may stop early
        done += file.write(content[done : done + _PIECE])


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of ``path`` when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), open(temporary, "wb", buffering=0) as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    except TensorFileError:
        raise
    except DAMAGED:
        raise TensorFileError("it is no safetensors file") from None
    end = max((entry.stop for entry in entries.values()), default=8 + length)
    if end > size:
        raise TensorFileError(f"it is cut off: {size:,} of {end:,} bytes are there")
    return Header(metadata, entries)


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
        target = bytes_of(tensor)
        done = 0
        while done < entry.size:  # an unbuffered read may stop early
            count = file.readinto(target[done:])  # type: ignore[attr-defined]
            if not count:
                raise TensorFileError("it was cut off while it was read")
            done += count
    return tensor
