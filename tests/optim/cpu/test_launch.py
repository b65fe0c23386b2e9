"""The compiled step: all variants give the same bits, and a run says which one it used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from helpers.optimizers import assert_same, parameters, states, train
from longtail.optim import ContinualAdamW
from longtail.optim.codes import value_of
from longtail.optim.cpu import build, launch
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run

COMPILER = next(build._compilers(), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
# What the processor has decides which variants can run here.
SETS = [(), ("-march=native",), ("-march=native", "-fopenmp")]
SETS += [("-mavx2", "-mfma")] if " avx2 " in FLAGS and " fma " in FLAGS else []
SETS += [("-mavx512f", "-mfma")] if " avx512f " in FLAGS else []


def use(monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...]) -> None:
    """Let steps be taken by one variant."""
    assert COMPILER is not None
    try:
        lib = build.load(COMPILER, extra)
    except subprocess.SubprocessError:
        pytest.skip(f"{COMPILER} does not know {' '.join(extra)}")
    monkeypatch.setattr(launch, "library", lambda: lib)


def trained(past: str) -> bytes:
    """The bytes of weights and moments after two tasks."""
    draw = torch.Generator().manual_seed(0)
    # 1,003: a whole number of no vector's width, so that the rest of a loop is compared too
    params = [
        torch.nn.Parameter(torch.randn(1003, generator=draw, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
    ]
    kinds = {"first_moment": "task", "second_moment": "task", "weight_decay": 0.01}
    kinds["past_dtype"] = past
    optimizer = ContinualAdamW(params, lr=1e-2, fused=True, **kinds)
    for _ in range(2):
        for _ in range(4):
            for p in params:
                p.grad = torch.randn(1003, generator=draw, dtype=p.dtype)
            optimizer.step()
        optimizer.end_task()
    states = [t for p in params for t in (p.detach(), *optimizer.state[p].values())]
    return b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in states)


def test_threads_share_the_work_and_agree() -> None:
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            params = parameters((300, 301), (7,), (50_001,), dtype=torch.float32)
            optimizer = ContinualAdamW(params, fused=True)
            train(optimizer, params, range(3), boundary_after=[1])
            results.append([*params, *states(optimizer, params)])
    finally:
        torch.set_num_threads(threads)
    assert_same(*results)


variants = pytest.mark.parametrize("extra", SETS, ids=lambda extra: " ".join(extra) or "plain")


@pytest.mark.parametrize("past", ["float32", "uint8"])
@variants
def test_variants_give_the_same_bits(monkeypatch, extra: tuple[str, ...], past: str):
    use(monkeypatch, ())
    expected = trained(past)
    use(monkeypatch, extra)
    assert trained(past) == expected


@pytest.mark.parametrize("second_moment", ["task", "task_seen"])
@variants
def test_a_step_reads_every_code_as_its_value(monkeypatch, extra, second_moment: str):
    use(monkeypatch, extra)
    codes = torch.arange(256, dtype=torch.uint8).repeat(2)[:507]  # whole blocks and a rest
    moved = []
    for past_dtype, past in (("uint8", codes), ("float32", value_of(codes))):
        param = torch.nn.Parameter(torch.zeros(507))
        param.grad = torch.full_like(param, 1e-8)
        optimizer = ContinualAdamW(
            [param], eps=0.0, fused=True, past_dtype=past_dtype, second_moment=second_moment
        )
        optimizer.step()
        optimizer.end_task()
        optimizer.state[param]["past_exp_avg_sq"].copy_(past)
        param.data.zero_()  # so that no digit of the next step is lost in it
        optimizer.step()
        moved.append(param.detach())
    assert torch.equal(*moved)
    assert moved[0][:256].unique().numel() == 256  # no two codes are taken for one


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
