"""Unselected tables of a study, joined into one from which its selected table follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers import scripts
from longtail import cli
from longtail.report import text as report_text

STUDY = """
name = "made_up"
benchmark = "toy"
methods = ["finetune", "reservoir"]
seeds = "0-1"
[data]
tasks = 12
zero_shot = 1
cap = 40
[grid]
"train.lr" = [0.1, 0.01, 0.001]
[select]
key = "train.lr"
seeds = "100"
train = { validation = 0.2 }
[[policies]]
name = "continual"
policy = "continual"
train = { average = "task" }
[[policies]]
name = "new"
policy = "new"
[report]
title = "Made up"
checks = ["mc_improves"]
"""
Row = dict[str, Any]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return scripts.load("bench/tools/join_tables.py")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def line(method: str, policy: str, lr: float, rp: float, **more: Any) -> Row:
    """A row of two seeds, which are reported."""
    row: Row = {"method": method, "policy": policy, "lr": lr, "seeds": 2, "tasks": 12}
    row |= {"RP": rp, "RP_se": 0.5, "RP_by_seed": {"0": rp - 0.5, "1": rp + 0.5}}
    row |= dict.fromkeys(("LP", "FGT", "BWT"), 1.0)
    return {**row, "validation": None, "validation_se": None, **more}


def chooses(method: str, policy: str, lr: float, validation: float | None, **more: Any) -> Row:
    """A row of the seed that chooses, whose RP runs against its validation score."""
    row: Row = {"method": method, "policy": policy, "lr": lr, "chooses": True, "seeds": 1}
    row |= {"tasks": 12, "RP": -(validation or 0.0), "LP": 1.0, "FGT": 1.0, "BWT": 1.0}
    return {**row, "validation": validation, "validation_se": None, **more}


def both(method: str, policy: str) -> list[Row]:
    """Two values of a family, of which 0.01 is the best by validation."""
    scores = ((0.1, 50.0, 10.0), (0.01, 40.0, 20.0))
    some = [(line(method, policy, *s[:2]), chooses(method, policy, s[0], s[2])) for s in scores]
    return [row for pair in some for row in pair]


def write(path: Path, rows: list[Row], **about: Any) -> Path:
    origin = {"study": "made_up", "machine": path.stem}
    content = {"title": "x", "unit": "percent", "higher_is_better": True, "rows": rows}
    path.write_text(json.dumps({**content, "provenance": origin, **about}))
    return path


def contents(report: Any) -> dict[str, Any]:
    """What table.json will say."""
    return json.loads(report_text.as_json(*report))


def rounded(value: Any) -> Any:
    """Numbers without the last digits, in which two machines may differ."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 9) if isinstance(value, float) else value


def same_statistics(ours: list[Row], theirs: list[Row]) -> bool:
    """Whether two lists of tests are the same but for their order and for rounding."""
    texts = [sorted(json.dumps(rounded(entry)) for entry in some) for some in (ours, theirs)]
    return texts[0] == texts[1]


