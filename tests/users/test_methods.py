"""Methods and optimizers of one's own, as a newcomer writes them.

SAM, gradient projection, a loss of the hardest half, Lion, and one with state of every kind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

from longtail import cli

METHODS = '''
import random

import numpy as np
import torch

from longtail.methods import Method


class SAM(Method):
    """The gradient at the weights moved uphill by rho along g / |g| (Foret et al., 2021)."""

    name = "sam"
    rho = 0.5

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def loss(self, batch):
        self.batch = batch
        return super().loss(batch)

    def after_backward(self):
        norm = torch.cat([p.grad.flatten() for p in self.parameters]).norm()
        steps = [self.rho * p.grad / (norm + 1e-12) for p in self.parameters]
        with torch.no_grad():
            for p, step in zip(self.parameters, steps):
                p.add_(step)
        loss = super().loss(self.batch)
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            for p, step, g in zip(self.parameters, steps, gradients):
                p.sub_(step)
                p.grad.copy_(g)


class GPM(Method):
    """Gradients lose what lies in the directions of earlier tasks (after Saha et al., 2021)."""

    name = "gpm"

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.bases = None  # directions [n, k] of all weights together
        self.gradients = []

    def after_backward(self):
        g = torch.cat([p.grad.flatten() for p in self.parameters])
        if len(self.gradients) < 6:
            self.gradients.append(g.clone())
        if self.bases is not None:
            g = g - self.bases @ (self.bases.T @ g)
        start = 0
        for p in self.parameters:
            p.grad.copy_(g[start : start + p.numel()].view_as(p))
            start += p.numel()

    def end_task(self, train):
        if not self.gradients:
            return
        found = torch.stack(self.gradients, 1)
        if self.bases is not None:
            found = torch.cat([self.bases, found], 1)
        self.bases = torch.linalg.svd(found, full_matrices=False)[0][:, :8]
        self.gradients = []


class Wrong(SAM):
    """As SAM, and says that it can be stacked, which is not so."""

    name = "wrong"
    stackable = True


class Right(Method):
    """SAM whose norm is one for each run."""

    name = "right"
    stackable = True
    rho = 0.5

    def loss(self, batch):
        self.batch = batch
        return super().loss(batch)

    def after_backward(self):
        batch, self.batch = self.batch, None
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        grads = [p.grad for p in parameters]
        share = self.rho / (self.per_replica.norm(grads) + 1e-12)
        steps = [g * s for g, s in zip(grads, self.per_replica.spread(share, grads))]
        with torch.no_grad():
            for p, step in zip(parameters, steps):
                p.add_(step)
        gradients = torch.autograd.grad(super().loss(batch), parameters)
        with torch.no_grad():
            for p, step, g in zip(parameters, steps, gradients):
                p.sub_(step)
                p.grad = g


class Hardest(Method):
    """Learns from the harder half of a batch alone."""

    name = "hardest"

    def loss(self, batch):
        inputs, targets = batch
        losses = self.objective.loss(self.model(inputs), targets)
        return losses.flatten().topk(max(1, losses.numel() // 2)).values.mean()


class Restless(Method):
    """Forgets a little at random, ever less: with generators, numbers, texts, arrays and dicts."""

    name = "restless"

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.coin, self.dice = random.Random(self.seed), np.random.default_rng(self.seed)
        self.seen, self.phase, self.total = {}, "warm", np.float32(0)

    def after_backward(self):
        for name, p in self.model.named_parameters():
            past = self.seen.setdefault(name, torch.zeros_like(p))
            past.lerp_(p.grad, 0.1)
            noise = torch.randn(p.shape, generator=self.generator) * self.dice.random()
            strength = 0.1 / (1 + float(self.total)) if self.phase == "warm" else 0.01
            p.grad.add_(past + noise * self.coin.random(), alpha=strength)
        self.total = np.float32(self.total + 0.01)

    def end_task(self, train):
        self.phase = "cold" if self.phase == "warm" else "warm"


class Teacher(Method):
    """Keeps a whole model, which no snapshot can hold unless the method says how."""

    name = "teacher"

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.teacher = None

    def end_task(self, train):
        import copy

        self.teacher = copy.deepcopy(self.model)
'''

OPTIMIZERS = '''
import torch


class Lion(torch.optim.Optimizer):
    """w <- w - lr sign(b1 m + (1 - b1) g),  m <- b2 m + (1 - b2) g  (Chen et al., 2023)."""

    def __init__(self, params, lr=1e-3, *, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                p.add_(torch.lerp(p.grad, state["m"], b1).sign(), alpha=-group["lr"])
                state["m"].lerp_(p.grad, 1 - b2)


class Aside(torch.optim.Optimizer):
    """Lion with ever shorter steps, who keeps what it has to itself and not in `state`."""

    def __init__(self, params, lr=1e-3, *, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.m, self.steps = [torch.zeros_like(p) for p in self.weights], 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        (group,) = self.param_groups
        b1, b2 = group["betas"]
        for p, m in zip(self.weights, self.m):
            p.sub_(torch.lerp(p.grad, m, b1).sign() * group["lr"] / self.steps**0.1)
            m.lerp_(p.grad, 1 - b2)


class Said(Lion):
    """Lion that says it moves every number by its own gradients, which is true."""

    elementwise = True


class Clipped(Lion):
    """It says so too, and is wrong: all gradients are made shorter together."""

    elementwise = True

    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.cat([g.flatten() for g in grads]).norm()
        for g in grads:
            g.div_(norm)
        super().step()
'''

STUDY = """
name = "own"
benchmark = "toy"
methods = {methods}
seeds = [0, 1]

