"""Benchmarks of one's own that say that seeds can train as one stack: rightly, and not."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from longtail import cli

BENCHMARK = '''
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.tasks import CLASSIFICATION, Objective, from_tensors


def hardest(outputs, targets):
    """The losses of the harder half; the others count nothing."""
    lead = outputs.shape[:-1]
    losses = cross_entropy(outputs.flatten(0, -2), targets.expand(lead).flatten(), reduction="none")
    return (losses * (losses >= losses.median())).view(lead)


class Scaled(nn.Module):
    """It says how a stack of it is run, and divides by one number for all of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) / self.layer.weight.norm()

    @staticmethod
    def forward_stacked(members, x):
        layers = [member.layer for member in members]
        outputs = [x @ l.weight.mT + l.bias[:, None] for l in layers]
        return torch.stack([o / l.weight.norm() for o, l in zip(outputs, layers)])


class Centred(nn.Module):
    """It keeps a mean and a count as plain attributes, and moves less and less."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.mean, self.steps = torch.zeros(6), 0

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.mean = self.mean + (x.detach().mean(0) - self.mean) / self.steps
        return self.layer(x - 3 * self.mean) / (1 + self.steps) ** 0.1


@dataclass(frozen=True)
class Settings:
    weeks: int = 5


def build(settings, seed):
    generator = torch.Generator().manual_seed({seed})

    def examples(n):
        x = torch.randn(n, 6, generator=generator)
        return x, (x @ torch.randn(6, 3, generator=generator)).argmax(1)

    def week(i):
        return f"week {{i}}", examples(90 - 15 * (i % 5)), examples(40)

    def model(seed):
        return {model}

    return Benchmark(from_tensors([week(i) for i in range(settings.weeks)], {objective}), model)


def first_of_all(rows, seeds):
    return build(rows[0], seeds[0])


SPEC = BenchmarkSpec(Settings, build, train={{"lr": 0.02}}, stackable=True{more})
'''
NETWORK = "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))"
STUDY = """
benchmark = "{name}"
methods = ["finetune", "derpp"]
policies = ["continual"]
seeds = [0, 1, 2]
stack = {stack}
"""


def study(folder: Path, name: str, out: str, *, stack: bool = True) -> tuple[int, list[str]]:
    """The exit code, and the errors of jobs that failed."""
    file = folder / f"{out}.toml"
    file.write_text(STUDY.format(name=name, stack=json.dumps(stack)))
    code = cli.main(["study", str(file), "--out", out, "--jobs", "1", "--quiet"])
    failed = sorted((folder / out).glob("*/*/error.json"))
    return code, [json.loads(path.read_text())["error"] for path in failed]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def write(folder: Path, name: str, **parts: str) -> None:
    usual = {"seed": "0", "objective": "CLASSIFICATION", "model": NETWORK, "more": ""}
    (folder / f"{name}.py").write_text(BENCHMARK.format(**{**usual, **parts}))


def press_ctrl_c_after(lines: int, path: Path) -> threading.Thread:
    def press() -> None:
        while not (path.exists() and path.read_text().count("\n") > lines):
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press, daemon=True)
    pressing.start()
    return pressing


def scores(out: Path) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for path in out.glob("stacks/*/runs.json"):
        for entry in json.loads(path.read_text()):
            config = entry["config"]
            found[config["method"], config["seed"]] = entry["summary"]["RP"]
    return found


def test_one_that_keeps_its_word_is_stacked(folder: Path) -> None:
    write(folder, "same_data")
    assert study(folder, "same_data", "out") == (0, [])
    found = scores(folder / "out")
    assert len(found) == 6
    for (method, seed), rp in found.items():
        arguments = ["run", "same_data", "--method", method, "--seed", str(seed), "--quiet"]
        assert cli.main([*arguments, "--out", f"{method}{seed}"]) == 0
        alone = json.loads((folder / f"{method}{seed}/summary.json").read_text())
        assert rp == pytest.approx(alone["RP"], abs=0.02)  # float32: one answer of two hundred


@pytest.mark.parametrize(
    "seed",
    ["seed", "torch.initial_seed() % 2**40"],  # the run's; or torch's, which follows from it
    ids=["seed", "generator"],
)
def test_data_that_follow_from_the_seed_are_not_shared(seed: str, folder: Path) -> None:
    name = f"own_data_{len(seed)}"
    write(folder, name, seed=seed)
    code, errors = study(folder, name, "out")
    assert code == 1
    said = (
        f"ValueError: benchmark {name} says that its runs can be stacked (stackable), and the "
        "training examples of week 0 of seeds 0 and 1 differ: a stack would train them all on "
        "one; leave stackable out, or write a build_stack"
    )
    assert errors == [said, said]  # of a stack of each method
    assert not list((folder / "out").glob("**/runs.json"))
    code, errors = study(folder, name, "alone", stack=False)  # as it says it can be done
    assert (code, errors) == (0, [])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("objective", {"objective": "Objective(hardest, CLASSIFICATION.scores)"}),
        ("network", {"model": "Scaled()"}),
        ("data", {"seed": "seed", "more": ", build_stack=first_of_all"}),
    ],
)
def test_one_that_mixes_runs_is_refused(name: str, parts: dict[str, str], folder: Path) -> None:
    write(folder, f"mixed_{name}", **parts)
    code, errors = study(folder, f"mixed_{name}", "out")
    assert code == 1
    for error in errors:
        assert f"benchmark mixed_{name} says that its runs can be stacked, and in a stack" in error
        assert " is another by " in error
    assert len(errors) == 2


def test_what_a_model_keeps_as_plain_attributes_is_there_after_ctrl_c(folder: Path) -> None:
    write(folder, "centred", model="Centred()")
    words = ["run", "centred", "--weeks", "150", "--evaluate-every", "1", "--quiet", "--out"]
    assert cli.main([*words, "whole"]) == 0
    pressing = press_ctrl_c_after(40, folder / "stopped/scores.jsonl")
    assert cli.main([*words, "stopped"]) == 130  # in time, or the test tests nothing
    pressing.join()
    assert cli.main([*words, "stopped"]) == 0
    for name in ("scores.jsonl", "summary.json", "model.safetensors"):
        assert (folder / "stopped" / name).read_bytes() == (folder / "whole" / name).read_bytes()
