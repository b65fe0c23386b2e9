import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from helpers.made_up_runs import (
    change_summaries,
    config,
    identity,
    scored,
    set_rp,
    write_run,
    write_stack,
    write_study,
)
from longtail.names import METRICS
from longtail.report import checks, papers, read, text
from longtail.report.frame import drop_first_task
from longtail.report.page import Content, render
from longtail.report.reading import ScoreKind
from longtail.report.table import Table, build
from longtail.report.text import cells, latex, markdown
from longtail.report.verdicts import MC, Finding, compare_policies


def table_of(folder: Path, **report) -> Table:
    return build(replace(read(folder), plan={"report": report}))


def as_html(table: Table, ours: str = "") -> str:
    """The section of a page that shows the table."""
    frames = read(Path(__file__).parent)  # of no runs
    said = Finding("", [])
    page = render(Content(frames, table, [], [], said, {}, (ours, MC[1]), None, []))
    return page[page.index('<section id="results"') : page.index('<section id="settings"')]


def test_rows_are_means_with_standard_errors_in_percent(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path)
    runs = read(tmp_path).runs
    values = list(runs[runs["method"].eq("ewc") & runs["policy"].eq("new")]["RP"])
    mean = sum(values) / 3
    row = checks.find(table.rows, method="ewc", policy="new")
    assert row["RP"] == pytest.approx(mean)
    assert row["RP_se"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 2 / 3) ** 0.5)
    assert row["seeds"] == 3


def test_paper_stands_beside_ours_and_the_best_is_bold(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path, paper="wsd", title="WSD <1>")
    shown = markdown(table)
    assert "WSD &lt;1>" in shown
    assert "(78.76)" in shown
    grid = cells(table)
    assert grid.heads == ["Method"]
    assert grid.columns[:2] == [("RP", "Continual AdamW"), ("RP", "AdamW new")]
    assert [names[0] for names in grid.names] == ["Finetune", "EWC", "DER++"]
    best = [(names[0], i) for names, line in grid.lines() for i, c in enumerate(line) if c.best]
    assert ("DER++", 0) in best
    assert ("DER++", 1) not in best


def test_forgetting_is_better_when_lower_and_errors_turn_everything_round(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path)
    better = table.kinds.better
    assert list(map(better, ("RP", "LP", "FGT", "BWT"))) == [True, True, False, True]
    error = replace(table.kinds, lead=ScoreKind("mse", higher_is_better=False))
    assert list(map(error.better, ("RP", "FGT"))) == [False, True]


def test_every_format_holds_every_row(tmp_path: Path):
    write_study(tmp_path)
    table = table_of(tmp_path)
    assert latex(table).count(r"\\") == len(table.metrics) * (1 + 3)
    assert r"\textbf{" in latex(table)
    assert "DER++" in plain(table)
    assert as_html(table).count("<tr>") == len(table.metrics) * (1 + 3)


def plain(table: Table) -> str:
    """The table as a terminal shows it that is as wide as it needs."""
    console = Console(file=io.StringIO(), width=400, color_system=None, legacy_windows=False)
    text.print_terminal(table, console)
    return console.file.getvalue()


def test_csv_has_a_line_a_run_and_score_and_no_cell_that_a_spreadsheet_computes(tmp_path: Path):
    for seed in (0, 1):
        settings = config("=1+1", seed=seed, betas=[0.9, 0.1 * seed])
        write_run(tmp_path / str(seed), settings)
    frames = read(tmp_path)
    lines = list(csv.DictReader(io.StringIO(text.as_csv(frames))))
    assert len(lines) == 2 * len(METRICS)
    assert list(lines[0]) == ["run", "method", "policy", "betas", "seed", "metric", "value"]
    assert {line["method"] for line in lines} == {"'=1+1"}
    assert lines[0]["betas"] == "[0.9, 0.0]"
    wanted = frames.runs[list(METRICS)].to_numpy().ravel()
    assert [float(line["value"]) for line in lines] == pytest.approx(list(wanted))


