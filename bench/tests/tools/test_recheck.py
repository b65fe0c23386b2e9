"""What is published about claims is what the checks say of the published rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from helpers import scripts

RESULTS = scripts.ROOT / "bench" / "results"
TABLES = sorted(RESULTS.rglob("table.json"))


@pytest.fixture(scope="module")
def recheck() -> ModuleType:
    return scripts.load("bench/tools/recheck.py")


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.parent.relative_to(RESULTS).as_posix())
def test_published_checks_follow_from_the_published_rows(path: Path, recheck: ModuleType) -> None:
    table = json.loads(path.read_text("utf-8"))
    if names := recheck.checks_of(path.parent.relative_to(RESULTS).as_posix()):
        found = recheck.recheck(table, names)
        assert found == {key: table[key] for key in found}
