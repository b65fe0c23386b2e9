"""The net that catches a changed number: what it calls a difference, and what it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers import scripts

TOOL = scripts.ROOT / "bench/tools/same_bytes.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return scripts.load("bench/tools/same_bytes.py")


def runs(**parts: Any) -> dict[str, Any]:
    """One run, with these parts changed."""
    whole = {"weights": {"0.bias": "a"}, "summary": {"RP": 0.5, "LP": 0.25}}
    return {"toy/ewc/kept": {**whole, **parts}}


def test_a_part_differs_is_gone_or_is_added(tool: ModuleType) -> None:
    changed = runs(weights={"0.bias": "b"}, summary={"RP": 0.5, "new": 1})
    found = tool.compare([runs()], changed)
    assert found.differ == [("toy/ewc/kept", "weights", "0.bias")]
    assert found.gone == [("toy/ewc/kept", "summary", "LP")]
    assert found.added == [("toy/ewc/kept", "summary", "new")]
    assert found.same == 1


def test_what_is_taken_away_on_purpose_is_no_difference(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "TAKEN_AWAY", ("*/summary/LP",))
    found = tool.compare([runs()], runs(summary={"RP": 0.5}))
    assert found.taken_away == [("toy/ewc/kept", "summary", "LP")]
    assert not found.gone


def test_a_run_in_another_order_measures_the_same_up_to_rounding(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROUNDED", ("toy/ewc/*",))
    changed = runs(weights={"0.bias": "b"}, summary={"RP": 0.500001, "LP": 0.26})
    found = tool.compare([runs()], changed)
    assert found.differ == [("toy/ewc/kept", "summary", "LP")]
    assert len(found.rounded) == 2


def test_where_two_runs_of_before_disagree_nothing_is_compared(tool: ModuleType) -> None:
    other = runs(weights={"0.bias": "b"})
    found = tool.compare([runs(), other], runs(weights={"0.bias": "c"}))
    assert not found.differ
    assert found.unsteady == 1


def test_an_older_tree_is_compared_in_the_names_of_today(tool: ModuleType) -> None:
    then = {"optimizer": "carry", "policy.first_moment": "reset", "train.optimizer": "adamw"}
    now = {"policy": "kept", "moments.first_moment": "reset", "optimizer": "adamw"}
    assert tool.OLD.today(then) == tool.TODAY.today(now) == now
    said = '{"policy": "carry, ema"} Finetune w/o MC, EWC w/ MC, EWC carry'
    wanted = '{"policy": "kept, ema"} Finetune AdamW new, EWC Continual AdamW, EWC AdamW kept'
    assert tool.OLD.text_of_today(said) == tool.TODAY.text_of_today(wanted) == wanted


@pytest.mark.slow
def test_two_runs_of_the_toy_are_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "one.json", "--only", "toy", "--methods", "agem"]
    subprocess.run(command, cwd=tmp_path, check=True)
    command[2:3] = ["two.json", "--against", "one.json"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = json.loads((tmp_path / "two.json").read_text("utf-8"))["runs"]["toy/agem/kept"]
    assert {"weights", "summary", "scores", "memory", "snapshot generator"} <= found.keys()
