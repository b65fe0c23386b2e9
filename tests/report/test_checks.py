"""A results folder is data: what it names is not executed, unless a person says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from helpers.made_up_runs import write_study
from longtail.cli import main
from longtail.report import checks

EVIL = """
from pathlib import Path

Path("executed").write_text("")

def claims(rows):
    return [{"claim": "mine", "holds": True, "verdict": "holds", "numbers": {}}]
"""

COUNTING = """
calls = []

def claims(rows):
    calls.append(rows)
    claim = f"this is call {len(calls)}"
    return [{"claim": claim, "holds": True, "verdict": "holds", "numbers": {}}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = write_study(tmp_path / "runs")
    (folder / "evil.py").write_text(EVIL)
    plan = {"report": {"checks": ["mc_improves", "runs.evil:claims"]}}
    (folder / "plan.json").write_text(json.dumps(plan))
    yield folder
    for name in ("runs", "runs.evil"):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != ""]


def claims_of(folder: Path) -> list[str]:
    return [entry["claim"] for entry in json.loads((folder / "table.json").read_text())["checks"]]


def test_a_check_that_only_the_folder_names_is_not_executed_and_the_page_says_so(folder, capsys):
    assert main(["report", str(folder), "--no-figures"]) == 0
    assert not Path("executed").exists()
    table = json.loads((folder / "table.json").read_text())
    assert table["skipped_checks"] == ["runs.evil:claims"]
    assert any("MC raises RP" in claim for claim in claims_of(folder))  # ours still run
    assert "Not run: runs.evil:claims" in (folder / "report.html").read_text()
    assert "Not run: runs.evil:claims" in capsys.readouterr().out


def test_a_report_that_is_shown_runs_each_check_once(folder: Path, capsys):
    (folder / "evil.py").write_text(COUNTING)
    assert main(["report", str(folder), "--no-figures", "--no-page", "--trust"]) == 0
    shown = capsys.readouterr().out
    assert "holds      this is call 1" in shown
    assert "call 2" not in shown
    assert json.loads((folder / "table.json").read_text())["finding"] in shown


@pytest.mark.parametrize("flags", [["--trust"], ["--study", "mine.toml"]])
def test_a_check_that_a_person_names_runs(folder: Path, flags: list[str]):
    Path("mine.toml").write_text('[report]\nchecks = ["runs.evil:claims"]\n')
    assert main(["report", str(folder), "--no-figures", "--no-page", "--quiet", *flags]) == 0
    assert Path("executed").exists()
    assert "mine" in claims_of(folder)
    assert "skipped_checks" not in json.loads((folder / "table.json").read_text())


def test_a_study_file_with_other_checks_lets_none_of_the_folder_run(folder: Path):
    Path("mine.toml").write_text('[report]\nchecks = ["other:claims"]\n')
    assert main(["report", str(folder), "--no-page", "--no-figures", "--study", "mine.toml"]) == 0
    assert not Path("executed").exists()


@pytest.mark.parametrize("text", ["[report]\nchecks = 3", "[report", None])
def test_a_study_file_that_cannot_be_read_is_one_sentence(folder: Path, text, capsys):
    if text is not None:
        Path("mine.toml").write_text(text)
    assert main(["report", str(folder), "--study", "mine.toml"]) == 2
    assert capsys.readouterr().err.startswith("longtail: --study mine.toml")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("mc_improves", True),
        ("wsd", True),  # an installed package offers it
        ("longtail_bench.claims.wsd:wsd", False),  # a path, which could be anybody's
        ("longtail_bench.claims.wsd.evil:f", False),
        ("longtail.report.command:make_report", False),
        ("os:system", False),
    ],
)
def test_which_checks_are_ours(name: str, ours: bool):
    assert checks.is_ours(name) is ours


def test_the_seeds_that_are_left_of_a_row_decide_nothing():
    """Seven of ten seeds diverged: the mean of the other three is not that of the row."""
    ours = {"RP": 90.5, "RP_se": 0.3, "RP_by_seed": {"0": 90.0, "1": 90.5, "2": 91.0}}
    theirs = {"RP": 85.0, "RP_se": 0.1, "RP_by_seed": {str(i): 85.0 for i in range(10)}}
    assert checks.above("a", ours, theirs)["verdict"] == "holds"
    assert checks.above("a", {**ours, "diverged": 7}, theirs)["verdict"] == "undecided"
    lost = {"RP": None, "RP_se": None, "diverged": 10}  # all of them: no mean misleads anybody
    assert checks.above("a", lost, theirs)["verdict"] == "fails"


def test_of_several_margins_one_that_fails_decides_then_one_that_is_undecided():
    sure, noisy, lost = checks.Margin(1.0, 0.1), checks.Margin(3.0, 5.0), checks.Margin(-1.0, 0.1)
    assert checks.hardest([sure, checks.Margin(2.0, 0.1)]) is sure
    assert checks.hardest([sure, noisy]) is noisy
    assert checks.hardest([noisy, lost, sure]) is lost


@pytest.mark.parametrize("order", [1, -1])
def test_equal_scores_share_their_rank_in_whatever_order_they_stand(order: int):
    rows = [
        {"policy": "continual", "RP": rp, "RP_paper": paper, "RP_by_seed": {"0": rp, "1": rp}}
        for rp, paper in ((1.0, 70.0), (2.0, 70.0), (3.0, 80.0))
    ]
    (found,) = checks.run(["order_of_methods"], rows[::order])
    assert found["numbers"]["rank_correlation"] == pytest.approx(0.866, abs=1e-3)
    assert found["verdict"] == "holds"
    alone = [{key: value for key, value in row.items() if key != "RP_by_seed"} for row in rows]
    assert checks.run(["order_of_methods"], alone)[0]["verdict"] == "undecided"
