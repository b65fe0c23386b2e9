from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from longtail.runs.files import Journal, RunFiles, StackFiles, StudyFiles


def test_files_are_read_and_written_without_torch():
    code = "import sys, longtail.runs.files; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_journal_wrote_is_read_until_the_line_that_is_cut_off(tmp_path: Path):
    files = RunFiles(tmp_path)
    journal = Journal(files.scores)
    journal.append(0, range(1), np.array([0.5]))
    journal.append(1, range(2), np.array([np.nan, 0.25]))
    with open(files.scores, "a") as file:
        file.write('{"after": 2, "sco')
    journal.close()
    found = [(after, list(tasks), scores) for after, tasks, scores in files.read_evaluations()]
    assert [(after, tasks) for after, tasks, _ in found] == [(0, [0]), (1, [0, 1])]
    np.testing.assert_array_equal(found[1][2], [np.nan, 0.25])


def test_damaged_files_are_named(tmp_path: Path):
    run, stack = RunFiles(tmp_path), StackFiles(tmp_path)
    run.settings.write_text("][")
    with pytest.raises(ValueError, match=r"^config\.toml: "):
        run.read_settings()
    stack.result.write_text('[{"id": "a"}]')
    with pytest.raises(ValueError, match=r"^runs\.json has an entry without id, config or summary"):
        stack.read_ids()


def test_a_study_finds_what_is_finished(tmp_path: Path):
    study = StudyFiles(tmp_path)
    for folder in (study.run("a"), study.run("b"), study.stack("c")):
        folder.folder.mkdir(parents=True)
    study.run("a").finish(["a"], {"RP": 1.0})
    entries = [{"id": i, "config": {}, "summary": {}} for i in ("d", "e")]
    study.stack("c").finish(["d", "e"], entries)
    assert set().union(*(files.read_ids() for files in study.finished())) == {"a", "d", "e"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"after": 0, "scores": {"0": 1.0}}', "line 3 is out of order: after task 0, but before"),
        ('{"after": 2}', "line 3 has no scores"),
        ("[1]", "line 3 has no scores"),
        ('{"after": 2, "scores": {"-1": 1.0}}', "line 3 has scores of what is no task"),
    ],
)
def test_a_line_of_scores_that_cannot_be_is_named(tmp_path: Path, line: str, said: str):
    first = "".join(f'{{"after": {i}, "scores": {{"{i}": 0.5}}}}\n' for i in range(2))
    RunFiles(tmp_path).scores.write_text(f"{first}{line}\n")
    with pytest.raises(ValueError, match=said):
        list(RunFiles(tmp_path).read_evaluations())


def test_arrays_with_a_damaged_header_are_a_value_error(tmp_path: Path):
    files = StackFiles(tmp_path)
    files.write_scores({"own": np.ones(3)})
    content = files.scores.read_bytes()
    for damaged in (content.replace(b"'descr'", b"'des(r("), content.replace(b"\n", b"(")):
        files.scores.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"."):
            files.read_scores()
