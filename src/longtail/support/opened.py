"""Which files a user's code has read, and the checksums of such files.

Python tells an audit hook of every `open`, whoever calls it: `pathlib`, NumPy, pandas, torch. A
file counts as read by the user's code where that code is nearer to the call than ours. Libraries
that open files by themselves, as h5py and pyarrow do, are not seen.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import platformdirs

from longtail.support.downloads import cache_folder, digest
from longtail.support.files import parse_json, write_json
from longtail.support.user_code import owner

CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dll", ".dylib")
SMALL = 1 << 20  # bytes: such a file is hashed again sooner than it is looked up
FRESH_NS = 2_000_000_000  # a file may change twice within what its clock can tell apart
HASHES = "hashes.json"
_WRITING = os.O_WRONLY | os.O_RDWR


class Opened(NamedTuple):
    """A file that was opened, as it was named, and the source file that did."""

    path: str
    by: str | None  # None: not a user's


_read: dict[Opened, None] = {}  # in the order of their first opening
_written: dict[Opened, None] = {}  # with their whole paths
_folders: tuple[str, ...] = ()
_listening = _hashing = False


def listen() -> None:
    """Note from now on what a user's code opens. Python never forgets a hook: one is added."""
    global _listening
    if not _listening:
        _listening = True
        sys.addaudithook(_note)


def listen_below(folders: Iterable[Path]) -> None:
    """Note also what anybody opens below these folders."""
    global _folders
    if new := {os.path.abspath(folder) + os.sep for folder in folders} - set(_folders):
        _folders += tuple(new)
        listen()


def read_by(sources: Iterable[Path], folders: Iterable[Path] = ()) -> list[str]:
    """The files that these source files have read, and those read below folders, as named then.

    Not those that they have written themselves, which are results, nor what lies in a cache, whose
    files are fetched by name and checked.
    """
    wanted = {str(path.resolve()) for path in sources}
    written = {path for path, by in _written if by in wanted}
    below = tuple(os.path.abspath(folder) + os.sep for folder in folders)
    found: dict[str, str] = {}  # by whole path: one file may have been named twice
    for path, by in _read:
        full = os.path.abspath(path)
        named = bool(below) and full.startswith(below)
        if full in written or not (named or (by is not None and by in wanted)):
            continue
        if named or not full.startswith(_not_data()):
            found.setdefault(full, path)
    return [path for path in found.values() if _is_file(path)]


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook; it must not raise, or whatever is being opened would fail."""
    if event != "open" or _hashing:
        return
    path, mode, flags = arguments
    if not isinstance(path, str | bytes | os.PathLike):  # a descriptor
        return
    name = os.fsdecode(path)
    if name.endswith(CODE):
        return
    writes = any(c in mode for c in "wax+") if isinstance(mode, str) else (flags or 0) & _WRITING
    by = _caller(sys._getframe(1))
    if writes and by is not None:
        _written[Opened(os.path.abspath(name), by)] = None
    elif not writes and (by is not None or os.path.abspath(name).startswith(_folders)):
        _read[Opened(name, by)] = None


def _caller(frame: FrameType | None) -> str | None:
    """The user's source file that is nearest to a call; None where one of ours is nearer."""
    while frame is not None:
        whose = owner(frame.f_code.co_filename)
        if whose != "other":
            return _resolved(frame.f_code.co_filename) if whose == "user" else None
        frame = frame.f_back
    return None


@cache
def _resolved(file: str) -> str:
    return str(Path(file).resolve())


@cache
def _not_data() -> tuple[str, ...]:
    """Where a program reads things that are no data: Python, the system, caches."""
    caches = platformdirs.user_cache_path(), cache_folder()
    system = ("/proc", "/sys", "/dev", "/etc", "/usr/lib", "/usr/share")
    named = [os.path.abspath(f) for f in (sys.prefix, sys.base_prefix, *caches, *system)]
    return tuple(folder + os.sep for folder in named if folder != os.sep)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


class Content(NamedTuple):
    """What a file held."""

    bytes: int
    sha256: str


_hashed: dict[tuple[str, int, int], str] = {}


def content(path: str | Path) -> Content:
    """Size and SHA-256; of a large file remembered, on the disk too, by its size and time.

    Raises:
        OSError: there is no such file.
    """
    full = os.path.abspath(path)
    found = os.stat(full)
    key = full, found.st_size, found.st_mtime_ns
    if found.st_size <= SMALL:
        return Content(found.st_size, _digest(full))
    if key not in _hashed:
        _hashed.update(_stored())
    if key not in _hashed:
        value = _digest(full)
        if time.time_ns() - found.st_mtime_ns < FRESH_NS:
            return Content(found.st_size, value)
        _hashed[key] = value
        _store()
    return Content(found.st_size, _hashed[key])


def _digest(path: str) -> str:
    """The checksum of a file, which is not to be taken for one that was read."""
    global _hashing
    _hashing = True
    try:
        return digest(Path(path))
    finally:
        _hashing = False


def _stored() -> dict[tuple[str, int, int], str]:
    try:
        entries = parse_json(cache_folder() / HASHES, dict)
        return {(path, int(e[0]), int(e[1])): str(e[2]) for path, e in entries.items()}
    except (OSError, ValueError, TypeError, IndexError):
        return {}


def _store() -> None:
    """Keep the checksums for other processes; two that write at once lose no more than time."""
    merged = {**_stored(), **_hashed}
    entries = {path: [size, time_ns, sha] for (path, size, time_ns), sha in merged.items()}
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_json(cache_folder() / HASHES, entries)
    except OSError:
        return
