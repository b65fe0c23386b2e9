import csv
import io
import json
import re
from pathlib import Path

import pytest

from helpers.made_up_runs import (
    config,
    identity,
    scored,
    set_rp,
    write_run,
    write_stack,
    write_study,
)
from longtail.report import checks, figures, formats, papers, tables
from longtail.report.command import compare_policies, write
from longtail.report.groups import group
from longtail.report.latex import latex
from longtail.report.results import Results, load
from longtail.report.results_table import as_html
from longtail.report.selection import as_json, select, without_selection


def table_of(folder: Path, **report) -> tables.Table:
    results = load(folder)
    results.plan = {"report": report}
    return tables.build(results)


def test_rows_are_means_with_standard_errors_in_percent(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path)
    runs = [r for r in load(tmp_path).runs if r.labels == {"method": "ewc", "policy": "new"}]
    values = [100 * r.metric("RP") for r in runs]
    mean = sum(values) / 3
    row = checks.find(table.rows, method="ewc", policy="new")
    assert row["RP"] == pytest.approx(mean)
    assert row["RP_se"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 2 / 3) ** 0.5)
    assert row["seeds"] == 3


def test_paper_stands_beside_ours_and_the_best_is_bold(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path, paper="wsd", title="WSD <1>")
    text = formats.markdown(table)
    assert "WSD &lt;1>" in text
    assert "(78.76)" in text
    grid = tables.grid(table)
    assert grid.index == ["Method"]
    assert grid.columns[:2] == [("RP", "Continual AdamW"), ("RP", "AdamW new")]
    assert [names[0] for names, _ in grid.lines] == ["Finetune", "EWC", "DER++"]
    best = [
        (names[0], i) for names, cells in grid.lines for i, c in enumerate(cells) if c and c.best
    ]
    assert ("DER++", 0) in best
    assert ("DER++", 1) not in best


def test_forgetting_is_better_when_lower_and_errors_turn_everything_round(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path)
    assert [tables.better(table, m) for m in ("RP", "LP", "FGT", "BWT")] == [
        True,
        True,
        False,
        True,
    ]
    table.higher_is_better = False
    assert [tables.better(table, m) for m in ("RP", "FGT")] == [False, True]


def test_every_format_holds_every_row(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path)
    rows = list(csv.DictReader(io.StringIO(formats.as_csv(table))))
    assert [float(r["RP"]) for r in rows] == [r["RP"] for r in table.rows]
    assert latex(table).count(r"\\") == len(table.metrics) * (1 + 3)
    assert r"\textbf{" in latex(table)
    assert "DER++" in formats.text(table)
    assert as_html(table).count("<tr>") == len(table.metrics) * (1 + 3)


def test_headings_read_as_words(tmp_path: Path):
    write_study(tmp_path)
    results = load(tmp_path)
    for run in results.runs:
        run.summary["breakdown"] = {"zero_shot": {"RP": 0.5, "FGT": 0.1}}
    asked = ["breakdown.zero_shot.RP", "breakdown.zero_shot.FGT"]
    results.plan = {"report": {"metrics": asked}}
    table = tables.build(results)
    heads = ("RP↑ Continual AdamW", "RP↑ AdamW new", "FGT↓ Continual AdamW")
    assert " | ".join(f"zero shot {head}" for head in heads) in formats.markdown(table)
    read = re.sub(r'data-metric="[^"]*"', "", as_html(table))
    for text in (latex(table), formats.text(table), read):
        assert "zero shot FGT" in text
        assert "breakdown" not in text
        assert "zero_shot" not in text  # a bare underscore stops LaTeX


def test_names_are_escaped_in_every_format(tmp_path: Path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), config("<script>_&|", seed=seed))
    write_run(tmp_path / "other", config("ewc"))
    table = table_of(tmp_path)
    assert "<script>" not in as_html(table)
    assert r"\textless{}script\textgreater{}\_\&\textbar{}" in latex(table)
    assert "&lt;script>_&\\|" in formats.markdown(table)
    assert "[bold]" not in formats.text(table)


