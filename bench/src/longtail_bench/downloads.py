"""Fetch published files: checked against their checksums, resumed where a transfer broke off.

    remote = Remote("a.tar.gz", ("https://example.org/a.tar.gz",), sha256="9f86d0...")
    path = fetch(remote, cache_folder("corpus"))

A file appears under its own name only once it is complete and its checksum is right. Until then it
is `NAME.part` in the same folder, and the next call asks for the rest of it (HTTP Range). Of calls
for one file at the same time the first one fetches it and the others wait.
"""

import os
import re
import stat
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, TextIO

from longtail.support.files import digest, is_at, not_through_a_link, refusing, sync_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
SCHEMES = ("http", "https", "file")

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes at hand, and the bytes of the whole where known."""


class DownloadError(OSError):
    """A file could not be fetched or is not what it should be; the text names file and url."""


class ChecksumError(DownloadError, ValueError):
    """A file that is there is another than the published one: bad input, where it is a user's."""


@dataclass(frozen=True)
class Remote:
    """One published file: its name here, where it is offered (tried in order), its checksums.

    Where its publisher gives no checksum, ``check`` looks at the file instead and raises
    `ChecksumError`: a server that gives no length may stop anywhere.
    """

    name: str
    urls: tuple[str, ...]
    sha256: str = ""
    md5: str = ""
    check: Callable[[Path], None] | None = None

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or not self.name:
            raise ValueError(f"Invalid file name: {self.name!r}")
        for url in self.urls:
            if urllib.parse.urlsplit(url).scheme not in SCHEMES:
                raise ValueError(f"Invalid url: {url!r} (http, https or file)")
        if not (self.sha256 or self.md5 or self.check):
            raise ValueError(f"{self.name} has neither a checksum nor a check of its content")


def verify(path: Path, remote: Remote) -> None:
    """Raise `ChecksumError` where `path` is not what the checksums of `remote` say."""
    for algorithm, expected in (("sha256", remote.sha256), ("md5", remote.md5)):
        if expected and (found := digest(path, algorithm)) != expected.lower():
            raise ChecksumError(
                f"{path} is not the published {remote.name}: its {algorithm} is {found}, "
                f"expected {expected}"
            )
    if remote.check is not None:
        remote.check(path)


def fetch(
    remote: Remote,
    folder: str | Path,
    *,
    progress: Progress | None = None,
    attempts: int = 4,
    pause: float = 1.0,
) -> Path:
    """The path of `remote` in `folder`, fetched if it is not there yet.

    A file that is there is checked, never overwritten. A transfer that breaks is resumed up to
    `attempts` times per url, after `pause` seconds, then twice that, and so on.
    """
    folder = Path(folder)
    path = folder / remote.name
    if not path.exists():
        with refusing(folder, "cannot be made a folder", flag=""):  # a flag, a setting, the cache
            folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{remote.name}.part"
        with _alone_with(part):
            if not path.exists():  # or another process had it, and has finished
                _fetch_from_any(remote, part, progress, attempts, pause)
                _publish(part, path)
                return path
    verify(path, remote)
    return path


def _fetch_from_any(
    remote: Remote, part: Path, progress: Progress | None, attempts: int, pause: float
) -> None:
    problems: list[str] = []
    for url in remote.urls:
        try:
            _fetch_from(url, remote, part, progress, attempts, pause)
        except DownloadError as error:
            problems.append(str(error))
        else:
            return
    why = "; ".join(problems) or "no url is known for it"
    path = part.with_name(remote.name)
    raise DownloadError(f"Could not fetch {remote.name} to {path}: {why}")


def _publish(part: Path, path: Path) -> None:
    """Give a complete file its name, so that both survive a power cut."""
    with open(part, "rb+", opener=not_through_a_link) as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


