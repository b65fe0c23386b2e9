"""An unfinished study's scores are those of a study with fewer tasks."""

import json
import os
import signal

import pytest

from helpers import scripts
from longtail.report.results import load
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_stack
from longtail.support.signals import Stopped

SMALL = {
    "data.miniature": True, "data.cap": 2, "data.test_cap": 1, "train.epochs": 1,
    "train.validation": 0.0, "train.lr": 1e-3, "train.evaluate_at": [3, 6],
}  # fmt: skip

QUIET = RunOptions(quiet=True)


@pytest.fixture
def script():
    return scripts.load("bench/tools/wsd_partial.py")


def configs(tasks: int):
    settings = {**SMALL, "data.tasks": tasks}
    return [resolve("wsd", flags={**settings, "optimizer": p}) for p in ("continual", "reset")]


def test_the_first_tasks_are_a_study_of_their_own(script, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("longtail.runs.session.PARTIAL_SECONDS", -1.0)
    runs = tmp_path / "runs"
    with pytest.raises(Stopped):
        train_stack(configs(9), runs / "stacks" / "a", QUIET, on_step=_stop_after_task(7))
    plan = {
        "name": "x", "report": {"title": "X"}, "select": {"key": "train.lr"},
        "runs": [{"id": c.id, "seed": 0, "labels": {"method": "finetune"}} for c in configs(9)],
    }  # fmt: skip
    (runs / "plan.json").write_text(json.dumps(plan))
    assert script.rewrite(runs, tmp_path / "part") == {"a": 6}
    expected = train_stack(configs(6), tmp_path / "whole", QUIET)
    found = json.loads((tmp_path / "part" / "stacks" / "a" / "runs.json").read_text())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["id"] == theirs["id"]
        assert ours["summary"].items() <= theirs["summary"].items()
        assert {"RP", "LP", "late", "polysemous", "breakdown"} <= set(ours["summary"])
    read = load(tmp_path / "part")
    assert [run.status for run in read.finished] == ["finished"] * 2
    assert read.plan["report"]["title"] == "X, first 6 tasks"
    scores = read.runs[0].scores
    assert scores is not None
    assert scores.after.tolist() == [1, 3, 6]


def test_a_folder_without_partial_scores_is_named(script, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"partial\.npz"):
        script.rewrite(tmp_path, tmp_path / "out")


def _stop_after_task(task: int):
    def on_step(run) -> None:
        if run.position.task == task:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step
