"""The command line where fcntl, fork, process groups and blocked signals do not exist."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longtail.cli import main

SCRIPT = Path(__file__).parents[1] / "helpers" / "without_posix.py"
STUDY = """
benchmark = "toy"
methods = ["finetune"]
stack = false
[data]
tasks = 4
zero_shot = 0
"""
COMMANDS = (
    "list",
    "run synthetic --tasks 5 --d 8 --l 4 --cap 30 --epochs 2 --quiet --out run",
    "study s.toml --out out --jobs 2 --no-report",
)


def test_the_commands_need_nothing_of_posix(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    command = [sys.executable, str(SCRIPT), *" --and ".join(COMMANDS).split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "policies\n" in done.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["tasks"] == 5
    assert "2 runs computed, 0 were finished before" in done.stdout
    assert len(list((tmp_path / "out").glob("runs/*/summary.json"))) == 2


def test_a_pipe_of_few_letters_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where what is not typed into a terminal is in the letters of one language."""
    written = io.BytesIO()
    pipe = io.TextIOWrapper(written, encoding="cp1252", write_through=True)
    monkeypatch.setattr(sys, "stdout", pipe)
    assert main(["run", "toy", "--method", "ewc", "--help"]) == 0
    assert b"weight ? of the penalty" in written.getvalue()
    pipe.detach()