class Meter:
    """A `Progress` for people: one line that counts on a terminal, one line a file in a pipe."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def __call__(self, name: str, done: int, total: int | None) -> None:
        finished = done == total
        if not finished and not self.stream.isatty():
            return
        of = f" of {total / 1e6:.1f}" if total else ""
        start = "\r" if self.stream.isatty() else ""
        end = "\n" if finished else ""
        print(f"{start}{name}: {done / 1e6:.1f}{of} MB", end=end, file=self.stream, flush=True)


def fetch_all(
    remotes: Iterable[Remote], folder: str | Path, *, progress: Progress | None = None
) -> list[Path]:
    """`fetch` for several files of one folder."""
    return [fetch(remote, folder, progress=progress) for remote in remotes]


@contextmanager
def _alone_with(part: Path) -> Iterator[None]:
    """Within ``with``, ``part`` is there and no other process writes to it.

    It waits for one that does. The lock is on the file itself, so to begin anew it may be emptied,
    but not removed.
    """
    if fcntl is None:
        from filelock import FileLock

        with FileLock(f"{part}.lock"):  # which it removes: Windows renames no file that is open
            _drop_foreign(part)
            part.touch()
            try:
                yield
            finally:
                _drop_if_empty(part)
        return
    while True:
        _drop_foreign(part)
        descriptor = not_through_a_link(part, os.O_RDWR | os.O_CREAT)
        try:
            with suppress(OSError):  # a volume without locks, where one waits for nobody
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not is_at(descriptor, part):  # who had it has finished
                continue
            try:
                yield
            finally:
                _drop_if_empty(part)
            return
        finally:
            os.close(descriptor)


def _drop_if_empty(part: Path) -> None:
    with suppress(FileNotFoundError):
        if part.stat().st_size == 0:
            part.unlink()


def _fetch_from(
    url: str, remote: Remote, part: Path, progress: Progress | None, attempts: int, pause: float
) -> None:
    problem = ""
    for attempt in range(attempts):
        resumed = part.stat().st_size > 0
        measured = True
        try:
            measured = _transfer(url, part, remote.name, progress)
            verify(part, remote)
            return
        except urllib.error.HTTPError as error:
            error.close()
            said, *_ = str(error.reason).split("\n")  # three lines, of a redirection in a circle
            problem = f"{url} answered {error.code} {said}"
            if error.code < 500 and error.code not in (408, 416, 429):
                raise DownloadError(problem) from None  # asking again would not change it
            if error.code == 416:
                # nothing after what we have: it is the whole file, or a wrong one
                if _is_right(part, remote):
                    return
                _empty(part)
        except ChecksumError as error:
            # Wrong bytes are never worth keeping. Where their start came from an earlier call the
            # file may have changed in between, and one without a length may have been cut: once
            # more from zero. Else this url is wrong.
            _empty(part)
            problem = str(error).replace(str(part), url)
            if measured and not resumed:
                raise DownloadError(problem) from None
            if not measured:
                problem += " (its server gave no length: the transfer may have been cut)"
        except DownloadError:
            raise
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            problem = f"{url}: {reason}"
        if attempt + 1 < attempts:
            time.sleep(pause * 2**attempt)
    raise DownloadError(problem)


def _empty(part: Path) -> None:
    with open(part, "wb", opener=not_through_a_link):
        pass


def _drop_foreign(part: Path) -> None:
    """Remove what is not a file of this user's alone: writing to a link would write elsewhere."""
    try:
        found = part.lstat()
    except FileNotFoundError:
        return
    other = hasattr(os, "getuid") and found.st_uid != os.getuid()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or other:
        part.unlink()


def _is_right(part: Path, remote: Remote) -> bool:
    try:
        verify(part, remote)
    except ChecksumError:
        return False
    return True


def _transfer(url: str, part: Path, name: str, progress: Progress | None) -> bool:
    """Fetch what is missing of ``part``; whether the server said how many bytes that are."""
    have = part.stat().st_size
    headers = {"User-Agent": "longtail", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        if response.status != 206 or not _continues(response.headers.get("Content-Range"), have):
            if response.status == 206:
                _empty(part)
                raise ConnectionError("the server sent another part of the file than asked for")
            have = 0
        length = _length(url, response.headers.get("Content-Length"))
        total = None if length is None else have + length
        with open(part, "ab" if have else "wb", opener=not_through_a_link) as file:
            done = _copy(response, file, have, total, name, progress)
    if total is not None and done != total:
        raise ConnectionError(f"the connection closed after {done} of {total} bytes")
    return total is not None


def _length(url: str, said: str | None) -> int | None:
    """The bytes that an answer has, where it says so."""
    if said is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", said):
        raise DownloadError(f"{url} answered with Content-Length {said!r}, not a number of bytes")
    return int(said)


def _continues(content_range: str | None, have: int) -> bool:
    return have > 0 and content_range is not None and content_range.startswith(f"bytes {have}-")


def _copy(
    source: BinaryIO,
    file: BinaryIO,
    done: int,
    total: int | None,
    name: str,
    progress: Progress | None,
) -> int:
    while chunk := source.read(CHUNK):
        file.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(name, done, total)
    return done
