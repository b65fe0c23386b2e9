"""A run whose weights are not finite says so, wherever its scores are shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail.cli import main
from longtail.report.results import load
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail.training.divergence import Divergence

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
    assert divergence.found() == 1


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
    found = {run.config["train"]["lr"]: run.metric("RP") for run in load(tmp_path).runs}
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
