"""Fresh tokens counted from the data are those whose embeddings have no past second moment."""

import json
from pathlib import Path

import pytest

from helpers import scripts
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.training import train

SMALL = {"data.miniature": True, "data.tasks": 5, "data.cap": 2, "train.epochs": 1}


@pytest.fixture
def script():
    return scripts.load("bench/tools/wsd_fresh.py")


def test_what_is_counted_is_what_training_meets(script) -> None:
    flags = {**SMALL, "train.validation": 0.0, "train.evaluate_at": []}
    run = build_run(resolve("wsd", flags=flags))
    found = script.count(run.sequence, 1, run.settings.batch_size)
    table = next(p for n, p in run.model.named_parameters() if n.endswith("word_table"))
    trained: list[int] = []  # embeddings with a past, as each task begins
    steps: list[int] = []
    ended = run.optimizer.end_task

    def end() -> None:
        ended()
        trained.append(int((run.optimizer.state[table]["past_exp_avg_sq"] > 0).any(-1).sum()))
        steps.append(int(run.optimizer.state[table]["past_steps"]))

    run.optimizer.end_task = end  # pyright: ignore[reportAttributeAccessIssue]
    train(run)
    before = 0
    for row, after in zip(found, trained, strict=True):
        assert row["fresh"] == after - before
        before = after
    assert [row["past_steps"] for row in found] == [0, *steps[:-1]]


def test_the_command_counts_and_names_the_factor(script, tmp_path: Path) -> None:
    out = tmp_path / "fresh.json"
    sets = [f"{k}={str(v).lower()}" for k, v in SMALL.items()]
    assert script.main([*(x for s in sets for x in ("--set", s)), "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    last = content["places"][-1]
    assert content["trained"] >= last["trained"] > 0
    assert last["first_step_factor"] == pytest.approx(0.1 * (1 + last["past_steps"]) ** 0.5)
    assert 0 < last["fresh_share"] < 1
