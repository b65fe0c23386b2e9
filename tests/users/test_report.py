"""A study without checks and without a pair: nothing is claimed of the rows that scored best."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RATES = """
name = "rates"
benchmark = "toy"
methods = ["finetune"]
policies = ["new"]
seeds = "0-2"

[data]
tasks = 8
zero_shot = 0
cap = 20

[grid]
"train.lr" = [0.01, 0.0101, 0.0102, 0.0103, 0.0104, 0.0105, 0.0106, 0.0107, 0.0108]
"""


def test_of_nine_rows_that_differ_by_chance_none_is_said_to_be_best(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(RATES)
    for arguments in (["study", "study.toml", "--out", "out", "--quiet"], ["report", "out"]):
        command = [sys.executable, "-m", "longtail", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
    table = json.loads((tmp_path / "out/table.json").read_text())
    assert len(table["rows"]) == 9
    assert table["checks"] == []
    assert table["finding"] == "9 rows, of which nothing is claimed; see the table."
    assert table["finding"] in (tmp_path / "out/report.html").read_text()
