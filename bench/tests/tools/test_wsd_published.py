"""The published tables of WSD-CL, joined into one."""

import json
from pathlib import Path

import pytest

from helpers import scripts

RESULTS = Path(__file__).parents[2] / "results" / "wsd"


@pytest.fixture
def script():
    return scripts.load("bench/tools/wsd_published.py")


def test_the_published_table_is_that_of_its_parts(script):
    published = json.loads((RESULTS / "table.json").read_text("utf-8"))
    assert published == script.joined(RESULTS)
    rows = {(r["study"], r["method"], r["policy"], r["lr"]): r["RP"] for r in published["rows"]}
    assert len(rows) == len(published["rows"])  # each row says which run it is
    assert rows["wsd_one_epoch", "finetune", "continual", 1e-5] > 68


def test_a_row_no_run_of_the_study_can_have_is_refused(script):
    with pytest.raises(ValueError, match="derpp with new"):
        script.settings({"method": "derpp", "policy": "new"}, [])
