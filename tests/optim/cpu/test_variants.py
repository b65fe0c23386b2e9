"""All variants of the compiled step give the same bits, and a run says which one it used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from longtail.optim import ContinualAdamW
from longtail.optim.cpu import build, step
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run

COMPILER = next(build._compilers(), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
# What the processor has decides which variants can run here.
SETS = [(), ("-march=native",), ("-march=native", "-fopenmp")]
SETS += [("-mavx2", "-mfma")] if " avx2 " in FLAGS and " fma " in FLAGS else []
SETS += [("-mavx512f", "-mfma")] if " avx512f " in FLAGS else []


def trained(monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...]) -> bytes:
    """The bytes of weights and moments after two tasks, by one variant."""
    assert COMPILER is not None
    try:
        lib = build.load(COMPILER, extra)
    except subprocess.SubprocessError:
        pytest.skip(f"{COMPILER} does not know {' '.join(extra)}")
    monkeypatch.setattr(step, "library", lambda: lib)
    draw = torch.Generator().manual_seed(0)
    # 1,003: a whole number of no vector's width, so that the rest of a loop is compared too
    params = [
        torch.nn.Parameter(torch.randn(1003, generator=draw, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
    ]
    kinds = {"first_moment": "task", "second_moment": "task", "weight_decay": 0.01}
    optimizer = ContinualAdamW(params, lr=1e-2, fused=True, **kinds)
    for _ in range(2):
        for _ in range(4):
            for p in params:
                p.grad = torch.randn(1003, generator=draw, dtype=p.dtype)
            optimizer.step()
        optimizer.end_task()
    states = [t for p in params for t in (p.detach(), *optimizer.state[p].values())]
    return b"".join(t.numpy().tobytes() for t in states)


@pytest.mark.parametrize("extra", SETS, ids=lambda extra: " ".join(extra) or "plain")
def test_variants_give_the_same_bits(monkeypatch, extra: tuple[str, ...]):
    assert trained(monkeypatch, extra) == trained(monkeypatch, ())


def test_a_run_says_which_variant_it_used(tmp_path: Path):
    flags = {"data.tasks": 2, "data.zero_shot": 0, "data.features": 4, "data.cap": 8}
    config = resolve("toy", flags=flags)
    train_run(config, tmp_path, RunOptions("cpu", threads=1, quiet=True))
    told = json.loads((tmp_path / "timing.json").read_text())["optimizer_step"]
    assert told.startswith("compiled: ")
    assert "-ffp-contract=off" in told


def test_a_run_without_a_compiler_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(build, "_used", [])
    flags = {"data.tasks": 2, "data.zero_shot": 0, "data.cap": 8, "train.fused": False}
    train_run(resolve("toy", flags=flags), tmp_path, RunOptions("cpu", threads=1, quiet=True))
    told = json.loads((tmp_path / "timing.json").read_text())["optimizer_step"]
    assert told.startswith("for-loop")
