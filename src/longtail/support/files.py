"""Files that are whole or absent, and a folder only one process may write to.

`replacing` is the one way to write a file, `write_atomic` and `write_json` are short for it.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

if TYPE_CHECKING:
    from filelock import FileLock

__all__ = [
    "Draft",
    "FolderBusyError",
    "FolderLock",
    "digest",
    "drafting",
    "is_at",
    "is_draft",
    "lock_file",
    "naming",
    "not_through_a_link",
    "parse_json",
    "refusing",
    "remove_left_drafts",
    "replacing",
    "sync_folder",
    "to_json",
    "write_atomic",
    "write_json",
]

LOCK = ".lock"  # the name of a folder's lock


class FolderBusyError(ValueError):
    """Another living process holds the folder."""


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut; Windows opens no folders, and needs none."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of `write` or `fsync`, such as a full disk, says which file it was about."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not is_draft(os.fspath(error.filename)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def refusing(out: Path, what: str, flag: str = "--out ") -> Iterator[None]:
    """A name of an output folder that cannot be used is the user's to change: `ValueError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # nothing wrong with the name
            raise
        raise ValueError(f"{flag}{out}: {what} ({error.strerror})") from None


@contextmanager
def replacing(path: Path, buffering: int = -1) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of ``path`` when all went well.

    This is how every file of ours is written, large ones piece by piece. Readers see the old file
    or the new one, after a power cut too; where something goes wrong, the old one stays. A link
    under this name is replaced, never written through. The folder must exist.

        with replacing(path) as file:
            file.write(...)

    Args:
        path: the file.
        buffering: as `open` takes it; 0 for few and large writes.
    """
    with drafting(path, buffering) as draft:
        yield draft.file
        draft.publish(path)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a whole file with `replacing`."""
    with replacing(path, buffering=0) as file:
        view = memoryview(content.encode() if isinstance(content, str) else content)
        while view:  # an unbuffered write may stop early
            view = view[file.write(view) :]


@dataclass
class Draft:
    """A file that has no name of its own yet."""

    file: IO[bytes]
    path: Path
    published: bool = False

    def publish(self, path: Path) -> None:
        """Give the file its name, in the folder it lies in, and make it survive a power cut."""
        with naming(path):
            self.file.flush()
            os.fsync(self.file.fileno())
            if fcntl is None:  # Windows renames no file that is open
                self.file.close()
            os.replace(self.path, path)
            self.published = True
            sync_folder(path.parent)


@contextmanager
def drafting(path: Path, buffering: int = -1) -> Iterator[Draft]:
    """The draft of a file whose last name may depend on its content; `replacing` is for the others.

    It lies in the same folder under a name that nobody can foresee, which could otherwise be a link
    somebody put there, to a file of ours. A draft that is not published is removed; what a killed
    process left is removed by the next draft of the same file.
    """
    with naming(path):
        remove_left_drafts(path.parent, [path.name])
        draft = _open_draft(path, buffering)
    try:
        with naming(path), draft.file:
            yield draft
    finally:
        if not draft.published:
            draft.path.unlink(missing_ok=True)


# `.table.json.<this kernel>-<chance>.draft` is a draft of table.json.
_DRAFT = re.compile(r"\.(?P<target>.+)\.(?P<kernel>[0-9a-f]{8})-[0-9a-f]{16}\.draft", re.DOTALL)
_STALE = 24 * 3600  # seconds without a write, after which no process elsewhere is waited for


def is_draft(name: str) -> bool:
    """Whether a file of this name is one that `replacing` has not finished."""
    return _DRAFT.fullmatch(os.path.basename(name)) is not None


