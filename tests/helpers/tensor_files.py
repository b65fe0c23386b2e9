"""Tensor files of ours that somebody has changed on purpose: their checksums fit again."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

_DIGESTS = re.compile(rb'"digests":\s*"([0-9a-f]*)"')


def with_checksums(content: bytes) -> bytes:
    """The same file with checksums of what is in it now; as it is where they have no place."""
    end = 8 + int.from_bytes(content[:8], "little")
    header, data = content[8:end], content[end:]
    place = _DIGESTS.search(header)
    try:
        entries = [e for name, e in json.loads(header).items() if name != "__metadata__"]
        spans = [tuple(map(int, entry["data_offsets"])) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return content
    if place is None or len(place[1]) != 8 * (1 + len(spans)):
        return content
    sums = "".join(f"{zlib.crc32(data[max(0, a) : max(0, b)]):08x}" for a, b in spans).encode()
    blank = header[: place.start(1)] + b"0" * 8 + sums + header[place.end(1) :]
    own = f"{zlib.crc32(blank):08x}".encode()
    header = header[: place.start(1)] + own + sums + header[place.end(1) :]
    return content[:8] + header + data


def rewritten(path: Path, old: str, new: str) -> None:
    """Change the header of a file, whose length stands before it, and make its checksum fit."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].replace(old.encode(), new.encode())
    assert header != content[8:end]
    path.write_bytes(with_checksums(len(header).to_bytes(8, "little") + header + content[end:]))