def test_no_row_is_drawn_over_another(tmp_path: Path):
    for tasks in (6, 12):
        for lr in (0.1, 0.2):
            settings = config(lr=lr)
            settings["data"] = {"tasks": tasks}
            write_run(tmp_path / f"{tasks}-{lr}", settings, tasks=tasks)
    for report in ({}, {"index": ["method"]}, {"index": ["lr"], "columns": "tasks"}):
        drawn = tables.grid(table_of(tmp_path, **report))
        cells = [cell for _, line in drawn.lines for cell in line if cell is not None]
        assert len(cells) == 4 * len(tables.METRICS), report


def test_rows_count_their_tasks_where_the_setting_says_all(tmp_path: Path):
    for name, setting in (("all", 0), ("some", 6)):
        write_run(tmp_path / name, {**config(), "data": {"tasks": setting}}, tasks=setting or 12)
    assert {row["tasks"] for row in table_of(tmp_path).rows} == {6, 12}


def test_nan_is_left_out_of_the_mean_and_said_so(tmp_path: Path):
    write_study(tmp_path)
    identity_ = identity(config("ewc", "new", 1))
    path = tmp_path / "runs" / identity_ / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "RP": float("nan")}))
    table = table_of(tmp_path)
    row = checks.find(table.rows, method="ewc", policy="new")
    assert row["diverged"] == 1
    assert row["RP"] > 0
    assert any("1 run diverged" in note and "†" in note for note in table.notes)
    marked = [cell.diverged for _, line in tables.grid(table).lines for cell in line if cell]
    assert sum(marked) == len(table.metrics)  # the cells of this row, as the note says
    for text in (formats.markdown(table), formats.text(table)):
        assert text.count("†") == len(table.metrics) + 1
    assert as_html(table).count("†") == len(table.metrics) + 2  # in its legend too
    assert latex(table).count(r"\dag{}") == len(table.metrics) + 1
    scores = path.with_name("scores.jsonl")
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    lines[-1]["scores"] = dict.fromkeys(lines[-1]["scores"])
    scores.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = checks.find(table_of(tmp_path).rows, method="ewc", policy="new")["RP_curve"]
    assert curve[-1] == pytest.approx(row["RP"])  # without this seed, as the means
    json.loads(
        formats.as_json(table, {"checks": [{"x": float("nan")}]}), parse_constant=pytest.fail
    )


def test_one_seed_has_no_standard_error(tmp_path: Path):
    write_study(tmp_path, seeds=1)
    table = table_of(tmp_path)
    assert "±" not in formats.markdown(table)
    assert "One seed" in table.notes[0]


def test_ablation_is_spread_over_its_settings(tmp_path: Path):
    named = {"method": "finetune", "policy": "x", "row": 7}
    rows = [
        {"id": identity(config(seed=s, lr=lr)), "labels": {**named, "setting": name}}
        for lr, name in ((0.1, "same"), (0.2, "shift"))
        for s in (0, 1)
    ]
    write_stack(tmp_path / "s", [config(seed=s, lr=lr) for lr in (0.1, 0.2) for s in (0, 1)])
    report = {"paper": "table1", "columns": "setting", "index": ["row"], "metrics": ["RP", "LP"]}
    (tmp_path / "plan.json").write_text(json.dumps({"runs": rows, "report": report}))
    table = tables.build(load(tmp_path))
    assert [(r["row"], r["setting"], r["RP_paper"]) for r in table.rows] == [
        (7, "same", 0.10),
        (7, "shift", 18.08),
    ]
    assert tables.grid(table).columns == [
        ("RP", "same"), ("RP", "shift"), ("LP", "same"), ("LP", "shift"),
    ]  # fmt: skip
    assert table.unit == "mse"


