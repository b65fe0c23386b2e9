import json
from pathlib import Path

import pytest

from helpers.made_up_runs import change_summaries, config, identity, scored, set_rp, write_run
from longtail.report import checks, figures, read
from longtail.report.command import write
from longtail.report.frame import Frames
from longtail.report.select import Tried, as_json, select, without_selection
from longtail.report.table import build
from longtail.report.text import cells


def rates(frames: Frames) -> set[float]:
    return {frames.entries[place].config["train"]["lr"] for place in frames.stored.index}


def _with_learning_rates(folder: Path, validation: dict[float, float | None]) -> Frames:
    entries = []
    for lr, value in validation.items():
        for seed in (0, 1):
            settings = config(seed=seed, lr=lr)
            path = write_run(folder / "runs" / identity(settings), settings) / "summary.json"
            # test scores point the other way: selection must not look at them
            set_rp(path.parent, 1 - (value or 0))
            summary = json.loads(path.read_text())
            path.write_text(
                json.dumps(summary if value is None else {**summary, "validation": value})
            )
            labels = {"method": "finetune", "policy": "continual", "lr": lr}
            entries.append({"id": identity(settings), "labels": labels})
    plan = {"runs": entries, "select": {"key": "train.lr"}}
    (folder / "plan.json").write_text(json.dumps(plan))
    return read(folder)


def test_selection_goes_by_validation_and_never_by_test_scores(tmp_path: Path):
    frames, _ = select(_with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9}))
    assert rates(frames) == {0.01}
    assert frames.state == "4 of 4 runs finished; 2 are selected and shown."
    assert "lr chosen by validation score: Finetune Continual AdamW 0.01" in " ".join(
        build(frames).notes
    )


@pytest.mark.parametrize(
    ("scores", "ends"),
    [
        ({0.1: 0.5, 0.01: 0.9}, ["lr"]),
        ({0.1: 0.5, 0.01: 0.9, 0.001: 0.4}, []),
        ({0.1: 0.5, 0.01: 0.9, 0.001: float("nan")}, []),  # tried, and no candidate
        ({0.01: 0.9}, []),  # nothing else was tried, so it was not chosen
    ],
)
def test_a_value_at_an_end_of_what_was_tried_is_named(tmp_path: Path, scores: dict, ends: list):
    frames, choice = select(_with_learning_rates(tmp_path, scores))
    (entry,) = as_json(choice, 100.0)
    assert entry["method"] == "finetune"
    assert (entry["chosen"], entry["at_end"]) == ({"lr": 0.01}, ends)
    means = {each["lr"]: each["mean"] for each in entry["tried"]}
    wanted = {lr: None if score != score else 100 * score for lr, score in scores.items()}
    assert means == pytest.approx(wanted)
    told = "At an end of what was tried, so others may be better: Finetune Continual AdamW 0.01."
    assert (told in build(frames).notes) == bool(ends)


def test_a_reports_table_has_what_chose(tmp_path: Path):
    frames = _with_learning_rates(tmp_path / "runs", {0.1: 0.5, 0.01: 0.9})
    write(frames, tmp_path / "out", with_figures=False, with_page=False)
    (entry,) = json.loads((tmp_path / "out" / "table.json").read_text("utf-8"))["selection"]
    assert entry["score"] == "validation"
    assert [each["mean"] for each in entry["tried"]] == pytest.approx([50.0, 90.0])


def _with_two_settings(folder: Path) -> Frames:
    """RP is lr times strength, the best of two by two for seeds 7 and 8, the worst for seed 0."""
    entries = []
    for lr in (0.1, 0.2):
        for strength in (1.0, 2.0):
            for seed in (0, 7, 8):
                settings = config(seed=seed, lr=lr)
                settings["methods"] = {"strength": strength}
                made = write_run(folder / "runs" / identity(settings), settings)
                set_rp(made, lr * strength if seed else 1 - lr * strength)
                labels = {"method": "ewc", "policy": "new", "lr": lr, "strength": strength}
                entries.append({"id": identity(settings), "labels": labels})
    chosen = {"key": ["train.lr", "methods.strength"], "seeds": [7, 8]}
    (folder / "plan.json").write_text(json.dumps({"runs": entries, "select": chosen}))
    return read(folder)


def test_several_settings_are_selected_by_seeds_that_are_not_reported(tmp_path: Path):
    frames, _ = select(_with_two_settings(tmp_path))
    assert list(frames.runs["seed"]) == [0]
    (row,) = build(frames).rows
    assert row["selected"] == {"lr": 0.2, "strength": 2.0}
    assert (row["seeds"], row["RP"]) == (1, pytest.approx(60.0))
    told = "lr, strength chosen by RP of seeds 7 to 8: EWC AdamW new lr 0.2 strength 2.0"
    assert told in " ".join(build(frames).notes)


