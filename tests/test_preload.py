"""Workers that import beside their parent: when there are any, and that they work."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from longtail import preload


@pytest.mark.parametrize(
    ("line", "several"),
    [
        ("study a.toml --jobs 4", True),
        ("study a.toml --jobs=2", True),
        ("study a.toml", False),
        ("study a.toml --jobs 1", False),
        ("study a.toml --jobs 4 --dry-run", False),
        ("study a.toml --jobs 4 --engine ray", False),
        ("report a --jobs 4", False),
    ],
)
def test_only_several_local_processes_are_prepared(line: str, several: bool) -> None:
    assert preload.wanted(line.split()) is several


def test_without_a_start_workers_begin_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "_begun", False)  # another test may have started it
    assert preload.context().get_start_method() == "spawn"


def test_a_study_in_two_processes_computes_what_one_computes(tmp_path: Path) -> None:
    study = tmp_path / "small.toml"
    text = """
        benchmark = "toy"
        optimizers = ["continual", "reset"]
        seeds = "0-1"
        stack = false
        [data]
        tasks = 4
        zero_shot = 0
        """
    study.write_text(textwrap.dedent(text))
    found = {}
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        command = [sys.executable, "-m", "longtail.cli", "study", str(study), "--quiet"]
        command += ["--out", str(out), "--no-report", "--device", "cpu", "--jobs", jobs]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        found[jobs] = {p.parent.name: p.read_bytes() for p in out.glob("runs/*/summary.json")}
    assert len(found["1"]) == 4
    assert found["1"] == found["2"]