def test_headings_read_as_words(tmp_path: Path):
    write_study(tmp_path)
    change_summaries(tmp_path, lambda run: {"breakdown": {"zero_shot": {"RP": 0.5, "FGT": 0.1}}})
    table = table_of(tmp_path, metrics=["breakdown.zero_shot.RP", "breakdown.zero_shot.FGT"])
    heads = ("RP↑ Continual AdamW", "RP↑ AdamW new", "FGT↓ Continual AdamW")
    assert " | ".join(f"zero shot {head}" for head in heads) in markdown(table)
    html = re.sub(r'data-metric="[^"]*"', "", as_html(table))
    for shown in (latex(table), plain(table), html):
        assert "zero shot FGT" in shown
        assert "breakdown" not in shown
        assert "zero_shot" not in shown  # a bare underscore stops LaTeX


def test_names_are_escaped_in_every_format(tmp_path: Path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), config("<script>_&|", seed=seed))
    write_run(tmp_path / "other", config("ewc"))
    table = table_of(tmp_path)
    assert "<script>" not in as_html(table)
    assert r"\textless{}script\textgreater{}\_\&\textbar{}" in latex(table)
    assert "&lt;script>_&\\|" in markdown(table)
    assert "[bold]" not in plain(table)


def test_no_row_is_drawn_over_another(tmp_path: Path):
    for tasks in (6, 12):
        for lr in (0.1, 0.2):
            settings = config(lr=lr)
            settings["data"] = {"tasks": tasks}
            write_run(tmp_path / f"{tasks}-{lr}", settings, tasks=tasks)
    for report in ({}, {"index": ["method"]}, {"index": ["lr"], "columns": "tasks"}):
        drawn = cells(table_of(tmp_path, **report)).frame
        assert drawn["there"].sum() == 4 * len(METRICS), report


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
    marked = cells(table).frame["lost"].eq(True)
    assert marked.sum() == len(table.metrics)  # the cells of this row, as the note says
    for shown in (markdown(table), plain(table)):
        assert shown.count("†") == len(table.metrics) + 1
    assert as_html(table).count("†") == len(table.metrics) + 2  # in its legend too
    assert latex(table).count(r"\dag{}") == len(table.metrics) + 1
    scores = path.with_name("scores.jsonl")
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    lines[-1]["scores"] = dict.fromkeys(lines[-1]["scores"])
    scores.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = checks.find(table_of(tmp_path).rows, method="ewc", policy="new")["RP_curve"]
    assert curve[-1] == pytest.approx(row["RP"])  # without this seed, as the means
    json.loads(text.as_json(table, {"checks": [{"x": float("nan")}]}), parse_constant=pytest.fail)


