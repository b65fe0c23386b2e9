"""A run whose weights or losses are not finite says so, wherever its scores are shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.reported import runs_of
from longtail.cli import main
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail.training.divergence import WAITING, Divergence

QUIET = RunOptions("cpu", threads=1, quiet=True)
SMALL = ["--tasks", "4", "--zero-shot", "0", "--features", "4", "--cap", "20"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_task_with_a_bad_weight_is_kept(bad: float):
    params = [nn.Parameter(torch.full((3,), 3e38)), nn.Parameter(torch.ones(2))]
    divergence = Divergence([params], ())
    divergence.look(0)
    assert divergence.found() is None  # large is not infinite, though its square would be
    params[1].data[0] = bad
    divergence.look(1)
    divergence.look(2)
    assert divergence.found() == (1, "weights")


def test_each_replica_has_its_own():
    groups = [[nn.Parameter(torch.ones(3, 2))], [nn.Parameter(torch.ones(3, 2))]]
    divergence = Divergence(groups, (2, 3))
    groups[1][0].data[2, 1] = math.nan
    divergence.look(5)
    assert divergence.first.tolist() == [[-1, -1, -1], [-1, -1, 5]]


def test_a_run_that_diverges_warns_once_and_is_marked_in_summary_and_table(tmp_path, capfd):
    out = tmp_path / "run"
    assert main(["run", "toy", *SMALL, "--lr", "1e30", "--out", str(out), "--device", "cpu"]) == 0
    said = capfd.readouterr()
    assert (said.out + said.err).count("diverged at task") == 1
    assert json.loads((out / "summary.json").read_text())["diverged_at"] == 0
    assert main(["report", str(out), "--no-figures", "--no-page"]) == 0
    assert "1 run diverged (NaN) and is left out" in (out / "table.md").read_text()
    (row,) = json.loads((out / "table.json").read_text())["rows"]
    assert (row["diverged"], row["RP"]) == (1, None)


def test_stop_on_nan_is_one_sentence_and_exit_code_1(tmp_path: Path, capsys):
    flags = ["--out", str(tmp_path / "run"), "--device", "cpu", "--lr", "1e30", "--stop-on-nan"]
    assert main(["run", "toy", *SMALL, *flags, "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("longtail: diverged at task 0")
    assert said.count("\n") == 1


def test_of_a_stack_only_the_diverged_seed_is_marked(tmp_path: Path):
    flags = {"data.tasks": 4, "data.zero_shot": 0, "data.features": 4, "data.cap": 20}
    configs = [resolve("toy", flags={**flags, "train.lr": lr}) for lr in (1e-3, 1e30)]
    entries = train_stack(configs, tmp_path, QUIET)
    assert [entry["summary"].get("diverged_at") for entry in entries] == [None, 0]
    found = {run.config["train"]["lr"]: run.numbers["RP"] for run in runs_of(tmp_path)}
    assert math.isfinite(found[1e-3])
    assert math.isnan(found[1e30])


def test_where_it_diverged_outlives_an_interruption(tmp_path: Path):
    flags = {"data.tasks": 4, "data.zero_shot": 0, "data.features": 4, "data.cap": 20}
    config = resolve("toy", flags={**flags, "train.lr": 1e30})

    def stop(run) -> None:
        if run.position.task == 2:
            raise EOFError

    options = RunOptions("cpu", threads=1, snapshot_minutes=0, quiet=True)
    with pytest.raises(EOFError):
        train_run(config, tmp_path, options, on_step=stop)
    assert train_run(config, tmp_path, options)["diverged_at"] == 0


def test_tasks_with_a_bad_loss_are_counted_and_the_first_is_kept():
    divergence = Divergence([[nn.Parameter(torch.ones(2))]], ())
    for task in range(WAITING + 5):  # more than are looked at in one go
        for value in (3e38, 3e38, math.nan if task in (3, WAITING + 2) else 1.0):
            divergence.note(torch.tensor(value, requires_grad=True))
        divergence.look(task)
    assert divergence.bad_losses == 2
    assert divergence.found() == (3, "losses")


def test_a_bad_loss_in_the_middle_of_a_task_outlives_an_interruption():
    before, after = (Divergence([[nn.Parameter(torch.ones(2))]], ()) for _ in range(2))
    before.note(torch.tensor(math.inf))
    after.load_losses_dict(before.losses_dict())
    after.note(torch.tensor(1.0))
    after.look(7)
    assert after.found() == (7, "losses")


FLAGS = {"data.tasks": 4, "data.zero_shot": 0, "data.features": 4, "data.cap": 20}


def _bad_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss is infinite, and its gradient as it was: as where a scaler skips the steps."""
    from longtail.methods import Method

    loss = Method.loss
    monkeypatch.setattr(Method, "loss", lambda self, batch: loss(self, batch) + math.inf)


def test_losses_that_are_not_finite_are_told_though_the_weights_are(
    tmp_path: Path, monkeypatch, capfd
):
    config = resolve("toy", flags=FLAGS)
    whole = train_run(config, tmp_path / "whole", QUIET)
    assert "nonfinite_losses" not in whole
    _bad_losses(monkeypatch)
    found = train_run(config, tmp_path / "bad", QUIET)
    assert found.pop("nonfinite_losses") == 4  # tasks
    assert found == whole
    said = capfd.readouterr().err
    assert said.count("diverged at task 0 (task 0): losses are infinite or not a number") == 1


def test_stop_on_nan_stops_for_losses_too(tmp_path: Path, monkeypatch):
    _bad_losses(monkeypatch)
    options = RunOptions("cpu", threads=1, quiet=True, stop_on_nan=True)
    with pytest.raises(FloatingPointError, match=r"task 0 .*losses are infinite"):
        train_run(resolve("toy", flags=FLAGS), tmp_path, options)


def test_in_a_study_the_run_that_diverges_fails_and_the_others_go_on(tmp_path: Path, capsys):
    file, out = tmp_path / "a.toml", tmp_path / "out"
    file.write_text(
        'benchmark = "toy"\npolicies = ["continual"]\nstack = false\n'
        "[data]\ntasks = 4\nzero_shot = 0\nfeatures = 4\ncap = 20\n"
        '[grid]\n"train.lr" = [1e-3, 1e30]\n'
    )
    flags = ["--out", str(out), "--device", "cpu", "--quiet", "--no-report"]
    assert main(["study", str(file), *flags, "--stop-on-nan"]) == 1
    assert "diverged at task 0" in capsys.readouterr().err
    (failed,) = out.glob("runs/*/error.json")
    assert "FloatingPointError" in failed.read_text()
    assert len(list(out.glob("runs/*/summary.json"))) == 1
    assert main(["study", str(file), *flags]) == 0  # without it the run is trained to its end
    assert len(list(out.glob("runs/*/summary.json"))) == 2
