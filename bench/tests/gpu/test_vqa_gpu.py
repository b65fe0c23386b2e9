"""VQA-CL on a GPU: bf16 kernels, regions from storage and captured steps change nothing of note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench_helpers.vqa_content import random_content
from longtail.replicas import Replicas
from longtail.runs.build import build_stack
from longtail.runs.config import resolve
from longtail.training import Run, train
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.vqa.model import VisionLanguage

pytestmark = pytest.mark.gpu
CONFIG = EncoderConfig(60, hidden=64, layers=2, heads=4, intermediate=128, positions=24)


def test_bf16_kernels_are_near_fp32() -> None:
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(VisionLanguage(Encoder(CONFIG), 11, 7))
    stack = Replicas(models, policies=2).cuda()
    inputs = {
        "ids": torch.randint(0, 60, (2, 9, 24), dtype=torch.int32),
        "cut": torch.randint(3, 12, (2, 9), dtype=torch.int32),
        "regions": torch.randn(2, 9, 5, 11).half(),
        "count": torch.randint(1, 6, (2, 9), dtype=torch.int32),
    }
    inputs = {name: value.cuda() for name, value in inputs.items()}
    exact = stack(inputs).detach()
    with torch.autocast("cuda", torch.bfloat16):
        near = stack(inputs)
    assert near.dtype == torch.float32
    assert torch.allclose(near.detach(), exact, atol=0.02 * float(exact.abs().max()))
    near.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("vqa") / "content"
    random_content(tasks=6, questions=400, images=40, width=20).save(where)
    return where


def trained(folder: Path, method: str, **flags: Any) -> Run:
    given = {"data.prepared": str(folder), "data.dropout": 0.0, "train.epochs": 2}
    given |= {"method": method, "train.lr": 1e-3, **flags}
    both = [
        resolve("longtail_bench.vqa", flags={**given, "policy": name})
        for name in ("continual", "new")
    ]
    run = build_stack(both, "cuda").run
    train(run)
    return run


@pytest.mark.parametrize("method", ["finetune", "derpp", "agem"])
def test_captured_steps_and_storage_score_alike(folder: Path, method: str) -> None:
    plain = trained(folder, method).matrix.last
    captured = trained(folder, method, **{"train.cuda_graph": True}).matrix.last
    stored = trained(
        folder, method, **{"train.cuda_graph": True, "data.placement": "storage"}
    ).matrix.last
    assert np.allclose(plain, captured, atol=0.1, equal_nan=True)
    assert np.allclose(captured, stored, atol=0.1, equal_nan=True)
    assert np.isfinite(plain[..., 0]).all()