def test_paper_has_its_own_numbers():
    assert papers.numbers("wsd", {"method": "derpp", "policy": "continual"})["RP"] == 79.12
    assert papers.numbers("table1", {"row": 11, "setting": "shift"}) == {"RP": 6.28}
    assert papers.numbers("nlp5", {"method": "multitask", "policy": "new"}) == {}
    for ours, theirs, unit, found in (
        (70.0, 70.9, "percent", "close"),
        (70.0, 71.1, "percent", "near"),
        (70.0, 75.1, "percent", "far"),
        (0.1, 0.12, "mse", "close"),
        (0.1, 0.13, "mse", "near"),
        (0.1, 0.21, "mse", "far"),
        (-0.1, 0.1, "mse", "far"),
        (0.0, 0.005, "mse", "close"),
    ):
        assert papers.agreement(ours, theirs, unit) == found, (ours, theirs)
    with pytest.raises(ValueError, match="known: table1"):
        papers.unit("nope")


def test_checks_compute_their_claims_and_miss_their_rows_loudly(tmp_path: Path):
    write_study(tmp_path)
    rows = table_of(tmp_path).rows
    claims = checks.run(["mc_improves", "mc_forgets_less", "multitask_is_best"], rows)
    assert [c["holds"] for c in claims] == [True] * 6 + [False]
    assert "missing" in claims[-1]["numbers"]
    for row in rows:
        row["policy"] = {"continual": "new", "new": "continual"}[row["policy"]]
    assert not any(c["holds"] for c in checks.run(["mc_improves"], rows))
    for i, row in enumerate(rows):  # numbers of a row are no part of its name
        row |= {"late.RP": 0.1 * i, "late.polysemous_RP": 0.2 * i, "baselines.chance.head": 0.3 * i}
    assert len(checks.run(["mc_improves"], rows)) == 3
    with pytest.raises(ValueError, match="mc_improves"):
        checks.run(["mc_improve"], rows)
    alone = [{"method": "multitask", "policy": "new", "RP": 1.0}]  # as when half a study is done
    for name in ("multitask_is_best", "order_of_methods", "json:loads"):
        (found,) = checks.run([name], alone)
        assert not found["holds"]
        assert "Error" in found["numbers"]["missing"]
    with pytest.raises(ValueError, match="not a function"):
        checks.lookup("longtail:__version__")


def test_policies_are_compared_seed_by_seed(tmp_path: Path):
    write_study(tmp_path, seeds=5)
    tests = compare_policies(group(load(tmp_path).runs), ("continual", "new"), "percent")
    ewc = next(t for t in tests if t["method"] == "ewc" and t["metric"] == "RP")
    assert (ewc["n"], ewc["wins"], ewc["p"]) == (5, 5, 2 / 32)
    assert ewc["p_holm"] == pytest.approx(3 * 2 / 32)
    assert ewc["low"] < ewc["mean"] < ewc["high"]


def _with_learning_rates(folder: Path, validation: dict[float, float | None]) -> Results:
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
    return load(folder)


