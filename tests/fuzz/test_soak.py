"""The soak itself, and how its sessions add up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import soak


def session(**counts: Any) -> dict[str, Any]:
    row = {"kind": "run", "device": "cpu", "kills": 3, "differing": [], "seconds": 1.5}
    return soak.session("cpu", {"seed": "0"}, [row | counts])


def test_sessions_add_up_and_none_counts_twice(tmp_path):
    path = tmp_path / "new" / "kills.json"
    first, second = session(), session(kills=4, differing=["finetune: scores.jsonl"])
    assert soak.add(path, [first])["kills"] == 3
    assert soak.add(path, [first, second]) == {"kills": 7, "differing": 1, "seconds": 3.0}
    assert len(json.loads(path.read_text())["sessions"]) == 2


def test_a_session_that_does_not_say_where_it_is_from_is_refused(tmp_path):
    broken = session()
    del broken["provenance"]["commit"]
    with pytest.raises(ValueError, match="lacks 'commit'"):
        soak.add(tmp_path / "kills.json", [broken])


@pytest.mark.slow
def test_a_small_kill_soak_of_every_kind(tmp_path):
    for kind in ("run", "study", "command", "workers"):
        out = tmp_path / f"{kind}.json"
        command = [sys.executable, str(Path(__file__).with_name("kill_soak.py"))]
        command += ["--kills", "2", "--jobs", "1", "--kinds", f"{kind}=1"]
        command += ["--work", str(tmp_path), "--out", str(out)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stdout + found.stderr
        totals = json.loads(out.read_text())["totals"]
        assert totals["kills"] >= 2
        assert totals["compared"] >= 1
