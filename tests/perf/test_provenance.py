"""Every published measurement says where it is from, in the same words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from helpers.scripts import load

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "bench" / "results" / "perf").glob("*.json"))

provenance = load("perf/provenance.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_published_file_follows_the_schema(path):
    assert provenance.problems(json.loads(path.read_text("utf-8"))) == []


def test_what_is_written_follows_the_schema(tmp_path, monkeypatch):
    script = tmp_path / "perf" / "some.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--json", "a file"])
    provenance.write("x.json", [{"ms": 1.5}], "cpu", settings={"steps": 3}, bars={"ms": 2})
    content = json.loads(Path("x.json").read_text())
    assert provenance.problems(content) == []
    assert content["rows"] == [{"ms": 1.5}]
    assert content["provenance"]["command"] == "python perf/some.py --json 'a file'"
    assert content["provenance"]["hardware"]["gpu"] is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: c.pop("provenance"), "no provenance"),
        (lambda c: c["provenance"].pop("commit"), "lacks 'commit'"),
        (lambda c: c["provenance"]["hardware"].update(colour="red"), "unknown 'colour'"),
        (lambda c: c.update(speed=3.0), "unknown part 'speed'"),
        (lambda c: c.update(rows=[]), "rows are not"),
        (lambda c: c.update(ratios=3.0), "ratios is not a table"),
    ],
)
def test_a_file_that_strays_is_told_how(change, problem):
    content = {"provenance": provenance.provenance("cpu"), "rows": [{"ms": 1.0}]}
    change(content)
    [found] = provenance.problems(content)
    assert problem in found


def test_what_strays_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="unknown part 'speed'"):
        provenance.write(tmp_path / "x.json", [{"ms": 1.0}], "cpu", speed=3.0)
    assert not (tmp_path / "x.json").exists()