def test_one_seed_has_no_standard_error(tmp_path: Path):
    write_study(tmp_path, seeds=1)
    table = table_of(tmp_path)
    assert "±" not in markdown(table)
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
    table = build(read(tmp_path))
    assert [(r["row"], r["setting"], r["RP_paper"]) for r in table.rows] == [
        (7, "same", 0.10),
        (7, "shift", 18.08),
    ]
    assert cells(table).columns == [
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
    tests = compare_policies(read(tmp_path).lines, ("continual", "new"))
    ewc = next(t for t in tests if t["method"] == "ewc" and t["metric"] == "RP")
    assert (ewc["n"], ewc["wins"], ewc["p"]) == (5, 5, 2 / 32)
    assert ewc["p_holm"] == pytest.approx(3 * 2 / 32)
    assert ewc["low"] < ewc["mean"] < ewc["high"]


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
    for row in build(read(tmp_path)).rows:
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
    found = json.loads((tmp_path / "synthetic0" / "summary.json").read_text())
    assert table.rows[0]["RP"] == found["RP"]  # not a hundred times that
    assert table.unit == "mse and accuracy"
    shown = markdown(table)
    assert "| benchmark | RP |" in shown
    assert "**" not in shown


def test_best_is_bold_within_a_benchmark(tmp_path: Path):
    for benchmark, found in (
        ("toy", {"ewc": 0.2, "derpp": 0.3}),
        ("mnist", {"ewc": 0.9, "agem": 0.8}),
    ):
        for method, rp in found.items():
            settings = {**config(method), "benchmark": benchmark}
            set_rp(write_run(tmp_path / f"{benchmark}-{method}", settings), rp)
    shown = markdown(table_of(tmp_path, metrics=["RP"]))
    assert "| DER++ | toy | **30.00** |" in shown
    assert "| EWC | mnist | **90.00** |" in shown
    assert shown.count("**") == 4


def test_a_setting_that_is_a_list_is_a_label_like_any_other(tmp_path: Path):
    for i, betas in enumerate(([0.9, 0.999], [0.9, 0.99])):
        write_run(tmp_path / str(i), config(betas=betas))
    assert "| [0.9, 0.999] |" in markdown(table_of(tmp_path))


def test_one_metric_is_shown_at_a_time_with_its_definition(tmp_path: Path):
    html = as_html(table_of(write_study(tmp_path)))
    parts = re.findall(r'<div class="metric" data-metric="(\w+)"( hidden)?>', html)
    assert parts == [("RP", ""), ("LP", " hidden"), ("FGT", " hidden"), ("BWT", " hidden")]
    buttons = re.findall(r'<button type="button" data-metric="(\w+)" aria-pressed="(\w+)"', html)
    assert buttons == [("RP", "true"), ("LP", "false"), ("FGT", "false"), ("BWT", "false")]
    assert "<strong>FGT</strong>, forgetting: mean difference between" in html
    assert "Lower is better. In percent." in html
    assert '<abbr title="a new AdamW: its moments start at zero' in html


def test_the_legend_explains_what_the_table_has_and_nothing_else(tmp_path: Path):
    html = as_html(table_of(write_study(tmp_path)))
    legend = html[html.index("<details") :]
    for word in ("RP", "LP", "FGT", "BWT", "Continual AdamW", "AdamW new"):
        assert f"<dt><strong>{word}</strong></dt>" in legend
    assert "≠" not in legend
    assert "†" not in legend
    paper = as_html(table_of(tmp_path, paper="wsd"))
    legend = paper[paper.index("<details") :]
    for words in (["=", "~", "≠"], ("within 1 point of it", "within 5 points", "further away")):
        assert all(word in legend for word in words)
    assert re.search(r'<span class="paper"><span class="wide">paper </span>78.76 [=~≠]', paper)


def test_rows_have_names_and_ours_is_marked(tmp_path: Path):
    table = table_of(write_study(tmp_path))
    rows = [
        {**row, "row": i + 1, "policy": name, "second_moment": "task"}
        for i, (row, name) in enumerate(zip(table.rows, ("Adam", "Continual Adam"), strict=False))
    ]
    table = replace(table, rows=rows, index=["row", "second_moment"], columns=None)
    html = as_html(table, ours="Continual Adam")
    marked = re.findall(r'<tr class="ours"><th scope="row">([^<]*)<', html)
    assert set(marked) == {"Continual Adam (row 2)"}
    assert ">Adam (row 1)<" in html
    assert "averaged over all earlier tasks" in html  # what `task` means


def test_names_stay_text(tmp_path: Path):
    for seed in (0, 1):
        settings = config("<img src=x>", seed=seed)
        write_run(tmp_path / identity(settings), settings)
    write_run(tmp_path / "other", config("ewc"))
    table = table_of(tmp_path, title="<b>")
    table = replace(table, kinds=replace(table.kinds, lead=ScoreKind("<u>", True)))
    html = as_html(table)
    assert "<img" not in html
    assert "<u>" not in html
    assert "&lt;img src=x&gt;" in html


def test_a_row_whose_seeds_all_diverged_says_so(tmp_path: Path):
    table = table_of(write_study(tmp_path))
    table.rows[0] |= {"diverged": 3, **dict.fromkeys(table.metrics)}
    html = as_html(table)
    assert html.count('title="every seed diverged">diverged†') == len(table.metrics)
    assert "nan" not in html
