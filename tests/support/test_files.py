"""What is written is whole, and lands nowhere but under its own name."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longtail.support import files
from longtail.support.files import (
    FolderBusyError,
    FolderLock,
    replacing,
    write_atomic,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_under_the_name_is_replaced_and_its_target_left_alone(tmp_path: Path):
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "table.json").symlink_to(other)
    write_atomic(tmp_path / "table.json", "{}")
    assert other.read_text() == "precious"
    assert not (tmp_path / "table.json").is_symlink()
    assert (tmp_path / "table.json").read_text() == "{}"


def test_a_draft_is_never_a_file_that_is_there(tmp_path: Path, monkeypatch):
    chances = iter(["0" * 16, "0" * 16, "1" * 16])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(chances))
    with replacing(tmp_path / "x") as file:
        file.write(b"one")
        [draft] = names(tmp_path)
        (tmp_path / draft.replace("0" * 16, "1" * 16)).touch()
    (tmp_path / draft).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("secrets.token_hex", lambda _: next(chances, "2" * 16))
    with replacing(tmp_path / "x") as file:
        file.write(b"two")
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "x").read_bytes() == b"two"


def test_a_large_file_is_written_piece_by_piece_and_has_the_usual_mode(tmp_path: Path):
    before = os.umask(0o022)
    (tmp_path / "a").write_text("old")
    try:
        with replacing(tmp_path / "a", buffering=0) as file:
            for _ in range(3):
                file.write(b"piece")
            assert (tmp_path / "a").read_text() == "old"
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_text() == "piecepiecepiece"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_where_writing_fails_the_old_file_stays_and_no_draft(tmp_path: Path):
    write_atomic(tmp_path / "a", "old")

    def interrupted() -> None:
        with replacing(tmp_path / "a") as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a") as caught:
        write_atomic(tmp_path / "a", "text")
    assert caught.value.filename == str(tmp_path / "a")
    assert names(tmp_path) == ["a"]


KILLED = """
import os, sys
from pathlib import Path
from longtail.support.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def begin_to_write(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    return child


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_the_draft_of_a_killed_process_is_cleaned_by_the_next_save_of_that_file(tmp_path: Path):
    for name in ("a", "a.b"):
        kill(begin_to_write(tmp_path / name))
    assert len(names(tmp_path)) == 2
    write_atomic(tmp_path / "other", "text")
    (tmp_path / "mine.tmp").mkdir()
    (tmp_path / ".a.tmp").touch()
    (tmp_path / ".a.0123-4567.draft").touch()
    assert len(names(tmp_path)) == 6
    write_atomic(tmp_path / "a", "text")
    left = names(tmp_path)
    assert len(left) == 6
    assert left[0] == ".a.0123-4567.draft"
    assert left[1].startswith(".a.b.")
    write_atomic(tmp_path / "a.b", "text")
    assert names(tmp_path) == [".a.0123-4567.draft", ".a.tmp", "a", "a.b", "mine.tmp", "other"]


def test_the_draft_of_a_living_process_stays_and_both_files_are_whole(tmp_path: Path):
    child = begin_to_write(tmp_path / "a")
    write_atomic(tmp_path / "a", "mine")
    assert len(names(tmp_path)) == 2
    assert (tmp_path / "a").read_text() == "mine"
    child.communicate("")
    assert child.returncode == 0
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "half"


def test_a_draft_from_another_machine_is_dead_after_a_day_without_a_write(tmp_path: Path):
    draft = tmp_path / f".a.{'f' * 8}-{'0' * 16}.draft"
    draft.touch()
    write_atomic(tmp_path / "a", "text")
    assert draft.exists()
    os.utime(draft, (time.time() - 25 * 3600,) * 2)
    write_atomic(tmp_path / "a", "text")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_volume_without_locks_keeps_fresh_drafts(tmp_path: Path, monkeypatch, error: int):
    kill(begin_to_write(tmp_path / "a"))
    [draft] = tmp_path.iterdir()

    def none(file: int, how: int) -> None:
        raise OSError(error, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    write_atomic(tmp_path / "a", "text")
    assert draft.exists()
    os.utime(draft, (0, 0))
    write_atomic(tmp_path / "a", "text")
    assert names(tmp_path) == ["a"]


def test_a_draft_taken_for_a_dead_one_before_it_was_locked_is_begun_again(
    tmp_path: Path, monkeypatch
):
    flock, removed = fcntl.flock, []

    def late(file: int, how: int) -> None:
        if not removed:
            [draft] = tmp_path.iterdir()
            draft.unlink()
            removed.append(draft)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_atomic(tmp_path / "a", "text")
    assert removed
    assert names(tmp_path) == ["a"]


def test_a_folder_that_is_not_there_is_named_by_the_file_that_was_asked_for(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "none" / "a", "text")
    assert caught.value.filename == str(tmp_path / "none" / "a")


def test_a_link_in_the_place_of_the_lock_is_refused_and_its_target_left_alone(tmp_path: Path):
    other = tmp_path / "other"
    other.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").symlink_to(other)
    with pytest.raises(ValueError, match="cannot be written to"), FolderLock(folder):
        pass
    assert other.read_text() == "precious"


@pytest.mark.parametrize("removed", [False, True], ids=["held", "held, and its file is removed"])
def test_a_folder_belongs_to_one_process(tmp_path: Path, removed: bool):
    with FolderLock(tmp_path):
        if removed:
            (tmp_path / ".lock").unlink()
        with pytest.raises(FolderBusyError, match="is in use by another process"):
            FolderLock(tmp_path).__enter__()
    with FolderLock(tmp_path):
        pass


def test_leaving_nothing_removes_the_folders_that_were_made_and_no_others(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    with FolderLock(tmp_path / "mine" / "runs" / "one") as lock:
        lock.leave_nothing()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    with FolderLock(tmp_path / "mine") as lock:
        lock.leave_nothing()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]
    with FolderLock(tmp_path / "mine" / "runs" / "two") as lock:
        (tmp_path / "mine" / "runs" / "notes.txt").touch()
        lock.leave_nothing()
    assert [path.name for path in (tmp_path / "mine" / "runs").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("out", ["a" * 300, f"{'a' * 300}/run"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, out: str):
    with pytest.raises(ValueError, match=r"--out .*: cannot be made a folder \(.+\)"):
        FolderLock(tmp_path / out).__enter__()


def test_where_there_is_no_fcntl_a_folder_is_held_all_the_same(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    with FolderLock(tmp_path / "run") as lock:
        with pytest.raises(FolderBusyError, match="is in use by another process"):
            FolderLock(tmp_path / "run").__enter__()
        lock.leave_nothing()
    assert not (tmp_path / "run").exists()
    with FolderLock(tmp_path / "run"):
        pass
    with FolderLock(tmp_path / "run"):
        pass


def test_a_system_without_the_flags_of_posix_writes_files_too(tmp_path: Path, monkeypatch):
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY"):
        monkeypatch.delattr(os, name, raising=False)
    write_atomic(tmp_path / "a", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
