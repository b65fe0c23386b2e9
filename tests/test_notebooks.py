"""The notebooks run as they are checked in, and are what their scripts say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.scripts import ROOT, load

NOTEBOOKS = ROOT / "docs" / "notebooks"
BUILD: Any = load("docs/notebooks/build.py")


@pytest.mark.parametrize("name", BUILD.NAMES)
def test_what_is_checked_in_is_what_the_script_says(name: str) -> None:
    saved = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in saved["cells"]]
    assert cells == BUILD.cells_of(name)
    code = [cell for cell in saved["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)  # it was run
    assert "/tmp/" not in json.dumps(saved)  # what it prints is the same on every machine


def test_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred tasks: more is kept with Continual AdamW."""
    printed, names, pictures = run("first_steps", tmp_path, monkeypatch)
    assert "tasks seen: 3" in printed
    rp = {policy: names["summary"](run.matrix)["RP"] for policy, run in names["runs"].items()}
    assert rp["continual"] > rp["new"] + 0.02
    assert len(pictures) == 1


@pytest.mark.slow
def test_three_weeks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three weeks, three processes, a grown vocabulary: less is forgotten with the memory."""
    printed, names, pictures = run("three_weeks", tmp_path, monkeypatch)
    assert "1 grown (0.weight 40x16 -> 60x16)" in printed
    scores = names["scores"]
    assert scores["continual", 3][1] > scores["new", 3][1]
    assert len(pictures) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the Trainer warns of its own affairs
def test_every_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five weeks with the HF Trainer: the small ones undo less of the large one."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    printed, names, pictures = run("every_week", tmp_path, monkeypatch)
    scores = names["scores"]
    after = [
        (scores["Continual AdamW", week][0], scores["a new AdamW", week][0]) for week in (2, 3, 4)
    ]
    assert all(kept > lost + 0.02 for kept, lost in after)
    assert "longtail_memory.safetensors" in printed
    assert len(pictures) == 1


@pytest.mark.slow
def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python and on the command line; a little of the pull helps and more does not."""
    printed, names, _ = run("own_method", tmp_path, monkeypatch)
    found = {name: values["RP"] for name, values in names["found"].items()}
    assert found["anchor, λ = 0.1"] > found["finetune"] > found["anchor, λ = 1.0"]
    assert "exit code 0" in printed
    assert (tmp_path / "runs" / "mine" / "summary.json").is_file()


@pytest.mark.slow
def test_reading_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, names, pictures = run("reading_a_study", tmp_path, monkeypatch)
    assert "40 runs, 40 finished; no problems" in printed
    assert {row["method"] for row in names["table"]["rows"]} == {"finetune", "reservoir"}
    assert [check["verdict"] for check in names["table"]["checks"]] == ["holds", "holds"]
    assert (tmp_path / "runs" / "my" / "report.html").is_file()
    assert len(pictures) == 1


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any, list[Any]]:
    """What the cells print, the names they leave, and what they draw."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    before = set(sys.modules)
    cells, names = BUILD.run(BUILD.cells_of(name))
    for module in set(sys.modules) - before:
        if module.startswith("my_"):  # the notebook's own
            del sys.modules[module]
    outputs = [out for cell in cells for out in cell.get("outputs", ())]
    printed = "".join(text for out in outputs for text in out.get("text", ()))
    return printed, names, [out for out in outputs if "image/png" in out.get("data", {})]