def _open_draft(target: Path, buffering: int) -> Draft:
    """A new file, locked for as long as it is open: who would remove it sees that it is alive."""
    while True:
        chance = secrets.token_hex(8)
        path = target.with_name(f".{target.name}.{_kernel()}-{chance}.draft")
        try:
            descriptor = not_through_a_link(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
        if lock_file(descriptor, wait=True) is None or is_at(descriptor, path):
            return Draft(os.fdopen(descriptor, "wb", buffering), path)
        os.close(descriptor)  # taken for a dead one in the moment before it was locked


def remove_left_drafts(folder: Path, targets: Collection[str]) -> None:
    """Remove the drafts of these files of a folder that no living process writes.

    The kernel gives a lock back when a process ends, however it ends, whatever its number was and
    in whichever container. A draft made under another kernel may lie on a volume that carries no
    locks between machines: it must be a day old, too.
    """
    names: list[str] = []
    with suppress(OSError):  # no such folder, or not to be listed: writing will tell
        names = os.listdir(folder)
    for name in names:
        draft = _DRAFT.fullmatch(name)
        if draft is not None and draft["target"] in targets:
            with suppress(OSError):  # another process was faster, or it is not ours to remove
                _remove_if_dead(folder / name, ours=draft["kernel"] == _kernel())


def _remove_if_dead(draft: Path, *, ours: bool) -> None:
    state = draft.lstat()
    stale = time.time() - state.st_mtime > _STALE
    if not stat.S_ISREG(state.st_mode):
        return
    if fcntl is None:  # Windows removes no file that is open
        if stale:
            draft.unlink()
        return
    descriptor = not_through_a_link(draft, os.O_RDWR | os.O_NONBLOCK)
    try:
        locked = lock_file(descriptor, wait=False)
        if (locked and ours) or (locked is not False and stale):
            draft.unlink()  # still locked: its writer may be waiting for the lock it begins with
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, *, wait: bool) -> bool | None:
    """Whether a file could be locked; None where the system or the volume has no such locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@functools.cache
def _kernel() -> str:
    """What tells this running kernel from others: its locks are kept there."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        text = platform.node()
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, to_json(value) + "\n")


def to_json(value: Any) -> str:
    """Indented; of more than a hundred entries each has one line, which is written much faster."""
    if isinstance(value, list) and len(value) > 100:
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    if isinstance(value, dict):
        if len(value) > 100:
            lines = [f"{json.dumps(str(k))}: {json.dumps(v)}" for k, v in value.items()]
            return "{\n" + ",\n".join(lines) + "\n}"
        if any(isinstance(v, list | dict) and len(v) > 100 for v in value.values()):
            lines = [f"{json.dumps(str(k))}: {to_json(v)}" for k, v in value.items()]
            return "{\n" + ",\n".join(lines) + "\n}"
    return json.dumps(value, indent=2)


def parse_json(path: Path, kind: type) -> Any:
    """The content of a JSON file; `ValueError` names it where it is not a `kind`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(found, kind):
        raise ValueError(f"{path.name} holds a {type(found).__name__}, not a {kind.__name__}")
    return found


def not_through_a_link(path: str | Path, flags: int) -> int:
    """An opener for `open`: where a link stands under this name, nothing is opened.

    Windows has no such flag; there it takes a privilege to make a link.
    """
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # the last is Windows' own
        flags |= getattr(os, name, 0)
    return os.open(path, flags, 0o666)


class FolderLock:
    """A lock on ``folder/.lock``, for use in a ``with`` statement; the folder is made.

    The folder itself is locked too, where the volume can do that: somebody may remove the file. The
    kernel drops both when the process ends, however it ends, so a killed run leaves nothing to
    clean up. `filelock` knows how to lock on each system, and opens no link.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: FileLock | None = None
        self._descriptor: int | None = None  # the folder's
        self._made: list[Path] = []  # folders that were not there before, the innermost first
        self._leave_nothing = False

    def __enter__(self) -> FolderLock:
        from filelock import FileLock, Timeout

        with refusing(self.folder, "cannot be made a folder"):
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
        file = FileLock(self.folder / LOCK)
        with refusing(self.folder, "cannot be written to"):
            try:
                file.acquire(blocking=False)
            except Timeout:
                raise FolderBusyError(f"{self.folder} is in use by another process") from None
        self._file = file
        if fcntl is not None:
            self._lock_folder()
        return self

    def _lock_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if lock_file(descriptor, wait=False) is False:  # its holder's lock file was removed
            os.close(descriptor)
            self.__exit__()
            raise FolderBusyError(f"{self.folder} is in use by another process")
        self._descriptor = descriptor

    def leave_nothing(self) -> None:
        """When the lock is given back, remove its file and the empty folders made for it."""
        self._leave_nothing = True

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        if self._descriptor is not None:  # first: who finds no lock file shall find no other lock
            os.close(self._descriptor)
            self._descriptor = None
        if fcntl is None:
            self._file.release()  # Windows removes no file that is open
        if self._leave_nothing:
            with suppress(OSError):
                (self.folder / LOCK).unlink()
        self._file.release()
        if self._leave_nothing:
            with suppress(OSError):  # a file of somebody else's: the folder stays
                for folder in self._made:
                    folder.rmdir()
