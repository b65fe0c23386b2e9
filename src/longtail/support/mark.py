"""The mark by which a folder of ours is known, and what may be written to a folder without it.

Every folder that we make holds `.longtail.json` from its very beginning:

    {"kind": "run"}                     or stack, study, studies (several of them), report
    {"kind": "run", "report": true}     tables, figures and a page were written into it, too

Where there is no mark, everything is somebody else's: nothing is written over, nothing removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from longtail.support.files import (
    LOCK,
    FolderLock,
    is_draft,
    parse_json,
    refusing,
    write_json,
)

MARK = ".longtail.json"

Kind = Literal["run", "stack", "study", "studies", "report"]
PUT_TOGETHER: tuple[Kind, ...] = ("study", "studies")  # people copy such a folder's pieces to it


@dataclass(frozen=True)
class Mark:
    """What a folder's mark says.

    Args:
        kind: of the folder.
        report: whether a report has been written into it.
    """

    kind: str
    report: bool = False


def read_mark(folder: Path) -> Mark | None:
    """The mark of a folder; None where there is none, or what has its name is none of ours."""
    path = folder / MARK
    try:
        if path.is_symlink():
            return None
        content = parse_json(path, dict)
    except (OSError, ValueError):
        return None
    kind, report = content.get("kind"), content.get("report", False)
    if not isinstance(kind, str) or not isinstance(report, bool):
        return None
    return Mark(kind, report)


def write_mark(folder: Path, mark: Mark) -> None:
    report = {"report": True} if mark.report else {}
    write_json(folder / MARK, {"kind": mark.kind, **report})


@dataclass
class Taken:
    """A folder that this process holds.

    Args:
        folder: which has its mark.
        new: whether it was new, or empty, or not ours until now.
    """

    folder: Path
    new: bool
    _lock: FolderLock = field(repr=False)

    def leave_nothing(self) -> None:
        """When the folder is given back, it shall be as it was before it was taken."""
        if self.new:
            (self.folder / MARK).unlink(missing_ok=True)
        self._lock.leave_nothing()


@contextmanager
def taken(folder: Path, kind: Kind, writes: Collection[str] = ()) -> Iterator[Taken]:
    """Within ``with``, the folder is this process's alone, and marked.

    Args:
        folder: made where it is new.
        kind: what it will be.
        writes: names of the files that will be written there; see `refuse_strangers`.

    Raises:
        ValueError: it is somebody else's, or of another kind, or a living process holds it, or it
            cannot be made.
    """
    refuse_strangers(folder, kind, writes)  # before the lock, too, is written there
    with FolderLock(folder) as lock:
        refuse_strangers(folder, kind, writes, held=True)  # another process may have been faster
        mark = read_mark(folder)
        if mark is None or mark.kind != kind:
            report = mark is not None and mark.report
            with refusing(folder, "cannot be written to"):
                write_mark(folder, Mark(kind, report))
        yield Taken(folder, new=mark is None, _lock=lock)


def refuse_strangers(
    folder: Path, kind: Kind, writes: Collection[str] = (), *, held: bool = False
) -> None:
    """Refuse a folder that is neither new, nor empty, nor a folder of ours of this kind.

    A study's may also hold folders of ours and nothing else, as people copy its pieces from several
    machines. Or a report was made of these pieces first: then files of its user's may lie beside
    them, and must have none of the names in ``writes``.

    Args:
        folder: may be one that is not there yet.
        kind: what it would be.
        writes: names of the files that would be written there.
        held: whether this process holds it, so that the lock is ours.
    """
    mark = read_mark(folder)
    if mark is not None and mark.kind != kind:
        if mark.kind != "report" or kind not in PUT_TOGETHER:
            raise ValueError(
                f"{folder} is the folder of a {mark.kind}, and this would make it that of a "
                f"{kind}: choose another --out"
            )
        _refuse_names(folder, writes)
    if mark is None:
        names = [name for name in _content(folder) if not (held and name == LOCK)]
        for name in names:
            if kind not in PUT_TOGETHER or not _is_ours(folder / name):
                raise ValueError(
                    f"{folder} is not empty, and no folder that longtail made (it holds {name}): "
                    "choose a new or an empty folder for --out"
                )


def take_for_report(folder: Path, names: Collection[str], *, source: bool) -> None:
    """Mark a folder for a report, or refuse it.

    Args:
        folder: where the report goes; made where it is new.
        names: of the files and folders that will be written there.
        source: whether it is the folder that is reported on. If it is none of ours by itself, all
            folders in it must be, and no file may have one of these names.
    """
    mark = read_mark(folder)
    if mark is not None and mark.report:
        return
    if mark is None and source:
        _require_folders_of_ours(folder)
    elif mark is None:
        refuse_strangers(folder, "report")
    try:
        _refuse_names(folder, names)
    except ValueError:
        again = read_mark(folder)
        if again is not None and again.report:  # another process writes its report just now
            return
        raise
    with refusing(folder, "cannot be made a folder"):
        folder.mkdir(parents=True, exist_ok=True)
    with refusing(folder, "cannot be written to"):
        write_mark(folder, Mark("report" if mark is None else mark.kind, report=True))


def _require_folders_of_ours(folder: Path) -> None:
    entries = [folder / name for name in _content(folder)]
    folders = [path for path in entries if path.is_dir() and not path.is_symlink()]
    for path in folders:
        if not _is_ours(path):
            raise ValueError(
                f"{folder} holds {path.name}, a folder that longtail did not make: say with --out "
                "where the report shall be written"
            )
    if not folders:
        raise ValueError(
            f"{folder} is no folder that longtail made: say with --out where the report shall be "
            "written"
        )


def _refuse_names(folder: Path, names: Collection[str]) -> None:
    for name in (*names, MARK) if read_mark(folder) is None else names:
        if os.path.lexists(folder / name):
            raise ValueError(
                f"{folder / name} is not longtail's, and would be written over: move it, or choose "
                "another --out"
            )


def _is_ours(path: Path) -> bool:
    """Whether a folder has the mark, or holds nothing but folders of which that is so."""
    if path.is_symlink() or not path.is_dir():
        return False
    if read_mark(path) is not None:
        return True
    names = _content(path)
    return bool(names) and all(_is_ours(path / name) for name in names)


def _content(folder: Path) -> list[str]:
    """What is in a folder, but for what we leave behind when killed at its very beginning."""
    if not os.path.isdir(folder):  # a file under this name is refused where a folder shall be made
        return []
    with refusing(folder, "cannot be read"):
        names = sorted(os.listdir(folder))
    return [name for name in names if not _is_our_beginning(folder / name)]


def _is_our_beginning(path: Path) -> bool:
    if path.name == LOCK:
        state = path.lstat()
        return stat.S_ISREG(state.st_mode) and state.st_size == 0
    return path.name.startswith(f".{MARK}.") and is_draft(path.name)
