"""The diagnosis counts the coordinates that no earlier task has moved, and how they step."""

import pytest
import torch

from helpers import scripts
from longtail.runs.build import build_run
from longtail.runs.config import resolve


@pytest.fixture
def script():
    return scripts.load("bench/tools/wsd_diagnosis.py")


def test_fresh_coordinates_are_counted(script) -> None:
    flags = {"data.miniature": True, "data.tasks": 4, "data.cap": 3, "train.epochs": 1}
    run = build_run(resolve("wsd", flags={**flags, "train.evaluate_at": []}))
    rows = script.diagnose(run, every=1)
    trained = int((run.sequence.train_sizes > 0).sum())
    assert len(rows) == trained
    first, last = rows[0], rows[-1]
    # in the first task all is fresh and, with c = 0, each step is Adam's
    assert first["word embeddings"]["fresh"] == 1
    assert first["word embeddings"]["multiplier_largest"] == pytest.approx(1)
    # later some words are new, and their steps are larger by sqrt((t + c) / t)
    assert 0 < last["word embeddings"]["fresh"] < 1
    assert last["others"]["fresh"] < 0.1
    assert last["word embeddings"]["multiplier_largest"] > 1


def test_the_multiplier_is_that_of_algorithm_1(script) -> None:
    """One parameter of two coordinates, the second without a gradient in the first task."""
    from longtail.optim import ContinualAdamW

    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = ContinualAdamW([p], lr=0.1)
    for gradients in ([[1.0, 0.0]] * 8, [[1.0, 1.0]] * 2):
        for g in gradients:
            p.grad = torch.tensor(g)
            optimizer.step()
        if p.grad[1] == 0:
            optimizer.end_task()
    holder = torch.nn.Module()
    holder.word_table = p
    run = type("Run", (), {})()
    run.model, run.optimizer = holder, optimizer
    run.settings = type("Settings", (), {"betas": (0.9, 0.999)})()
    found = script.examine(run)["word embeddings"]
    assert found["moved"] == 2
    assert found["fresh"] == 0.5
    assert found["multiplier_largest"] == pytest.approx(((2 + 8) / 2) ** 0.5, rel=1e-4)
    assert 0.5 < found["fresh_update"] < 1
