"""The soaks themselves, and what was published of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import soak

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "bench" / "results" / "soak").glob("*.json"))
MENDED = sorted((ROOT / "bench" / "results" / "soak" / "mended").glob("*.json"))
BAD = ("differing", "unclear", "hangs", "code", "crashes")


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


def test_a_published_command_has_no_path_of_the_machine(tmp_path):
    part, target = tmp_path / "part.json", tmp_path / "all.json"
    one = session()
    one["provenance"]["command"] = (
        "python a.py --jobs 2 --work /dev/shm --out '/home/anna/my out/a.json'"
    )
    soak.add(part, [one])
    soak.main([str(target), str(part)])
    (found,) = json.loads(target.read_text())["sessions"]
    assert found["provenance"]["command"] == "python a.py --jobs 2 --work PATH --out PATH"
    assert found["rows"] == one["rows"]


@pytest.mark.parametrize("path", PUBLISHED + MENDED, ids=lambda path: path.parent.name + path.stem)
def test_what_is_published_adds_up_and_says_where_it_is_from(path):
    content = json.loads(path.read_text("utf-8"))
    assert content["totals"] == soak.totals(content["sessions"])
    for one in content["sessions"]:
        assert soak.problems(one) == []
        assert len(one["provenance"]["commit"]) >= 7
        assert "dirty" not in one["provenance"]["commit"]
        assert soak.published(one) == one


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_what_counts_found_nothing(path):
    content = json.loads(path.read_text("utf-8"))
    assert {name: content["totals"][name] for name in BAD if name in content["totals"]} == {
        name: 0 for name in BAD if name in content["totals"]
    }


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "fuzz" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_small_kill_soak_of_every_kind(tmp_path):
    for kind in ("run", "study", "command", "workers"):
        out = tmp_path / f"{kind}.json"
        found = run("kill_soak.py", "--kills", "2", "--jobs", "1", "--kinds", f"{kind}=1",
                    "--work", str(tmp_path), "--out", str(out))  # fmt: skip
        assert found.returncode == 0, found.stdout + found.stderr
        totals = json.loads(out.read_text())["totals"]
        assert totals["kills"] >= 2
        assert totals["compared"] >= 1


@pytest.mark.slow
def test_a_small_input_soak(tmp_path):
    out = tmp_path / "inputs.json"
    found = run("input_soak.py", "--inputs", "2000", "--jobs", "2", "--work", str(tmp_path),
                "--out", str(out))  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    totals = json.loads(out.read_text())["totals"]
    assert totals["inputs"] >= 2000
    assert totals["accepted"] + totals["refused"] == totals["inputs"]
