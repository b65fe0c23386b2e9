"""A plan says how long it will take, from what is finished, and trains nothing to find out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longtail import cli

STUDY = """
benchmark = "toy"
policies = ["new"]
seeds = {seeds}
stack = false
[data]
tasks = 4
zero_shot = 0
"""


def dry_run(path: Path) -> int:
    return cli.main(["study", str(path), "--out", str(path.parent / "out"), "--dry-run"])


def test_finished_runs_tell_how_long_others_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY.format(seeds=[0]))
    out = tmp_path / "out"
    assert cli.main(["study", str(path), "--out", str(out), "--quiet", "--no-report"]) == 0
    (timing,) = out.glob("runs/*/timing.json")
    timing.write_text(json.dumps({**json.loads(timing.read_text()), "seconds": 7200.0}))
    path.write_text(STUDY.format(seeds=[0, 1, 2]))
    assert dry_run(path) == 0
    assert "Estimate: about 4.0 h" in capsys.readouterr().out


def test_where_nothing_is_finished_nothing_is_trained_and_a_sentence_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY.format(seeds=[0, 1]))
    assert dry_run(path) == 0
    assert "No estimate: no run of their kind is finished here." in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
