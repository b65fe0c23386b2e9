"""The notebooks run as they are checked in, and are what their builder says."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.scripts import load

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "notebooks" / "every_week.ipynb"


def test_every_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three weeks, three processes, a grown vocabulary: less is forgotten with the memory."""
    pytest.importorskip("matplotlib")
    build: Any = load("docs/notebooks/build.py")
    saved = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in saved["cells"]]
    assert cells == build.CELLS
    monkeypatch.chdir(tmp_path)
    ran, names = build.run(cells)
    outputs = [out for cell in ran for out in cell.get("outputs", ())]
    printed = "".join(text for out in outputs for text in out.get("text", ()))
    assert "1 grown (0.weight 40x16 -> 60x16)" in printed
    scores = names["scores"]
    assert scores["continual", 3][1] > scores["reset", 3][1]
    assert any("image/png" in out.get("data", {}) for out in outputs)
