"""A run of each benchmark that is stopped in the middle of a task ends with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run
from longtail.support.signals import Stopped
from longtail.training import Interrupted, Run

QUIET = RunOptions(quiet=True, device="cpu")


@pytest.mark.parametrize(
    ("benchmark", "settings"),
    [
        # how images were cut and mirrored so far
        ("cifar10", {"data.tasks": 1, "data.width": 4, "train.epochs": 1, "train.batch_size": 16}),
        # heads of tasks that are over, and the Fisher information of each
        ("fsmol", {"data.tasks": 6, "data.hidden": [8, 4], "method": "ewcpp", "policy": "kept"}),
        # stored outputs of a decoder
        (
            "nlp5",
            {"data.per_task": 12, "data.order": ["sst", "woz"], "method": "derpp", "buffer": 9},
        ),
    ],
)
def test_a_stopped_run_goes_on(benchmark: str, settings: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(benchmark, flags={"data.miniature": True, **settings})
    steps = 0

    def count(run: Run) -> None:
        nonlocal steps
        steps += 1

    def stop(run: Run) -> None:
        nonlocal steps
        steps -= 1
        if steps == 0:
            raise Interrupted

    whole = train_run(config, tmp_path / "whole", QUIET, on_step=count)
    steps = steps // 2
    with pytest.raises(Stopped):
        train_run(config, tmp_path / "cut", QUIET, on_step=stop)
    assert train_run(config, tmp_path / "cut", QUIET) == whole
    for name in ("model.safetensors", "scores.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
