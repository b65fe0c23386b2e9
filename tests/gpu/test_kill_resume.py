"""On a GPU: kill -9 and going on, with graphs and stacks; memory that is not there; bad losses."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longtail.cli import main
from longtail.methods import Method
from longtail.runs.config import resolve
from longtail.runs.integrity import check_folder
from longtail.runs.session import RunOptions, train_run
from longtail.runs.snapshot import Snapshots

pytestmark = pytest.mark.gpu
SMALL = ["--tasks", "40", "--zero-shot", "2", "--features", "6", "--hidden", "8", "--cap", "60"]
GPU = ["--device", "cuda", "--snapshot-minutes", "0", "--quiet"]
STUDY = """benchmark = "toy"
methods = ["finetune", "derpp"]
policies = ["continual", "new"]
seeds = "0-2"
[data]
tasks = 30
cap = 40
[train]
cuda_graph = true
"""


def killed_when_there_are_snapshots(arguments: list[str], folder: Path, count: int) -> bool:
    """Start a command, and kill it once it has written that many; whether it had to be."""
    command = [sys.executable, "-m", "longtail", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            numbers = [int(p.name[:8]) for p in folder.rglob("snapshot/[0-9]*.pt")]
            if sum(numbers) >= count:
                process.kill()
            time.sleep(0.005)
        _, said = process.communicate()
    assert process.returncode in (0, -9), said
    return process.returncode != 0


def near(whole: Path, pieces: Path) -> None:
    a, b = load_file(whole / "model.safetensors"), load_file(pieces / "model.safetensors")
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("graph", ["true", "false"])
@pytest.mark.parametrize("method", ["finetune", "ewc", "derpp", "agem"])
def test_a_killed_run_goes_on(method: str, graph: str, tmp_path: Path):
    settings = [
        "run",
        "toy",
        "--method",
        method,
        *SMALL,
        "--set",
        f"train.cuda_graph={graph}",
        *GPU,
    ]
    assert main([*settings, "--out", str(tmp_path / "whole")]) == 0
    arguments = [*settings, "--out", str(tmp_path / "pieces")]
    kills = sum(
        killed_when_there_are_snapshots(arguments, tmp_path / "pieces", count) for count in (20, 50)
    )
    assert kills == 2
    assert main(arguments) == 0
    assert not check_folder(tmp_path / "pieces").damaged
    near(tmp_path / "whole", tmp_path / "pieces")


def test_a_killed_study_of_stacks_goes_on(tmp_path: Path):
    file = tmp_path / "a.toml"
    file.write_text(STUDY)
    settings = ["study", str(file), *GPU, "--no-report"]
    assert main([*settings, "--out", str(tmp_path / "whole")]) == 0
    arguments = [*settings, "--out", str(tmp_path / "pieces")]
    assert killed_when_there_are_snapshots(arguments, tmp_path / "pieces", 15)
    assert main(arguments) == 0
    assert not check_folder(tmp_path / "pieces").damaged
    scores = sorted(
        path.relative_to(tmp_path / "whole") for path in tmp_path.rglob("whole/**/*.npz")
    )
    assert scores
    for path in scores:
        with np.load(tmp_path / "whole" / path) as a, np.load(tmp_path / "pieces" / path) as b:
            np.testing.assert_allclose(a["last"], b["last"], atol=0.1)  # one example of ten


def test_out_of_memory_in_the_middle_of_a_task(tmp_path: Path, monkeypatch, capsys):
    loss, steps = Method.loss, []

    def greedy(self: Method, batch):
        steps.append(1)
        if len(steps) == 30:
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        return loss(self, batch)

    arguments = ["run", "toy", *SMALL, *GPU]
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Method, "loss", greedy)
            assert main([*arguments, "--out", str(tmp_path / "a")]) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said = capsys.readouterr().err
    assert said.startswith("longtail: out of memory at task ")
    assert said.count("\n") == 1
    (*_, newest) = Snapshots(tmp_path / "a" / "snapshot").files()
    assert str(newest) in said
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    near(tmp_path / "whole", tmp_path / "a")


@pytest.mark.parametrize("graph", [False, True])
def test_losses_that_are_not_finite_are_counted(graph: bool, tmp_path: Path, monkeypatch):
    loss = Method.loss
    monkeypatch.setattr(Method, "loss", lambda self, batch: loss(self, batch) + math.inf)
    flags = {"data.tasks": 8, "data.zero_shot": 0, "data.cap": 60, "train.cuda_graph": graph}
    config = resolve("toy", flags={**flags, "train.epochs": 6})
    found = train_run(config, tmp_path, RunOptions("cuda", quiet=True))
    assert found["nonfinite_losses"] == 8
    assert "diverged_at" not in found
