"""Whose a folder is: what has the mark is ours, everything else is left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from longtail.support.files import FolderBusyError, write_atomic
from longtail.support.mark import (
    MARK,
    Mark,
    read_mark,
    refuse_strangers,
    take_for_report,
    taken,
    write_mark,
)

NAMES = ("table.json", "figures")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def marked(folder: Path, kind: str = "run") -> Path:
    folder.mkdir(parents=True)
    write_mark(folder, Mark(kind))
    return folder


def test_a_folder_is_taken_for_one_process_and_stays_marked(tmp_path: Path):
    out = tmp_path / "a" / "b"
    with taken(out, "run") as folder:
        assert folder.new
        with pytest.raises(FolderBusyError), taken(out, "run"):
            pass
    assert read_mark(out) == Mark("run")
    with taken(out, "run") as folder:
        assert not folder.new


def test_leaving_nothing_is_as_if_nobody_had_been_there(tmp_path: Path):
    with taken(tmp_path / "a" / "b", "run") as folder:
        folder.leave_nothing()
    assert names(tmp_path) == []
    out = marked(tmp_path / "ours")
    with taken(out, "run") as folder:
        folder.leave_nothing()
    assert names(out) == [MARK]


@pytest.mark.parametrize("content", ["", "[]", '{"kind": 3}', '{"kind": "run", "report": "yes"}'])
def test_a_file_that_says_no_kind_is_no_mark(tmp_path: Path, content: str):
    (tmp_path / MARK).write_text(content)
    assert read_mark(tmp_path) is None
    with pytest.raises(ValueError, match=rf"it holds {MARK}"):
        refuse_strangers(tmp_path, "run")


def test_a_link_to_a_mark_is_none(tmp_path: Path):
    ours, theirs = marked(tmp_path / "ours"), tmp_path / "theirs"
    theirs.mkdir()
    (theirs / MARK).symlink_to(ours / MARK)
    assert read_mark(theirs) is None


@pytest.mark.parametrize(("lock", "taken_for_ours"), [("", True), ("mine", False)])
def test_what_a_process_killed_at_the_very_beginning_leaves_is_ours(
    tmp_path: Path, lock: str, taken_for_ours: bool
):
    (tmp_path / ".lock").write_text(lock)
    (tmp_path / f".{MARK}.{'0' * 8}-{'0' * 16}.draft").touch()
    if taken_for_ours:
        refuse_strangers(tmp_path, "run")
    else:
        with pytest.raises(ValueError, match=r"it holds \.lock"):
            refuse_strangers(tmp_path, "run")
        assert (tmp_path / ".lock").read_text() == lock


@pytest.mark.parametrize("kind", ["stack", "study", "report"])
def test_a_folder_of_another_kind_is_refused(tmp_path: Path, kind):
    out = marked(tmp_path / "out")
    with pytest.raises(ValueError, match=f"folder of a run, .* that of a {kind}: choose another"):
        refuse_strangers(out, kind)


def test_a_study_is_put_together_of_folders_of_ours_and_of_nothing_else(tmp_path: Path):
    out = tmp_path / "both"
    marked(out / "runs" / "one")
    marked(out / "stacks" / "two", "stack")
    refuse_strangers(out, "study")
    with pytest.raises(ValueError, match="it holds runs"):
        refuse_strangers(out, "run")
    (out / "stacks" / "mine").mkdir()
    with pytest.raises(ValueError, match="it holds stacks"):
        refuse_strangers(out, "study")
    (out / "stacks" / "mine").rmdir()
    (out / "runs" / "linked").symlink_to(out / "stacks" / "two")
    with pytest.raises(ValueError, match="it holds runs"):
        refuse_strangers(out, "study")


def test_a_study_takes_a_folder_that_was_marked_for_a_report_of_its_pieces(tmp_path: Path):
    out = tmp_path / "both"
    marked(out / "runs" / "one")
    (out / "README.md").write_text("mine")
    (out / "plan.json").write_text("mine")
    take_for_report(out, NAMES, source=True)
    with pytest.raises(ValueError, match=r"plan\.json is not longtail's"):
        refuse_strangers(out, "study", ["plan.json"])
    (out / "plan.json").unlink()
    with taken(out, "study", ["plan.json"]):
        assert read_mark(out) == Mark("study", report=True)
    assert (out / "README.md").read_text() == "mine"


@pytest.mark.parametrize("kind", ["run", "study"])
def test_a_report_goes_into_a_folder_of_ours_once_nothing_is_in_its_way(tmp_path: Path, kind: str):
    out = marked(tmp_path / "out", kind)
    (out / "figures").mkdir()
    with pytest.raises(ValueError, match=r"figures is not longtail's, and would be written over"):
        take_for_report(out, NAMES, source=True)
    assert read_mark(out) == Mark(kind)
    (out / "figures").rmdir()
    take_for_report(out, NAMES, source=True)
    assert read_mark(out) == Mark(kind, report=True)
    write_atomic(out / "table.json", "ours")
    take_for_report(out, NAMES, source=False)


def test_a_report_is_not_written_beside_folders_of_others(tmp_path: Path):
    with pytest.raises(ValueError, match="no folder that longtail made: say with --out"):
        take_for_report(tmp_path, NAMES, source=True)
    marked(tmp_path / "one")
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match="holds data, a folder that longtail did not make"):
        take_for_report(tmp_path, NAMES, source=True)
    assert names(tmp_path) == ["data", "one"]
    (tmp_path / "data").rmdir()
    (tmp_path / "data").symlink_to(tmp_path / "one")
    take_for_report(tmp_path, NAMES, source=True)
    assert read_mark(tmp_path) == Mark("report", report=True)


def test_of_two_reports_at_once_neither_is_refused(tmp_path: Path, monkeypatch):
    """The other marks the folder, and writes its first file, after this one has looked."""
    out = marked(tmp_path / "out")

    def late(folder: Path) -> Mark | None:
        monkeypatch.undo()
        mark = read_mark(folder)
        write_mark(folder, Mark("run", report=True))
        write_atomic(folder / "table.json", "theirs")
        return mark

    monkeypatch.setattr("longtail.support.mark.read_mark", late)
    take_for_report(out, NAMES, source=True)
    assert read_mark(out) == Mark("run", report=True)
