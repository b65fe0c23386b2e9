"""What summary.json says of a run that keeps an average of its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longtail import cli


@pytest.mark.parametrize(("tasks", "same"), [(1, True), (6, False)])
def test_further_scores_of_the_average_stand_beside_its_main_one(tmp_path: Path, tasks, same):
    """After one task the average is the weights; after several every score of it is another."""
    settings = ["--miniature", "--tasks", str(tasks), "--set", "train.average=task"]
    assert cli.main(["run", "fsmol", *settings, "--quiet", "--out", str(tmp_path / "run")]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    average = found["average"]
    assert (average["RP"] == found["RP"]) is same
    assert (average["roc_auc"] == found["roc_auc"]) is same
    assert set(found["roc_auc"]) == set(average["roc_auc"])
    assert [key for key in found if key.startswith("average")] == ["average"]