def test_seeds_that_choose_do_so_by_their_validation_score_where_they_have_one(tmp_path: Path):
    _with_two_settings(tmp_path)

    def turned(run: dict) -> dict:  # the other way round than their RP
        return {"validation": 100.0 - run["summary"]["RP"]} if run["seed"] else {}

    change_summaries(tmp_path, turned)
    frames, _ = select(read(tmp_path))
    (row,) = build(frames).rows
    assert row["selected"] != {"lr": 0.2, "strength": 2.0}
    assert "chosen by validation score of seeds 7 to 8" in " ".join(build(frames).notes)


def test_without_validation_scores_nothing_is_selected(tmp_path: Path):
    frames, _ = select(_with_learning_rates(tmp_path, {0.1: None, 0.01: None}))
    assert len(frames.runs) == 4
    assert "train.validation" in frames.problems[0]


def test_without_selection_every_value_has_a_line_and_its_validation_score(tmp_path: Path):
    one_row_each = "longtail_bench.claims.images:seq_mnist"
    frames = _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9})
    frames = frames.with_report(index=["method"], checks=["mc_improves", one_row_each])
    frames = without_selection(frames)
    assert frames.plan["report"]["checks"] == ["mc_improves"]
    frames, _ = select(frames)
    table = build(frames)
    assert cells(table).names == [("Finetune", "0.1"), ("Finetune", "0.01")]
    assert [row["validation"] for row in table.rows] == [50.0, 90.0]
    assert [title for title, _ in figures.panels_of(frames.lines, table)] == [
        "lr 0.1",
        "lr 0.01",
    ]
    without = [{**row, "policy": "new", "validation": 1.0, "RP": 0.0} for row in table.rows]
    claims = checks.run(["mc_improves"], [*table.rows, *without])
    assert [entry["claim"] for entry in claims] == [
        "Finetune lr=0.1: MC raises RP",
        "Finetune lr=0.01: MC raises RP",
    ]
    with pytest.raises(ValueError, match="no \\[select\\]"):
        without_selection(frames)


def test_seeds_that_choose_are_never_pooled_with_those_reported(tmp_path: Path):
    frames = without_selection(_with_two_settings(tmp_path))
    rows = build(frames).rows
    assert len(rows) == 8
    assert sorted(row["seeds"] for row in rows if row.get("chooses")) == [2, 2, 2, 2]
    others = {(row["lr"], row["strength"]): row["RP"] for row in rows if not row.get("chooses")}
    assert others[0.2, 2.0] == pytest.approx(60.0)
    assert {row["seeds"] for row in rows if not row.get("chooses")} == {1}
    written = write(frames, tmp_path / "out", with_figures=False, with_page=False)
    found = json.loads(written["json"].read_text())
    assert found["checks"] == []  # values of [select] are not compared by test scores
    assert "seeds 7 to 8" in written["md"].read_text()
    assert "| yes |" in written["md"].read_text()


def test_seeds_that_choose_are_not_shown_where_nothing_could_be_chosen(tmp_path: Path):
    _with_two_settings(tmp_path)
    change_summaries(tmp_path, lambda run: {"diverged_at": 3} if run["seed"] == 8 else {})
    frames, _ = select(read(tmp_path))
    assert set(frames.runs["seed"]) == {0}
    assert "by seeds 7 to 8, as of every value one diverged" in frames.problems[-1]


def test_multi_task_training_has_a_validation_score_too(tmp_path: Path):
    _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9})
    plan = (tmp_path / "plan.json").read_text().replace("finetune", "multitask")
    (tmp_path / "plan.json").write_text(plan)
    rows = build(without_selection(read(tmp_path))).rows
    assert [row["validation"] for row in rows] == [50.0, 90.0]
    assert [row["LP"] for row in rows] == [None, None]


def test_selection_takes_the_smallest_error_and_nothing_that_diverged(tmp_path: Path):
    _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9, 1.0: 0.1})

    def error(run: dict) -> dict:
        lost = run["train"]["lr"] == 1.0 and run["seed"] == 1
        # None is what NaN is written as
        return scored("mse", "mse", higher_is_better=False) | ({"validation": None} if lost else {})

    change_summaries(tmp_path, error)
    frames, _ = select(read(tmp_path))
    assert rates(frames) == {0.1}


def test_of_several_values_as_good_the_first_is_taken_and_what_nobody_scored_is_not():
    tried = Tried("validation", {"a": None, "b": 0.5, "c": 0.5}, higher_is_better=True)
    assert tried.best == "b"
    assert Tried("RP", {"a": None}, higher_is_better=False).best is None
