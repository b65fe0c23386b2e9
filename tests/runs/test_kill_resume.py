"""A run that is killed and resumed ends with the same bytes as one that was left alone."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail import benchmarks
from longtail.benchmarks import Benchmark, toy
from longtail.runs.config import RunConfig, method_names, resolve
from longtail.runs.session import RunOptions, train_run
from longtail.runs.snapshot import Snapshots

COMPARED = ("scores.jsonl", "summary.json", "model.safetensors", "config.toml", "tasks.json")
SMALL = ["data.tasks=16", "data.zero_shot=2", "data.features=8", "data.hidden=12", "data.cap=60"]
SMALL += ["train.epochs=3", "train.evaluate_every=5", "train.schedule=linear", "train.warmup=0.2"]
SMALL += ["train.validation=0.2", "train.batch_size=8", "data.minimum=8"]
BUFFER = {"reservoir": ["buffer=30"], "derpp": ["buffer=30"], "agem": ["buffer=12"]}
QUIET = RunOptions(quiet=True)
KILLS = 20


class KilledError(Exception):
    """Stands for SIGKILL: nothing between the step and the end of the process."""


# A benchmark whose model draws from torch's generator while it trains.
@dataclass(frozen=True)
class Settings(toy.Settings):
    """As toy."""


def build(settings: toy.Settings, seed: int) -> Benchmark:
    def make_model(seed: int) -> nn.Module:
        layers = nn.Linear(settings.features, 12), nn.Dropout(0.3), nn.BatchNorm1d(12), nn.ReLU()
        return nn.Sequential(*layers, nn.Linear(12, settings.classes))

    return Benchmark(toy.build(settings, seed).sequence, make_model)


def small(method: str, *more: str) -> RunConfig:
    return resolve("toy", sets=[f"method={method}", *SMALL, *BUFFER.get(method, []), *more])


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in COMPARED}


def steps_of(config: RunConfig, out: Path) -> int:
    """Train without interruption; how often `on_step` was called."""
    calls = []
    train_run(config, out, QUIET, on_step=lambda run: calls.append(None))
    return len(calls)


def interrupted(config: RunConfig, out: Path, total: int, seed: int, monkeypatch) -> int:
    """Stop `KILLS` times at random steps, with snapshots at random steps before; then finish."""
    rng = random.Random(seed)
    monkeypatch.setattr(Snapshots, "due", lambda self: rng.random() < 0.2)
    kills = 0
    while kills < KILLS:
        left = rng.randint(1, max(2, total // 12))

        def kill(run) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError

        try:
            train_run(config, out, QUIET, on_step=kill)
        except KilledError:
            kills += 1
        else:
            break
    train_run(config, out, QUIET)
    return kills


@pytest.mark.parametrize("method", method_names())
def test_stopped_at_random_steps(method, tmp_path, monkeypatch):
    config = small(method)
    total = steps_of(config, tmp_path / "whole")
    kills = interrupted(config, tmp_path / "pieces", total, seed=1, monkeypatch=monkeypatch)
    assert kills == KILLS
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


@pytest.mark.parametrize("policy", ["new", "kept"])
def test_other_policies(policy, tmp_path, monkeypatch):
    config = small("finetune", f"policy={policy}")
    total = steps_of(config, tmp_path / "whole")
    interrupted(config, tmp_path / "pieces", total, seed=2, monkeypatch=monkeypatch)
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


def test_dropout_and_batch_norm(tmp_path, monkeypatch):
    monkeypatch.setitem(benchmarks.BENCHMARKS, "dropout", __name__)
    whole_tasks = ["train.batch_size=64", "train.epochs=8"]  # BatchNorm cannot train on one row
    config = resolve("dropout", sets=["method=derpp", "buffer=30", *SMALL, *whole_tasks])
    total = steps_of(config, tmp_path / "whole")
    torch.rand(100)  # what was drawn before a run must not matter
    interrupted(config, tmp_path / "pieces", total, seed=3, monkeypatch=monkeypatch)
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


def in_child(config: RunConfig, out: Path) -> None:
    torch.set_num_threads(1)
    train_run(config, out, RunOptions(quiet=True, snapshot_minutes=0))


def kill_for_real(config: RunConfig, out: Path, kills: int, seed: int) -> int:
    """SIGKILL a process that trains, `kills` times at random moments; then let it finish."""
    context = multiprocessing.get_context("forkserver")  # torch is imported once, in the server
    context.set_forkserver_preload(["longtail.runs.session", "longtail.benchmarks.toy"])
    rng = random.Random(seed)
    done = 0
    for attempt in range(kills + 1):
        # Not by `with`: a killed process leaves nothing to clean up but its entry.
        process = context.Process(target=in_child, args=(config, out))
        process.start()
        if attempt < kills:
            wait_for(out / "snapshot", process)
            process.join(rng.uniform(0.0, 0.4))
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
                done += 1
        process.join(120)
        code = process.exitcode
        process.close()
        assert code in ((0, -signal.SIGKILL) if attempt < kills else (0,))
    return done


def wait_for(path: Path, process) -> None:
    while not path.exists() and process.is_alive():
        time.sleep(0.005)


def test_kill_9(tmp_path):
    config = small("reservoir")
    train_run(config, tmp_path / "whole", RunOptions(quiet=True, threads=1))
    assert kill_for_real(config, tmp_path / "pieces", kills=4, seed=4) >= 1
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


OTHERS = {
    "rmsprop": ["optimizer=rmsprop", "policy=continual", "optim.momentum=0.5", "train.average=ema"],
    "own": ["optimizer=helpers.own_optimizers:Sign", "policy=new", "average=task"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_and_an_average(name, tmp_path, monkeypatch):
    config = small("finetune", *OTHERS[name], "train.span=sequence")
    total = steps_of(config, tmp_path / "whole")
    interrupted(config, tmp_path / "pieces", total, seed=3, monkeypatch=monkeypatch)
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")
    whole, pieces = ((tmp_path / f / "average.safetensors") for f in ("whole", "pieces"))
    assert whole.read_bytes() == pieces.read_bytes()
