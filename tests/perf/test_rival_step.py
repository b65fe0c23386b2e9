"""What a rival keeps is what its page, its claims and the joined table say it keeps."""

from __future__ import annotations

import sys

import pytest

from helpers.scripts import ROOT, load
from longtail_bench.claims.rivals import extra_bytes

sys.path.insert(0, str(ROOT / "perf"))
script = load("perf/rival_step.py")


@pytest.mark.parametrize("rival", script.rivals(), ids=lambda r: f"{r.method}-{r.row}")
def test_a_rival_keeps_as_much_as_it_is_said_to(rival) -> None:
    said = extra_bytes({"method": rival.method, "policy": rival.row})
    assert script.kept_bytes(rival) == pytest.approx(said, abs=0.05)
