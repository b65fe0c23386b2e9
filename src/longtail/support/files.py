"""Files that are whole or absent, and a folder only one process may write to."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"  # the name of a folder's lock
TEMPORARY = ".tmp"  # how the names of files end that are being written


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
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def refusing(out: Path, what: str, flag: str = "--out ") -> Iterator[None]:
    """A name of an output folder that cannot be used is the user's to change: `ValueError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # nothing wrong with the name
            raise
        raise ValueError(f"{flag}{out}: {what} ({error.strerror})") from None


def open_new(folder: Path, prefix: str) -> tuple[IO[bytes], Path]:
    """A file in ``folder`` that was not there, open for writing, under a name nobody can foresee.

    A name that could be foreseen could be a link that somebody put there, to a file of ours.
    """
    while True:
        path = folder / f"{prefix}.{secrets.token_hex(8)}{TEMPORARY}"
        with suppress(FileExistsError):
            descriptor = not_through_a_link(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            return os.fdopen(descriptor, "wb"), path


def remove_temporary(folder: Path) -> None:
    """Drop what a killed process left half written; for a folder that only this one writes to."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write under a temporary name, fsync, rename: readers see the old file or the new one."""
    try:
        opened, temporary = open_new(path.parent, f".{path.name}")
    except OSError as error:  # about a name that nobody has seen
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with naming(path), opened as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
    """A lock on ``folder/.lock``, for use in a ``with`` statement.

    The kernel drops it when the process ends, however it ends, so a killed run leaves nothing to
    clean up. On POSIX the process number in the file serves the message; elsewhere `filelock` knows
    how to lock, and who has done so is not said.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: IO[str] | None = None
        self._other: Any = None  # a lock of filelock's
        self._made: list[Path] = []  # folders that were not there before, the innermost first
        self._leave_nothing = False

    def __enter__(self) -> FolderLock:
        if fcntl is None:
            self._make_folder()
            self._acquire_elsewhere()
            return self
        while self._file is None:
            self._make_folder()
            file = self._opened()
            if file is not None and self._locked(file):
                self._file = file
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return self

    def _make_folder(self) -> None:
        folder = self.path.parent
        with refusing(folder, "cannot be made a folder"):
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
        self._made = self._made or made

    def _opened(self) -> IO[str] | None:
        """The file, or None where another process has just removed the folder around it."""
        with refusing(self.path.parent, "cannot be written to"):
            try:
                return open(self.path, "a+", encoding="utf-8", opener=not_through_a_link)
            except FileNotFoundError:
                if self.path.parent.is_dir():
                    raise
                return None

    def _locked(self, file: IO[str]) -> bool:
        """Whether the lock is ours; if not, the process that held it has removed the file.

        A lock on a file that has lost its name keeps nobody out: who comes next makes a new one.
        """
        assert fcntl is not None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            who = f"process {holder}" if holder else "another process"
            raise FolderBusyError(f"{self.path.parent} is in use by {who}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                return True
        file.close()
        return False

    def _acquire_elsewhere(self) -> None:
        from filelock import FileLock, Timeout

        lock = FileLock(self.path, timeout=0)
        with refusing(self.path.parent, "cannot be written to"):
            try:
                lock.acquire()
            except Timeout:
                raise FolderBusyError(f"{self.path.parent} is in use by another process") from None
        self._other = lock

    def leave_nothing(self) -> None:
        """When the lock is given back, remove its file and the empty folders made for it."""
        self._leave_nothing = True

    def __exit__(self, *_: object) -> None:
        if self._other is not None:
            self._other.release()  # Windows removes no file that is open
            self._other = None
        if self._leave_nothing:
            with suppress(OSError):
                self.path.unlink()
        if self._file is not None:
            self._file.truncate(0)  # who held it is nobody's business any more
            self._file.close()
            self._file = None
        if self._leave_nothing:
            with suppress(OSError):  # a file of somebody else's: the folder stays
                for folder in self._made:
                    folder.rmdir()