def test_selection_goes_by_validation_and_never_by_test_scores(tmp_path: Path):
    results = _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9})
    select(results)
    assert {run.config["train"]["lr"] for run in results.runs} == {0.01}
    assert results.state == "4 of 4 runs finished; 2 are selected and shown."
    assert "lr chosen by validation score: Finetune Continual AdamW 0.01" in " ".join(
        tables.build(results).notes
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
    results = _with_learning_rates(tmp_path, scores)
    (entry,) = as_json(select(results), "percent")
    assert entry["method"] == "finetune"
    assert (entry["chosen"], entry["at_end"]) == ({"lr": 0.01}, ends)
    means = {each["lr"]: each["mean"] for each in entry["tried"]}
    wanted = {lr: None if score != score else 100 * score for lr, score in scores.items()}
    assert means == pytest.approx(wanted)
    told = "At an end of what was tried, so others may be better: Finetune Continual AdamW 0.01."
    assert (told in tables.build(results).notes) == bool(ends)


def test_a_reports_table_has_what_chose(tmp_path: Path):
    results = _with_learning_rates(tmp_path / "runs", {0.1: 0.5, 0.01: 0.9})
    write(results, tmp_path / "out", with_figures=False, with_page=False)
    (entry,) = json.loads((tmp_path / "out" / "table.json").read_text("utf-8"))["selection"]
    assert entry["score"] == "validation"
    assert [each["mean"] for each in entry["tried"]] == pytest.approx([50.0, 90.0])


def _with_two_settings(folder: Path) -> Results:
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
    return load(folder)


def test_several_settings_are_selected_by_seeds_that_are_not_reported(tmp_path: Path):
    results = _with_two_settings(tmp_path)
    select(results)
    assert [run.seed for run in results.runs] == [0]
    (row,) = tables.build(results).rows
    assert row["selected"] == {"lr": 0.2, "strength": 2.0}
    assert (row["seeds"], row["RP"]) == (1, pytest.approx(60.0))
    told = "lr, strength chosen by RP of seeds 7 to 8: EWC AdamW new lr 0.2 strength 2.0"
    assert told in " ".join(tables.build(results).notes)


def test_seeds_that_choose_do_so_by_their_validation_score_where_they_have_one(tmp_path: Path):
    results = _with_two_settings(tmp_path)
    for run in results.runs:  # the other way round than their RP
        if run.seed != 0:
            run.summary["validation"] = 100.0 - run.summary["RP"]
    select(results)
    (row,) = tables.build(results).rows
    assert row["selected"] != {"lr": 0.2, "strength": 2.0}
    assert "chosen by validation score of seeds 7 to 8" in " ".join(tables.build(results).notes)


def test_without_validation_scores_nothing_is_selected(tmp_path: Path):
    results = _with_learning_rates(tmp_path, {0.1: None, 0.01: None})
    select(results)
    assert len(results.runs) == 4
    assert "train.validation" in results.problems[0]


def test_without_selection_every_value_has_a_line_and_its_validation_score(tmp_path: Path):
    results = _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9})
    one_row_each = "longtail_bench.claims.images:seq_mnist"
    results.plan["report"] = {"index": ["method"], "checks": ["mc_improves", one_row_each]}
    without_selection(results)
    assert results.plan["report"]["checks"] == ["mc_improves"]
    select(results)
    table = tables.build(results)
    assert [line[0] for line in tables.grid(table).lines] == [
        ["Finetune", "0.1"],
        ["Finetune", "0.01"],
    ]
    assert [row["validation"] for row in table.rows] == [50.0, 90.0]
    assert [title for title, _ in figures.panels(group(results.runs), table)] == [
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
        without_selection(results)


def test_seeds_that_choose_are_never_pooled_with_those_reported(tmp_path: Path):
    results = _with_two_settings(tmp_path)
    without_selection(results)
    rows = tables.build(results).rows
    assert len(rows) == 8
    assert sorted(row["seeds"] for row in rows if row.get("chooses")) == [2, 2, 2, 2]
    others = {(row["lr"], row["strength"]): row["RP"] for row in rows if not row.get("chooses")}
    assert others[0.2, 2.0] == pytest.approx(60.0)
    assert {row["seeds"] for row in rows if not row.get("chooses")} == {1}
    written = write(results, tmp_path / "out", with_figures=False, with_page=False)
    found = json.loads(written["json"].read_text())
    assert found["checks"] == []  # values of [select] are not compared by test scores
    assert "seeds 7 to 8" in written["md"].read_text()
    assert "| yes |" in written["md"].read_text()


def test_seeds_that_choose_are_not_shown_where_nothing_could_be_chosen(tmp_path: Path):
    results = _with_two_settings(tmp_path)
    for run in results.runs:
        if run.seed == 8:
            run.summary["diverged_at"] = 3
    select(results)
    assert {run.seed for run in results.runs} == {0}
    assert "by seeds 7 to 8, as of every value one diverged" in results.problems[-1]


def test_multi_task_training_has_a_validation_score_too(tmp_path: Path):
    results = _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9})
    for run in results.runs:
        run.labels["method"] = "multitask"
    without_selection(results)
    rows = tables.build(results).rows
    assert [row["validation"] for row in rows] == [50.0, 90.0]
    assert [row["LP"] for row in rows] == [None, None]


