"""What is written is whole, and lands nowhere but under its own name."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import pytest

from longtail.support import files
from longtail.support.files import (
    FolderBusyError,
    FolderLock,
    open_new,
    remove_temporary,
    write_atomic,
)


def test_links_planted_under_a_temporary_name_are_not_followed(tmp_path: Path):
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / ".table.json.tmp").symlink_to(other)
    write_atomic(tmp_path / "table.json", "{}")
    assert other.read_text() == "precious"
    assert (tmp_path / "table.json").read_text() == "{}"


def test_a_new_file_is_never_one_that_is_there(tmp_path: Path, monkeypatch):
    names = iter(["taken", "taken", "free"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(names))
    (tmp_path / "x.taken.tmp").symlink_to(tmp_path / "elsewhere")
    file, path = open_new(tmp_path, "x")
    file.close()
    assert path.name == "x.free.tmp"
    assert not (tmp_path / "elsewhere").exists()


def test_temporary_names_differ_and_files_have_the_usual_mode(tmp_path: Path):
    before = os.umask(0o022)
    try:
        found = [open_new(tmp_path, "x") for _ in range(3)]
        write_atomic(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert len({path for _, path in found}) == 3
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    for file, _ in found:
        file.close()
    remove_temporary(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


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


@pytest.mark.parametrize("made", [False, True], ids=["the folder stays", "it is removed too"])
def test_a_lock_on_a_file_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
):
    """The first gives the folder back, leaving nothing, when the second has opened the file."""
    folder = tmp_path / "run"
    if not made:
        folder.mkdir()
    first, flock, asked = FolderLock(folder), fcntl.flock, []
    first.__enter__()
    first.leave_nothing()

    def late(file: IO[str], how: int) -> None:
        asked.append(file)
        if len(asked) == 1:
            first.__exit__()
            assert not (folder / ".lock").exists()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with FolderLock(folder):
        assert len(asked) == 2
        with pytest.raises(FolderBusyError, match=f"is in use by process {os.getpid()}"):
            FolderLock(folder).__enter__()


def test_a_folder_that_is_removed_before_the_lock_is_opened_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, opened = tmp_path / "run", FolderLock._opened

    def late(lock: FolderLock) -> IO[str] | None:
        monkeypatch.setattr(FolderLock, "_opened", opened)
        folder.rmdir()
        return opened(lock)

    monkeypatch.setattr(FolderLock, "_opened", late)
    with FolderLock(folder):
        assert (folder / ".lock").exists()


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