optimizer = "{optimizer}"

[data]
tasks = 12
zero_shot = 1
cap = 60

[grid]
"train.lr" = [0.003, 0.01]
"""
METRICS = ("RP", "LP", "BWT", "FGT")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(METHODS)
    (folder / "optimizers.py").write_text(OPTIMIZERS)
    return folder


@pytest.fixture
def folder(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, from which the scripts are seen."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(scripts)
    monkeypatch.setenv("PYTHONPATH", str(scripts))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(folder: Path, methods: str | list[str], optimizer: str, *flags: str) -> int:
    file = folder / "study.toml"
    named = json.dumps([methods] if isinstance(methods, str) else methods)
    file.write_text(STUDY.format(methods=named, optimizer=optimizer))
    return cli.main(["study", str(file), "--quiet", *flags])


def run(method: str, optimizer: str, *flags: str) -> int:
    named = ["--method", method, "--optimizer", optimizer]
    return cli.main(["run", "toy", *named, "--quiet", *flags])


def scores_of(out: Path) -> dict[tuple[str, float, int], list[float]]:
    """(method, rate, seed) -> the metrics of the run, however it was trained."""
    entries = []
    for path in out.glob("stacks/*/runs.json"):
        entries += [(entry["config"], entry["summary"]) for entry in json.loads(path.read_text())]
    for path in out.glob("runs/*/summary.json"):
        config = tomllib.loads(path.with_name("config.toml").read_text())
        entries.append((config, json.loads(path.read_text())))
    return {
        (config["method"], config["train"]["lr"], config["seed"]): [
            summary[name] for name in METRICS
        ]
        for config, summary in entries
    }


@pytest.mark.parametrize(
    ("methods", "optimizer"),
    [(["mine:SAM", "mine:GPM", "mine:Hardest"], "adamw"), (["finetune"], "optimizers:Lion")],
    ids=["methods", "lion"],
)
def test_a_study_gives_each_run_the_scores_it_has_alone(
    methods: list[str], optimizer: str, folder: Path
) -> None:
    for jobs in ("1", "2"):
        assert study(folder, methods, optimizer, "--out", f"jobs{jobs}", "--jobs", jobs) == 0
    one, two = scores_of(folder / "jobs1"), scores_of(folder / "jobs2")
    assert len(one) == 4 * len(methods)
    assert one == two
    small = ("--tasks", "12", "--zero-shot", "1", "--cap", "60", "--lr", "0.01", "--seed", "1")
    for number, method in enumerate(methods):
        assert run(method, optimizer, *small, "--out", f"alone{number}") == 0
        alone = json.loads((folder / f"alone{number}/summary.json").read_text())
        assert one[method, 0.01, 1] == [alone[name] for name in METRICS]


CASES = {
    "sam": ("mine:SAM", "adamw"),
    "gpm": ("mine:GPM", "adamw"),
    "hardest": ("mine:Hardest", "adamw"),
    "lion": ("finetune", "optimizers:Lion"),
    "lion aside": ("finetune", "optimizers:Aside"),
    "right": ("mine:Right", "adamw"),
    "restless": ("mine:Restless", "adamw"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_stopped_by_ctrl_c_ends_as_one_that_was_not(case: str, folder: Path) -> None:
    lines = folder / "stopped/scores.jsonl"

    def press_ctrl_c() -> None:
        while not (lines.exists() and lines.read_text().count("\n") > 40):
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    small = ("--tasks", "150", "--lr", "0.003", "--out")
    assert run(*CASES[case], *small, "whole") == 0
    pressing = threading.Thread(target=press_ctrl_c, daemon=True)
    pressing.start()
    assert run(*CASES[case], *small, "stopped") == 130  # in time, or the test tests nothing
    pressing.join()
    assert run(*CASES[case], *small, "stopped") == 0
    for name in ("scores.jsonl", "summary.json", "model.safetensors"):
        assert (folder / "stopped" / name).read_bytes() == (folder / "whole" / name).read_bytes()


def test_what_a_method_keeps_and_no_snapshot_can_hold_is_said_before_work_is_lost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("mine:Teacher", "adamw", "--tasks", "12", "--out", "out") == 2
    said = capsys.readouterr().err
    assert "Teacher.teacher is or holds a MLP" in said
    assert "state_dict() and a load_state_dict(state)" in said
    assert len((folder / "out/scores.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("method", "optimizer", "what"),
    [
        ("mine:Wrong", "adamw", "method mine:Wrong says stackable = True"),
        ("finetune", "optimizers:Clipped", "optimizer optimizers:Clipped says elementwise = True"),
    ],
)
def test_who_says_that_it_can_be_stacked_and_mixes_runs_is_refused_before_any_training(
    method: str, optimizer: str, what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(folder, method, optimizer, "--out", "out") == 2
    said = capsys.readouterr().err
    assert f"longtail: {what}, and in a stack of 2 weight 0.weight is another by " in said
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("method", "optimizer"), [("mine:Right", "adamw"), ("finetune", "optimizers:Said")]
)
def test_who_says_so_rightly_is_stacked_and_scores_as_alone(
    method: str, optimizer: str, folder: Path
) -> None:
    assert study(folder, method, optimizer, "--out", "stacked", "--jobs", "1") == 0
    assert not (folder / "stacked/runs").exists()  # four runs, one program
    text = (folder / "study.toml").read_text()
    (folder / "alone.toml").write_text(text.replace('name = "own"', "stack = false", 1))
    assert cli.main(["study", "alone.toml", "--quiet", "--out", "alone", "--jobs", "1"]) == 0
    stacked, alone = scores_of(folder / "stacked"), scores_of(folder / "alone")
    assert stacked.keys() == alone.keys()
    for key, metrics in alone.items():  # in float32, a few answers of a hundred may be others
        assert stacked[key] == pytest.approx(metrics, abs=0.03)


def test_a_dry_run_says_which_methods_train_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(folder, "mine:SAM", "adamw", "--out", "out", "--dry-run", "--json") == 0
    planned = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    reasons = {entry.get("alone") for entry in planned}
    assert reasons == {"mine:SAM does not say that it can be stacked"}