def test_selection_takes_the_smallest_error_and_nothing_that_diverged(tmp_path: Path):
    results = _with_learning_rates(tmp_path, {0.1: 0.5, 0.01: 0.9, 1.0: 0.1})
    for run in results.runs:
        run.summary |= scored("mse", "mse", higher_is_better=False)
        if run.config["train"]["lr"] == 1.0 and run.seed == 1:
            run.summary["validation"] = None  # what NaN is written as
    select(results)
    assert {run.config["train"]["lr"] for run in results.runs} == {0.1}


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        ([0, 1, 2, 3], True),
        ([-4, -3, -2, -1], False),  # it grows, and stays below
        ([3, 2, 1, 0], False),
        ([1, 9, 9, 1], False),  # as large in the end as at first
    ],
)
def test_a_gap_grows_where_it_is_larger_at_the_end_and_above_zero(ours: list[int], holds: bool):
    tasks = [10, 20, 30, 40]
    known = {"RP_after": tasks}
    known |= {f"RP_{part}_se": 0.01 for part in ("slope", "first", "last", "growth")}
    row, other = ({**known, "RP_curve": curve} for curve in (ours, [0] * 4))
    assert checks.gap_grows("", row, other)["holds"] == holds
    error = {**known, "RP_curve": [-value for value in ours]}
    assert checks.gap_grows("", error, other, sign=-1)["holds"] == holds
    one_seed = {"RP_after": tasks, "RP_curve": ours}
    assert checks.gap_grows("", one_seed, one_seed)["verdict"] == "undecided"


def test_parts_of_the_tasks_have_scores_by_seed_too(tmp_path: Path):
    """So that a claim on small tasks is as sharp as one on all of them."""
    write_study(tmp_path)
    for path in tmp_path.rglob("summary.json"):
        summary = json.loads(path.read_text())
        path.write_text(json.dumps({**summary, "breakdown": {"tail": {"RP": summary["RP"] / 2}}}))
    (tmp_path / "plan.json").write_text(json.dumps({"report": {"further": ["breakdown.tail.RP"]}}))
    results = load(tmp_path)
    for row in tables.build(results, group(results.runs)).rows:
        halves = {seed: value / 2 for seed, value in row["RP_by_seed"].items()}
        assert row["breakdown.tail.RP_by_seed"] == pytest.approx(halves)


def test_rows_that_share_their_seeds_are_compared_seed_by_seed():
    ours = {"RP": 52.0, "RP_se": 5.0, "RP_by_seed": {"0": 41.0, "1": 63.0}}
    theirs = {"RP": 51.0, "RP_se": 5.0, "RP_by_seed": {"0": 40.0, "1": 62.0}}
    assert checks.above("", ours, theirs)["verdict"] == "holds"  # by one point in every seed
    apart = {**theirs, "RP_by_seed": {"2": 40.0, "3": 62.0}}
    assert checks.above("", ours, apart)["verdict"] == "undecided"
    assert checks.above("", {"RP": 52.0, "RP_se": None}, theirs)["verdict"] == "undecided"
    assert checks.above("", apart, {"RP": None}, lower=True)["verdict"] == "holds"  # diverged


def test_a_row_that_diverged_is_the_worst_whichever_way_is_better():
    known, lost = {"RP": 52.0, "RP_se": 1.0}, {"RP": None}
    for lower in (False, True):
        assert checks.above("", known, lost, lower=lower)["verdict"] == "holds"
        assert checks.above("", lost, known, lower=lower)["verdict"] == "fails"
        assert checks.above("", lost, lost, lower=lower)["verdict"] == "undecided"
    assert checks.at_least("", lost, 10.0)["verdict"] == "fails"


