"""What is published about claims is what the checks say of the published rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from helpers import scripts

from longtail.report.checks import tally

RESULTS = scripts.ROOT / "results"
TABLES = sorted(RESULTS.rglob("table.json"))


@pytest.fixture(scope="module")
def recheck() -> ModuleType:
    return scripts.load("studies/tools/recheck.py")


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.parent.relative_to(RESULTS).as_posix())
def test_published_checks_follow_from_the_published_rows(path: Path, recheck: ModuleType) -> None:
    table = json.loads(path.read_text("utf-8"))
    if names := recheck.checks_of(path.parent.relative_to(RESULTS).as_posix()):
        assert json.loads(json.dumps(recheck.recheck(table, names))) == table["checks"]


def test_pages_count_the_checks_as_they_are() -> None:
    """Wherever a page says how many checks hold, a published table has just that."""
    known = {tally(json.loads(p.read_text("utf-8"))["checks"]) for p in TABLES}
    counts = re.compile(r"\d+ of \d+ hold(?:, \d+ fail)?(?:, \d+ undecided)?")
    for page in [scripts.ROOT / "README.md", scripts.ROOT / "REPRODUCIBILITY.md"]:
        text = " ".join(page.read_text("utf-8").split())
        found = counts.findall(text)
        assert found, page.name
        assert [count for count in found if count not in known] == [], page.name
        assert "checks hold" not in text, page.name  # a count in other words would go unnoticed
