"""Runs on a GPU stop and go on as they do on a CPU, up to the GPU's own rounding."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from longtail.runs.config import method_names, resolve
from longtail.runs.session import RunOptions, train_run
from longtail.support.signals import Stopped

pytestmark = pytest.mark.gpu
SMALL = ["data.tasks=12", "data.zero_shot=1", "data.cap=60", "train.evaluate_every=4"]
SMALL += ["train.validation=0.2", "data.minimum=8"]


def stop_after(steps: int):
    count = 0

    def on_step(run) -> None:
        nonlocal count
        count += 1
        if count == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("method", method_names())
def test_resumed_run_ends_as_the_whole_one(method, graph, tmp_path):
    sets = [f"method={method}", *SMALL, f"train.cuda_graph={str(graph).lower()}"]
    config = resolve("toy", sets=sets)
    whole = train_run(config, tmp_path / "whole", RunOptions(quiet=True, device="cuda"))
    for steps in (7, 13, 1):
        with pytest.raises(Stopped):
            train_run(
                config,
                tmp_path / "pieces",
                RunOptions(quiet=True, device="cuda"),
                on_step=stop_after(steps),
            )
    pieces = train_run(config, tmp_path / "pieces", RunOptions(quiet=True, device="cuda"))
    assert pieces["RP"] == pytest.approx(whole["RP"], abs=0.02)
    a = load_file(tmp_path / "whole" / "model.safetensors")
    b = load_file(tmp_path / "pieces" / "model.safetensors")
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=1e-3, atol=1e-4)


def test_a_run_may_move_from_cpu_to_gpu(tmp_path):
    config = resolve("toy", sets=["method=derpp", *SMALL])
    with pytest.raises(Stopped):
        train_run(config, tmp_path, RunOptions(quiet=True, device="cpu"), on_step=stop_after(9))
    assert train_run(config, tmp_path, RunOptions(quiet=True, device="cuda"))["tasks"] == 12