def test_joined_parts_are_what_a_report_of_all_runs_says(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    """A study that is trained here; its unselected table is taken apart and joined again."""
    study.write_text(STUDY.replace("[report]", '[report]\naverage = "beside"'))
    runs, whole = str(tmp_path / "runs"), tmp_path / "whole"
    assert cli.main(["study", str(study), "--out", runs, "--no-report", "--quiet"]) == 0
    report = ["report", runs, "--no-page", "--no-figures", "--quiet", "--out"]
    assert cli.main([*report, str(whole)]) == 0
    title = ["--title", "Made up, all rates"]
    assert cli.main([*report, str(whole / "all_rates"), "--no-select", *title]) == 0
    rows = json.loads((whole / "all_rates" / "table.json").read_text("utf-8"))["rows"]
    parts = [[row for row in rows if (row["lr"] == 0.01) == first] for first in (True, False)]
    files = [write(tmp_path / f"{i}.json", part) for i, part in enumerate(parts)]
    assert tool.main([str(study), str(tmp_path / "joined"), *map(str, files)]) == 0
    for name in ("table.json", "all_rates/table.json"):
        texts = [(folder / name).read_text("utf-8") for folder in (tmp_path / "joined", whole)]
        ours, theirs = ({**json.loads(text), "provenance": None} for text in texts)
        assert same_statistics(ours.pop("statistics"), theirs["statistics"])
        assert len(theirs.pop("statistics")) >= 8
        assert ours == theirs, name
    for name in (f"all_rates/table.{ending}" for ending in ("md", "tex")):
        kept = [(folder / name).read_bytes() for folder in (tmp_path / "joined", whole)]
        assert kept[0] == kept[1], name


def test_rows_stand_in_the_order_of_the_study(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    rows = [*both("reservoir", "new"), *both("finetune", "new"), *both("finetune", "continual")]
    joined = tool.join(study, [write(tmp_path / "a.json", rows[::-1])])
    named = [
        (row["method"], row["policy"], row["lr"], row.get("chooses", False))
        for row in joined.unselected.table.rows
    ]
    families = [("finetune", "continual"), ("finetune", "new"), ("reservoir", "new")]
    values = [(0.1, False), (0.1, True), (0.01, False), (0.01, True)]
    assert named == [(*family, *value) for family in families for value in values]
    assert joined.unselected.table.title == "Made up, all rates"


def test_lean_rows_choose_the_same(tool: ModuleType, study: Path, tmp_path: Path) -> None:
    rows = [{**row, "RP_by_seed": {"0": 1.0, "1": 2.0}} for row in both("finetune", "new")]
    file = write(tmp_path / "a.json", rows)
    whole, lean = (tool.join(study, [file], lean=lean) for lean in (False, True))
    assert lean.selected.table.rows == whole.selected.table.rows
    assert "RP_by_seed" in lean.selected.table.rows[0]
    for row in lean.unselected.table.rows:
        assert ("RP_by_seed" in row) != row.get("chooses", False)
        assert {"RP", "LP", "validation", "lr", "seeds"} <= row.keys()
    again = write(tmp_path / "b.json", lean.unselected.table.rows)
    assert tool.join(study, [again]).selected.table.rows == whole.selected.table.rows
    grown = [{**row, "RP_slope": 1.0, "RP_slope_by_seed": {"0": 1.0}} for row in rows]
    (row,) = tool.join(study, [write(tmp_path / "c.json", grown)], lean=True).selected.table.rows
    assert "RP_slope" in row
    assert "RP_slope_by_seed" not in row


def test_a_later_row_replaces_an_earlier_one_and_that_is_said(
    tool: ModuleType, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "first.json", both("finetune", "new"))
    newer = line("finetune", "new", 0.01, 45.0, seeds=3)
    second = write(tmp_path / "second.json", [newer])
    out = tmp_path / "out"
    assert tool.main([str(study), str(out), str(first), str(second)]) == 0
    said = capsys.readouterr().err
    assert said == (
        f"Finetune AdamW new, lr 0.01: the row of {second} (3 seeds) replaces that of "
        f"{first} (2 seeds)\n"
    )
    table = json.loads((out / "table.json").read_text("utf-8"))
    assert [row["RP"] for row in table["rows"]] == [45.0]
    for folder in (out, out / "all_rates"):
        found = sorted(path.suffix for path in folder.glob("table.*"))
        assert found == [".json", ".md", ".tex"]


@pytest.mark.parametrize(("higher", "best"), [(True, 0.01), (False, 0.1)])
def test_the_best_value_is_chosen_by_validation_scores(
    tool: ModuleType, study: Path, tmp_path: Path, higher: bool, best: float
) -> None:
    path = write(tmp_path / "a.json", both("finetune", "new"), higher_is_better=higher)
    report = tool.join(study, [path]).selected
    table = report.table
    (row,) = table.rows
    assert row["selected"] == {"lr": best}
    assert list(row)[:5] == ["method", "policy", "seeds", "tasks", "selected"]
    assert not {"lr", "chooses", "validation", "validation_se"} & row.keys()
    told = f"lr chosen by validation score of seed 100: Finetune AdamW new {best}."
    ends = f"At an end of what was tried, so others may be better: Finetune AdamW new {best}."
    assert table.notes == ("Mean ± standard error over 2 seeds, unit: percent.", told, ends)
    (entry,) = report.extra["selection"]
    assert (entry["chosen"], entry["at_end"]) == ({"lr": best}, ["lr"])
    validation = {
        row["lr"]: row["validation"] for row in both("finetune", "new") if "chooses" in row
    }
    assert {each["lr"]: each["mean"] for each in entry["tried"]} == validation


def test_without_any_validation_score_rp_of_the_choosing_seeds_decides(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    rows = [{**row, "validation": None} for row in both("finetune", "new")]
    table = tool.join(study, [write(tmp_path / "a.json", rows)]).selected.table
    assert [row["selected"] for row in table.rows] == [{"lr": 0.1}]
    assert table.notes[-2] == "lr chosen by RP of seed 100: Finetune AdamW new 0.1."


def test_a_value_that_diverged_is_not_chosen(tool: ModuleType, study: Path, tmp_path: Path) -> None:
    some = both("finetune", "new")
    some[-1] |= {"diverged": 1}
    found = tool.join(study, [write(tmp_path / "a.json", some)]).selected.table
    assert [row["selected"] for row in found.rows] == [{"lr": 0.1}]
    every = [{**row, "diverged": 1} if row.get("chooses") else row for row in some]
    found = tool.join(study, [write(tmp_path / "a.json", every)]).selected.table
    assert [(row["lr"], "selected" in row) for row in found.rows] == [(0.1, False), (0.01, False)]
    assert "no lr was selected by seed 100, as of every value one diverged" in found.notes[-1]


def test_a_family_without_a_reported_row_at_its_value_is_left_out_and_named(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    rows = [*both("finetune", "continual"), *both("finetune", "new")]
    lost = [row for row in rows if not (row["policy"] == "new" and row["seeds"] == 2)]
    lost.append(line("finetune", "new", 0.1, 50.0))  # not the value that was chosen
    joined = tool.join(study, [write(tmp_path / "a.json", lost)])
    assert [row["policy"] for row in joined.selected.table.rows] == ["continual"]
    chosen, _, left_out = joined.selected.table.notes[1:]
    assert chosen.endswith("Finetune Continual AdamW 0.01; Finetune AdamW new 0.01.")
    assert left_out == "Left out, as no seed is reported at the chosen value: Finetune AdamW new."
    assert len(joined.unselected.table.rows) == 7
    alone = [row for row in rows if row["seeds"] == 1]
    out = tmp_path / "out"
    tool.write({"": tool.join(study, [write(tmp_path / "b.json", alone)]).selected}, out)
    assert json.loads((out / "table.json").read_text("utf-8"))["rows"] == []
    assert "Left out" in (out / "table.md").read_text("utf-8")


def test_the_average_beside_is_a_family_of_its_own(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    averages = both("finetune", "continual, task average")
    averages[1]["validation"] = 30.0  # so that 0.1 is best
    path = write(tmp_path / "a.json", [*averages, *both("finetune", "continual")])
    with pytest.raises(ValueError, match="has no row Finetune continual, task average"):
        tool.join(study, [path])
    study.write_text(STUDY.replace("[report]", '[report]\naverage = "beside"'))
    joined = tool.join(study, [path])
    found = [(row["policy"], row["selected"]["lr"]) for row in joined.selected.table.rows]
    assert found == [("continual, task average", 0.1), ("continual", 0.01)]  # as in a report
    order = [(row["policy"], row["seeds"]) for row in joined.unselected.table.rows][:4]
    names = ["continual", "continual, task average"]
    assert order == [(name, seeds) for seeds in (2, 1) for name in names]


def test_several_settings_may_be_selected(tool: ModuleType, study: Path, tmp_path: Path) -> None:
    text = STUDY.replace("[select]", '"method.reservoir.buffer" = [5, 9]\n[select]')
    study.write_text(text.replace('key = "train.lr"', 'key = ["train.lr", "methods.buffer"]'))
    rows = [
        {"method": row.pop("method"), "policy": row.pop("policy"), "lr": row.pop("lr")}
        | {"buffer": size, **row}
        for size in (9, 5)
        for row in both("reservoir", "new")
    ]
    rows[3]["validation"] = 99.0
    rows += both("finetune", "new")  # which has no buffer
    table = tool.join(study, [write(tmp_path / "a.json", rows)]).selected.table
    chosen = [row["selected"] for row in table.rows]
    assert chosen == [{"lr": 0.01}, {"lr": 0.01, "buffer": 9}]
    assert table.notes[-2] == (
        "lr, buffer chosen by validation score of seed 100: "
        "Finetune AdamW new lr 0.01; Reservoir AdamW new lr 0.01 buffer 9."
    )


def test_checks_and_statistics_are_those_of_the_rows(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    rows = [*both("finetune", "continual"), *both("finetune", "new")]
    for row in rows:
        if row["policy"] == "continual" and row["seeds"] == 2:
            row["RP"] += 4.0
            row["RP_by_seed"] = {"1": row["RP"] + 0.5, "0": row["RP"] - 0.5, "7": 1.0}
    joined = tool.join(study, [write(tmp_path / "a.json", rows)])
    selected, unselected = contents(joined.selected), contents(joined.unselected)
    claims = [entry["claim"] for entry in selected["checks"]]
    assert claims == ["Finetune: MC raises RP"]
    assert selected["finding"].startswith("MC raises RP for Finetune")
    claims = [entry["claim"] for entry in unselected["checks"]]
    assert claims == [f"Finetune lr={lr}: MC raises RP" for lr in (0.1, 0.01)]
    (test,) = selected["statistics"]
    assert (test["metric"], test["n"], test["wins"], test["p"]) == ("RP", 2, 2, 0.5)
    assert test["mean"] == pytest.approx(4.0)
    assert [test["lr"] for test in unselected["statistics"]] == [0.1, 0.01]


def test_the_provenance_stays_flat_however_often_tables_are_joined(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    parts = [write(tmp_path / f"{p}.json", both("finetune", p)) for p in ("new", "continual")]
    tool.write({"all_rates": tool.join(study, parts).unselected}, tmp_path / "out")
    more = write(tmp_path / "more.json", both("reservoir", "new"))
    again = tool.join(study, [tmp_path / "out" / "all_rates" / "table.json", more, parts[0]])
    found = again.selected.extra["provenance"]
    assert (found["study"], found["joined_by"]) == ("made_up", "bench/tools/join_tables.py")
    assert found["report_by"].startswith("longtail ")
    assert [part["machine"] for part in found["parts"]] == ["new", "continual", "more"]
    assert len(again.selected.table.rows) == 3


def selected(path: Path, rp: dict[str, float], tried: dict[float, float] | None = None) -> Path:
    """A selected table of Finetune, as a report writes it, and what chose its last row."""
    rows = []
    for policy, value in rp.items():
        row = line("finetune", policy, 0.1, value)
        del row["lr"], row["validation"], row["validation_se"]
        rows.append(row)
    if tried is None:
        return write(path, rows)
    means = [{"lr": lr, "mean": mean} for lr, mean in tried.items()]
    labels = {"method": "finetune", "policy": policy}
    best = {"lr": max(tried, key=lambda lr: tried[lr])}
    entry = {**labels, "score": "validation", "chosen": best, "at_end": [], "tried": means}
    return write(path, rows, selection=[entry])


def test_a_published_table_gets_rows_of_a_later_session(
    tool: ModuleType, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY.replace('seeds = "100"\ntrain = { validation = 0.2 }\n', ""))
    old = selected(tmp_path / "old.json", {"continual": 60.0, "new": 50.0})
    tried = {0.1: 7.0, 0.01: 9.0, 0.001: 8.0}
    new = selected(tmp_path / "new.json", {"new": 59.0}, tried)
    out = tmp_path / "out"
    assert tool.main([str(study), str(out), str(old), str(new), "--selected"]) == 0
    said = capsys.readouterr()
    assert f"the row of {new} (2 seeds) replaces that of {old}" in said.err
    assert "2 rows\n" in said.out
    assert not (out / "all_rates").exists()
    found = json.loads((out / "table.json").read_text("utf-8"))
    assert [(row["policy"], row["RP"]) for row in found["rows"]] == [
        ("continual", 60.0),
        ("new", 59.0),
    ]
    assert [test["mean"] for test in found["statistics"] if test["metric"] == "RP"] == [1.0]
    (check,) = found["checks"]
    assert check["numbers"]["difference"] == pytest.approx(1.0)
    (entry,) = found["selection"]
    assert (entry["policy"], entry["chosen"], entry["at_end"]) == ("new", {"lr": 0.01}, [])
    assert {each["lr"]: each["mean"] for each in entry["tried"]} == tried
    assert (
        "lr chosen by validation score: Finetune AdamW new 0.01." in (out / "table.md").read_text()
    )
    assert [part["machine"] for part in found["provenance"]["parts"]] == ["old", "new"]
    back = tool.join_selected(study, [new, old])[0]  # of that row nobody knows what chose it
    assert "selection" not in back.extra


def test_a_selection_that_no_report_writes_is_refused(
    tool: ModuleType, study: Path, tmp_path: Path
) -> None:
    path = selected(tmp_path / "a.json", {"new": 50.0})
    table = json.loads(path.read_text("utf-8"))
    for wrong in ("x", [1], [{"tried": 3, "score": "RP"}], [{"score": "RP"}]):
        path.write_text(json.dumps({**table, "selection": wrong}))
        with pytest.raises(ValueError, match=r"a\.json: its selection is none that a report"):
            tool.join_selected(study, [path])


def selected_row(row: Row) -> Row:
    return {**row, "selected": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t["rows"].__setitem__(0, selected_row(t["rows"][0])), "not an unselected table"),
        (lambda t: t["rows"][0].pop("validation"), "not an unselected table"),
        (lambda t: t["rows"][0].pop("seeds"), "no row of a report"),
        (lambda t: t["rows"][0].update(RP="high"), "RP of Finetune AdamW new, lr 0.1 is 'high'"),
        (lambda t: t["rows"][0].update(lr=0.5), "no row Finetune AdamW new, lr 0.5"),
        (lambda t: t["rows"].clear(), "no rows in"),
        (lambda t: t.pop("rows"), "rows = None"),
        (lambda t: t.update(unit="error"), "unit = 'error', where 'percent' is wanted"),
        (lambda t: t["provenance"].update(study="other"), "the study 'other', not of 'made_up'"),
        (
            lambda t: t.update(rows=t["rows"][::2]),
            "Finetune AdamW new has rows to report, but none",
        ),
    ],
)
def test_what_is_no_unselected_table_of_the_study_is_refused(
    tool: ModuleType,
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], object],
    told: str,
) -> None:
    study.write_text(STUDY.replace("[report]", '[report]\nunit = "percent"'))
    path = write(tmp_path / "a.json", both("finetune", "new"))
    table = json.loads(path.read_text("utf-8"))
    change(table)
    path.write_text(json.dumps(table))
    assert tool.main([str(study), str(tmp_path / "out"), str(path)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_used_are_named(
    tool: ModuleType, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.json", both("finetune", "new"))
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    without = tmp_path / "without.toml"
    without.write_text(STUDY.replace('seeds = "100"\ntrain = { validation = 0.2 }\n', ""))
    out = tmp_path / "out"
    for file, where, table, told in (
        (study, out, tmp_path / "none.json", f"{tmp_path / 'none.json'} cannot be read: No such"),
        (study, out, tmp_path, f"{tmp_path} cannot be read: Is a directory"),
        (study, out, bad, f"{bad} cannot be read"),
        (without, out, good, "[select] names no seeds"),
        (tmp_path / "none.toml", out, good, "none.toml"),
        (study, good / "out", good, f"{good / 'out'}: cannot be made a folder"),
    ):
        assert tool.main([str(file), str(where), str(table)]) == 2
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1
        assert not out.exists()
