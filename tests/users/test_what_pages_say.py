"""What a user compares with, on the word of our pages: each sentence is tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail import ContinualAdamW

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def test_adamw_kept_is_not_continual_adam_that_averages_nothing() -> None:
    """It was recommended as such, and moved 3.4 rates in the step after a boundary."""
    text = page("continual_adam.md")
    assert '`"ema"` for both with `beta3=0` is not AdamW kept' in text
    assert '[`policy="kept"`](integrations/hf.md#to-compare-with)' in text
    (most,) = re.findall(r"up to 1 / \(1 - beta1\) = (\d+) times as long as AdamW's", text)
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    averaging = {"first_moment": "ema", "second_moment": "ema", "beta3": 0.0}
    ours = ContinualAdamW(weights[:1], lr=0.1, weight_decay=0.0, **averaging)  # type: ignore[arg-type]
    kept = torch.optim.AdamW(weights[1:], lr=0.1, weight_decay=0.0)
    for _ in range(2000):
        for weight, optimizer in zip(weights, (ours, kept), strict=True):
            weight.grad = torch.ones(1)
            optimizer.step()
    ours.end_task()
    lengths = []
    for weight, optimizer in zip(weights, (ours, kept), strict=True):
        before = weight.item()
        optimizer.step()
        lengths.append(before - weight.item())
    assert lengths[0] / lengths[1] == pytest.approx(float(most), rel=0.01)


def test_two_ways_to_give_the_trainer_an_optimizer_differ_as_the_page_says(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    text = page("integrations/hf.md")
    assert "differ in weight decay" in text
    assert "`ContinualAdamW` decays by 0.01 unless told otherwise" in text
    assert "The arguments' `learning_rate` counts in neither" in text
    decays = []
    for way in ("optimizers", "optimizer_cls_and_kwargs"):
        model = nn.Linear(2, 2)
        own = ContinualAdamW(model.parameters(), lr=1e-3), None
        given = own if way == "optimizers" else (ContinualAdamW, {"lr": 1e-3})
        arguments = transformers.TrainingArguments(
            str(tmp_path), learning_rate=0.7, use_cpu=True, report_to=[]
        )
        trainer = transformers.Trainer(model, arguments, **{way: given})
        trainer.create_optimizer()
        groups = trainer.optimizer.param_groups
        assert {group["lr"] for group in groups} == {1e-3}
        decays.append({group["weight_decay"] for group in groups})
    assert decays == [{0.01}, {0.0}]
