"""A plan says how long it will take, from what is finished or a few steps, and never waits long."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from helpers.user_project import BENCHMARK, Project
from longtail import cli
from longtail.study import estimate
from longtail.study.expand import expand
from longtail.study.file import read_study
from longtail.study.jobs import finished_runs, make_jobs
from longtail.study.reuse import survey
from longtail.tasks import Examples
from longtail.training import Run, train

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY.format(seeds=[0]))
    out = tmp_path / "out"
    assert cli.main(["study", str(path), "--out", str(out), "--quiet", "--no-report"]) == 0
    (timing,) = out.glob("runs/*/timing.json")
    timing.write_text(json.dumps({**json.loads(timing.read_text()), "seconds": 7200.0}))
    path.write_text(STUDY.format(seeds=[0, 1, 2]))
    monkeypatch.setattr(estimate, "_sample_all", lambda *_: pytest.fail("it was measured"))
    assert dry_run(path) == 0
    assert "Estimate: about 4.0 h" in capsys.readouterr().out


def test_what_takes_long_to_begin_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As WSD does, whose first step is minutes away."""
    project = Project(tmp_path, monkeypatch)
    slow = BENCHMARK.format(file="'weeks.csv'").replace(
        "def build(settings, seed):", "def build(settings, seed):\n    import time; time.sleep(600)"
    )
    project.write("es_slow", slow)
    project.write_numbers(8)
    path = tmp_path / "s.toml"
    path.write_text('benchmark = "es_slow"\npolicies = ["new"]\n')
    runs = expand(read_study(path))
    jobs = make_jobs(runs, tmp_path, stack=False, earlier={})
    monkeypatch.setattr(estimate, "LIMIT", 1.0)
    began = time.monotonic()
    text = estimate.estimate(jobs, survey(runs, runs, finished_runs(tmp_path), {}), 1, "cpu")
    assert text.startswith("No estimate: their first steps take longer than 1 s")
    assert time.monotonic() - began < 60


def test_why_nothing_could_be_measured_is_a_line_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sent = tmp_path / "s.toml", []
    path.write_text(STUDY.format(seeds=[0]))
    jobs = make_jobs(expand(read_study(path)), tmp_path, stack=False, earlier={})

    def out_of_luck(*_: object) -> None:
        raise RuntimeError("CUDA error: out of luck")

    monkeypatch.setattr(estimate, "build_run", out_of_luck)
    estimate._sample_all(SimpleNamespace(send=sent.append), jobs, "cpu")  # pyright: ignore
    assert sent == [(estimate.kind(jobs[0]), 0.0, "CUDA error: out of luck")]


@pytest.mark.parametrize(("method", "batch"), [("finetune", 5000), ("multitask", 100)])
def test_the_end_of_a_task_is_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, batch: int
) -> None:
    """By a clock on which a step takes a second, and nothing else takes any time."""
    path = tmp_path / "s.toml"
    settings = f'methods = ["{method}"]\ntrain.batch_size = {batch}\ntrain.epochs = 1\n'
    path.write_text(settings + STUDY.format(seeds=[0]).replace("tasks = 4", "tasks = 40"))
    jobs = make_jobs(expand(read_study(path)), tmp_path, stack=False, earlier={})
    now, sizes = [0.0], []

    def one_step(run: Run, examples: Examples, index: Tensor) -> None:
        now[0] += 1.0

    def by_the_clock(run: Run, **keywords: Any) -> None:
        sizes.extend(run.sequence.train_sizes.tolist())
        run.take_step = one_step  # pyright: ignore
        train(run, **keywords)

    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(estimate, "train", by_the_clock)
    seconds = estimate._sample(jobs[0], "cpu")
    # a task fits into a step; in multitask training all of them are one task
    steps = len(sizes) if method == "finetune" else -(-sum(sizes) // batch)
    assert steps > 2 * estimate.SECONDS
    assert seconds == pytest.approx(steps)


@pytest.mark.slow
def test_a_few_steps_tell_where_nothing_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY.format(seeds=[0, 1]))
    assert dry_run(path) == 0
    assert "Estimate: about" in capsys.readouterr().out