def test_ranks_are_correlated_not_values():
    rows = [
        {"policy": "continual", "RP": ours, "RP_paper": theirs}
        for ours, theirs in ((1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (-900.0, 40.0))
    ]
    (found,) = checks.run(["order_of_methods"], rows)
    assert found["numbers"]["rank_correlation"] == pytest.approx(-0.2)
    assert not found["holds"]


def test_curves_start_where_sequences_are_evaluated():
    import numpy as np

    from longtail.report.groups import drop_first_task

    assert drop_first_task(np.array([1, 50, 100])).tolist() == [50, 100]
    assert drop_first_task(np.array([1, 2, 3])).tolist() == [1, 2, 3]
    assert drop_first_task(np.array([1])).tolist() == [1]


def test_multitask_has_rp_alone(tmp_path: Path):
    """It learns no task after another: what it forgets says nothing."""
    for method in ("finetune", "multitask"):
        write_run(tmp_path / method, config(method))
    row = checks.find(table_of(tmp_path).rows, method="multitask")
    assert row["RP"] is not None
    assert [row[metric] for metric in ("LP", "FGT", "BWT")] == [None] * 3


def test_a_metric_that_no_run_has_is_named(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path, metrics=["RP", "breakdown.taill.RP"])
    assert table.metrics == ["RP"]
    assert "No run has a value of breakdown.taill.RP." in table.notes
    assert not any("No run has" in note for note in table_of(tmp_path, metrics=["RP"]).notes)


def test_runs_of_several_benchmarks_keep_their_units_and_are_named_by_them(tmp_path: Path):
    for benchmark, seed in (("toy", 0), ("toy", 1), ("synthetic", 0)):
        settings = {**config(seed=seed), "benchmark": benchmark, "data": {"of": benchmark}}
        folder = write_run(tmp_path / f"{benchmark}{seed}", settings)
        if benchmark == "synthetic":
            path = folder / "summary.json"
            kind = scored("mse", "mse", higher_is_better=False)
            found = {**json.loads(path.read_text()), **kind}
            path.write_text(json.dumps(found))
    table = table_of(tmp_path)
    wanted = {"method": "finetune", "policy": "continual"}
    assert [{k: r[k] for k in (*wanted, "benchmark", "seeds")} for r in table.rows] == [
        {**wanted, "benchmark": "synthetic", "seeds": 1},
        {**wanted, "benchmark": "toy", "seeds": 2},
    ]
    assert "of" not in table.rows[0]  # a setting that does not vary within a benchmark
    run = next(r for r in load(tmp_path).runs if r.labels["benchmark"] == "synthetic")
    assert table.rows[0]["RP"] == run.metric("RP")  # not a hundred times that
    assert table.unit == "mse and accuracy"
    text = formats.markdown(table)
    assert "| benchmark | RP |" in text
    assert "**" not in text


def test_best_is_bold_within_a_benchmark(tmp_path: Path):
    for benchmark, found in (
        ("toy", {"ewc": 0.2, "derpp": 0.3}),
        ("mnist", {"ewc": 0.9, "agem": 0.8}),
    ):
        for method, rp in found.items():
            settings = {**config(method), "benchmark": benchmark}
            set_rp(write_run(tmp_path / f"{benchmark}-{method}", settings), rp)
    text = formats.markdown(table_of(tmp_path, metrics=["RP"]))
    assert "| DER++ | toy | **30.00** |" in text
    assert "| EWC | mnist | **90.00** |" in text
    assert text.count("**") == 4


def test_a_setting_that_is_a_list_is_a_label_like_any_other(tmp_path: Path):
    for i, betas in enumerate(([0.9, 0.999], [0.9, 0.99])):
        write_run(tmp_path / str(i), config(betas=betas))
    assert "| [0.9, 0.999] |" in formats.markdown(table_of(tmp_path))
