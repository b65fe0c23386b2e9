import base64
import gzip
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.made_up_runs import config, identity, scored, write_run, write_stack, write_study
from longtail import cli
from longtail.report import figures, page, plots, series, style, tables
from longtail.report.finding import MC
from longtail.report.groups import Group, group
from longtail.report.results import load
from longtail.report.style import Look
from longtail.runs.files import RunFiles


def report(*arguments: object) -> int:
    return cli.main(["report", *map(str, arguments)])


def data_of(path: Path) -> dict:
    packed = re.search(r'id="data">([^<]*)<', path.read_text())
    assert packed
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_page_holds_everything_and_fetches_nothing(tmp_path: Path, capsys):
    write_study(tmp_path)
    assert report(tmp_path, "--no-figures") == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    markup = re.sub(
        r"<script.*?</script>", "", text, flags=re.DOTALL
    )  # BokehJS is full of addresses
    assert not re.search(r'(src|href)="(https?:)?//', markup)
    assert "default-src 'none'" in markup
    for name in ("Finetune", "DER++", "Statistics", "Compare"):
        assert name in text
    units = data_of(tmp_path / "report.html")["units"]
    assert len(units) == 6 + 18
    assert units[0]["name"] == "Finetune Continual AdamW, mean of 3 seeds"


@pytest.mark.parametrize("methods", [("reservoir", "ewc"), ("ewc", "reservoir")])
def test_statistics_name_labels_that_some_methods_alone_have(tmp_path: Path, methods):
    planned = []
    for method in methods:
        for policy in ("continual", "new"):
            for buffer in (5, 10) if method == "reservoir" else (None,):
                labels = {"method": method, "policy": policy}
                settings = config(method, policy)
                if buffer is not None:
                    settings["methods"] = {"buffer": buffer}
                    labels["buffer"] = buffer
                write_run(tmp_path / identity(settings), settings)
                planned.append({"id": identity(settings), "labels": labels})
    (tmp_path / "plan.json").write_text(json.dumps({"runs": planned}))
    assert report(tmp_path, "--no-figures", "--quiet") == 0
    text = (tmp_path / "report.html").read_text()
    section = text[text.index('<section id="statistics"') :]
    rows = re.findall(r'<tr data-metric="RP"><th scope="row">([^<]*) <abbr', section)
    assert {"Reservoir, buffer 5", "Reservoir, buffer 10", "EWC"} == set(rows)


def test_task_named_like_markup_is_text(tmp_path: Path):
    names = ["<script>alert(1)</script>", "</script>", "{{css}}", *(f"w{i}" for i in range(9))]
    write_run(tmp_path, config(), names=names)
    report(tmp_path, "--no-figures", "--title", "<img src=x onerror=alert(2)>")
    text = (tmp_path / "report.html").read_text()
    assert "alert(1)" not in text
    assert "<img src=x" not in text
    assert data_of(tmp_path / "report.html")["tasks"][0]["names"] == names


def test_page_of_20399_tasks_is_below_5_megabytes(tmp_path: Path):
    write_run(tmp_path, config(), tasks=20399, every=1000)
    assert report(tmp_path, "--no-figures", "--quiet") == 0
    assert (tmp_path / "report.html").stat().st_size < 5e6
    assert len(data_of(tmp_path / "report.html")["units"][0]["last"]) == 20399


@pytest.mark.slow
def test_fourteen_methods_of_20399_tasks_still_fit(tmp_path: Path):
    rng = np.random.default_rng(0)
    path = write_run(tmp_path / "a", config(), tasks=12)
    results = load(path)
    (g,) = group(results.runs)
    first = g.runs[0].scores
    assert first is not None
    sizes = rng.integers(1, 40, 20399)
    noisy = {k: rng.integers(0, sizes + 1) / sizes for k in ("own", "best", "last")}
    names = [f"word{i}" for i in range(20399)]
    scores = type(first)(names, sizes, sizes, **noisy, after=first.after, curve=first.curve)
    g.runs[0].__dict__["scores"] = scores
    many = [type(g)({"method": f"m{i}", "policy": "new"}, g.runs) for i in range(14)]
    packed = gzip.compress(json.dumps(page.tasks(many, tables.build(results), MC)).encode())
    assert len(packed) * 4 / 3 < 3e6


def diverge(folder: Path, settings: dict, task: int) -> None:
    """As `longtail run` leaves a run whose weights became NaN: with the scores of class 0."""
    path = folder / "runs" / identity(settings) / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "diverged_at": task}))


def test_seeds_that_diverged_are_marked_everywhere_and_in_no_mean(tmp_path: Path, capsys):
    write_study(tmp_path, tasks=40, every=5)
    whole = {g.name: g for g in group(load(tmp_path).runs)}["EWC AdamW new"]
    kept = [run.scores for run in whole.runs if run.seed != 1]
    diverge(tmp_path, config("ewc", "new", 1), 7)
    for seed in range(3):
        diverge(tmp_path, config("derpp", "new", seed), seed)
    groups = {g.name: g for g in group(load(tmp_path).runs)}
    one, all_of = groups["EWC AdamW new"], groups["DER++ AdamW new"]
    assert one.mark == " † (1 of 3 diverged)"
    expected = np.mean([s.curve for s in kept if s], axis=0)
    assert series.rp_curve(one, 1.0).mean == pytest.approx(expected[-len(one.curves[0]) :])
    assert one.tasks is not None
    assert one.tasks.last == pytest.approx(np.mean([s.last for s in kept if s], axis=0))
    for make in (series.rp_curve, series.retention, series.forgetting_by_size):
        assert not len(make(all_of, 1.0).x)
    assert not len(series.difference(groups["DER++ Continual AdamW"], all_of, 1.0).x)
    assert style.divergences(one, series.rp_curve(one, 1.0))[0].tolist() == [8]
    assert report(tmp_path, "--out", tmp_path / "out") == 0
    assert "4 runs diverged" in capsys.readouterr().out
    text = (tmp_path / "out" / "report.html").read_text()
    assert (
        "† 4 runs diverged and are in no mean and no line: EWC AdamW new, seed 1 in task 8;" in text
    )
    assert "EWC AdamW new † (1 of 3 diverged)</label>" in text
    assert "DER++ AdamW new † (3 of 3 diverged)</label>" in text
    drawn = (tmp_path / "out" / "figures" / "rp_by_tasks.svg").read_text()
    for words in ("EWC AdamW new † (1 of 3 diverged)", "† a seed diverged, left out"):
        assert f"<!-- {words} -->" in drawn
    names = [unit["name"] for unit in data_of(tmp_path / "out" / "report.html")["units"]]
    assert "EWC AdamW new, mean of 2 seeds † (1 of 3 diverged)" in names
    assert "EWC AdamW new, seed 1 † (diverged)" in names
    (row,) = [r for r in tables.build(load(tmp_path)).rows if r.get("diverged") == 1]
    assert row["RP_curve"] == pytest.approx((100 * series.rp_curve(one, 1.0).mean).tolist())


def test_page_begins_with_the_finding_and_folds_the_checks(tmp_path: Path):
    write_study(tmp_path)
    plan = {"report": {"checks": ["mc_improves", "multitask_is_best"]}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert report(tmp_path, "--no-figures", "--quiet") == 0
    text = (tmp_path / "report.html").read_text()
    body = text[text.index("<main>") :]
    places = [body.index(part) for part in (
        '<p class="finding">', 'id="finding-plot"', '<div class="switch"', '<details id="checks">',
        '<fieldset id="lines"',
    )]  # fmt: skip
    assert places == sorted(places)
    assert "<summary>3 of 4 checks hold, 1 fail</summary>" in body
    verdicts = re.findall(r'<li class="(\w+)">', body)
    assert verdicts == ["fails", "holds", "holds", "holds"]
    assert re.search(r'<p class="finding"><abbr title="[^"]*">MC</abbr> raises <abbr', body)


def test_names_in_the_finding_and_in_notices_stay_text(tmp_path: Path):
    for seed in range(3):
        for policy in ("continual", "new"):
            settings = config("<img src=x onerror=alert(3)>", policy, seed)
            write_run(tmp_path / "runs" / identity(settings), settings)
    diverge(tmp_path, config("<img src=x onerror=alert(3)>", "new", 1), 2)
    assert report(tmp_path, "--no-figures", "--quiet") == 0
    text = (tmp_path / "report.html").read_text()
    assert "<img" not in text[text.index("<main>") : text.index("</main>")]
    assert "for &lt;img src=x onerror=alert(3)&gt; (" in text


def test_a_run_alone_has_a_figure_and_nothing_to_compare(tmp_path: Path):
    write_run(tmp_path, config(), tasks=40, every=5)
    assert report(tmp_path, "--no-figures", "--quiet") == 0
    text = (tmp_path / "report.html").read_text()
    body = text[text.index("<main>") : text.index("</main>")]
    assert 'id="finding-plot"' in body
    assert 'id="tasks"' in body
    assert 'id="compare"' not in body


def test_comparison_opens_on_the_pair(tmp_path: Path):
    write_study(tmp_path)
    results = load(tmp_path)
    groups = group(results.runs)
    data = page.tasks(groups, tables.build(results, groups), MC)
    assert [data["units"][i]["name"] for i in data["opens"]] == [
        "Finetune AdamW new, mean of 3 seeds",
        "Finetune Continual AdamW, mean of 3 seeds",
    ]
    groups = [g for g in groups if g.labels["policy"] == "new"]
    assert page.tasks(groups, tables.build(results, groups), MC)["opens"] == (0, 1)


def test_ours_is_strong_and_bands_wait_to_be_asked_for(tmp_path: Path):
    write_study(tmp_path, tasks=40, every=5)
    results = load(tmp_path)
    groups = group(results.runs)
    drawn = plots.Plots(groups, tables.build(results, groups), MC)
    curve = next(plot for kind, _, plot in drawn.found if kind == "curve")
    lines = {
        r.name: r.glyph.line_width for r in curve.renderers if type(r.glyph).__name__ == "Line"
    }
    assert lines["EWC Continual AdamW"] > 2 * lines["EWC AdamW new"]
    bands = [r for r in curve.renderers if "band" in r.tags]
    assert len(bands) == len(groups)
    assert not any(band.visible for band in bands)


@pytest.mark.parametrize(
    ("ends", "kind"),
    [([80, 75], "linear"), ([0.1, 300.0], "log"), ([0.1, 300.0, -2.0], "symlog")],
)
def test_values_that_span_decades_get_a_logarithmic_axis(ends: list[float], kind: str):
    lines = [series.Series(np.arange(2), np.array([end, end]), np.zeros(2)) for end in ends]
    axis = style.axis_for([lines])
    assert axis.kind == kind
    if kind == "symlog":
        values = np.array([-300.0, -2.0, 0.0, 0.1, 300.0])
        placed = axis.place(values)
        assert (np.diff(placed) > 0).all()
        assert placed[3] - placed[2] > 0.01 * (placed[4] - placed[2])  # 0.1 is told from 0
        assert axis.ticks(values) == [-100.0, -10.0, -1.0, 0.0, 1.0, 10.0, 100.0]


@pytest.mark.parametrize("content", ["unfinished", "damaged"])
def test_nothing_to_show_is_said_in_a_sentence(tmp_path: Path, capsys, content: str):
    if content == "unfinished":
        write_run(tmp_path / "a", config(), finished=False)
    if content == "damaged":
        write_run(tmp_path / "a", config(), finished=False)
        (tmp_path / "a" / "config.toml").write_text("][")
    assert report(tmp_path) == 2
    said = capsys.readouterr()
    assert "Nothing to put into a table yet" in said.out
    assert "no run in this folder has finished" in (tmp_path / "report.html").read_text()
    assert ("cannot be read" in said.out) == (content == "damaged")


def test_folder_without_runs_gets_nothing(tmp_path: Path, capsys):
    assert report(tmp_path) == 2
    said = capsys.readouterr()
    assert "No runs in" in said.err
    assert not said.out
    assert not list(tmp_path.iterdir())


def test_an_unknown_logger_is_refused_before_anything_is_written(tmp_path: Path, capsys):
    write_run(tmp_path / "a", config())
    assert report(tmp_path / "a", "--out", tmp_path / "out", "--log", "tensorbord") == 2
    said = capsys.readouterr()
    assert said.err == "longtail: unknown logger 'tensorbord'; did you mean 'tensorboard'?\n"
    assert not said.out
    assert not (tmp_path / "out").exists()


def test_missing_folder_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys):
    assert report(tmp_path / "nowhere") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_out_that_is_a_file_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys):
    write_run(tmp_path / "a", config())
    (tmp_path / "file").write_text("mine")
    assert report(tmp_path / "a", "--out", tmp_path / "file") == 2
    assert "file: cannot be made a folder (File exists)" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_figures_in_three_forms_and_the_same_twice(tmp_path: Path):
    write_study(tmp_path, tasks=40, every=5)
    results = load(tmp_path)
    groups = group(results.runs)[:2]
    table = tables.build(results, groups)
    paths = figures.write(groups, table, tmp_path / "one", ("continual", "new"))
    names = {path.stem for path in paths}
    assert names == {
        "rp_by_tasks", "difference_by_tasks", "retention_by_age", "forgetting_by_size",
        "score_matrix", "task_sizes", "plane",
    }  # fmt: skip
    assert {path.suffix for path in paths} == {".svg", ".pdf", ".png"}
    for some in (figures.NAMES[:4], figures.NAMES[4:]):  # as two processes would share them
        figures.write(groups, table, tmp_path / "two", ("continual", "new"), some)
    again = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert again == {path.name: path.read_bytes() for path in paths}


def test_a_figure_says_how_many_lines_it_leaves_out(tmp_path: Path, monkeypatch):
    write_study(tmp_path, tasks=40, every=5, seeds=1)
    results = load(tmp_path)
    groups = group(results.runs)
    assert len(groups) < figures.MOST_LINES

    def legend() -> str:
        table = tables.build(results, groups)
        figures.write(groups, table, tmp_path / "out", ("continual", "new"), ["rp_by_tasks"])
        return (tmp_path / "out" / "rp_by_tasks.svg").read_text()

    assert "not drawn" not in legend()
    monkeypatch.setattr(figures, "MOST_LINES", len(groups) - 2)
    assert "<!-- and 2 more, not drawn -->" in legend()
    monkeypatch.setattr(figures, "MOST_MARKS", len(groups) - 1)
    monkeypatch.setattr(figures, "MOST_PANELS", 4)
    table = tables.build(results, groups)
    figures.write(groups, table, tmp_path / "out", ("continual", "new"))
    assert "<!-- and 1 more, not drawn -->" in (tmp_path / "out" / "plane.svg").read_text()
    heats = (tmp_path / "out" / "score_matrix.svg").read_text()
    assert f"<!-- the first 4 of {len(groups)} rows -->" in heats


def test_multi_task_training_has_a_point_and_is_not_the_first_to_be_left_out(
    tmp_path: Path, monkeypatch
):
    write_study(tmp_path, tasks=40, every=5, seeds=1)
    settings = config("multitask", "new", 0)
    write_run(tmp_path / "runs" / "mtl", settings, tasks=40, every=40)
    results = load(tmp_path)
    groups = group(results.runs)
    (bound,) = [g for g in groups if g.labels["method"] == "multitask"]
    assert len(series.rp_curve(bound, 1.0).x) == 1
    monkeypatch.setattr(figures, "MOST_LINES", 3)
    table = tables.build(results, groups)
    figures.write(groups, table, tmp_path / "out", ("continual", "new"), ["rp_by_tasks"])
    drawn = (tmp_path / "out" / "rp_by_tasks.svg").read_text()
    assert "<!-- MTL -->" in drawn
    assert "<!-- and 4 more, not drawn -->" in drawn
    page = plots.Plots(groups, table, ("continual", "new"))
    places = [renderer for _, _, figure in page.found[:1] for renderer in figure.renderers]
    single = [r for r in places if len(r.data_source.data.get("x", ())) == 1]
    assert {type(r.glyph).__name__ for r in single} >= {"Line", "Scatter"}


def test_the_page_says_what_its_figures_leave_out(tmp_path: Path, monkeypatch):
    write_study(tmp_path, tasks=40, every=5, seeds=1)

    def text() -> str:
        assert report(tmp_path, "--no-figures", "--quiet") == 0
        return (tmp_path / "report.html").read_text()

    words = ("have no lines", "not drawn", "RP of the first")
    assert not [found for found in words if found in text()]
    monkeypatch.setattr(plots, "MOST_LINES", 4)
    monkeypatch.setattr(plots, "MOST_HEATS", 3)
    monkeypatch.setattr(plots, "MOST_POINTS", 2)
    whole = text()
    assert "The last 2 rows of the table have no lines." in whole
    assert "and of 1 more rows, not drawn" in whole
    assert "blue: holds" in whole
    assert "; and 1 more, not drawn" in whole
    results = load(tmp_path)
    groups = group(results.runs)
    dots = plots._dot_figure(groups, tables.build(results, groups), ("continual", "new"))
    assert dots
    assert dots[0].startswith("RP of the first 2 of 6 rows, mean ± standard error")


def test_colours_tell_methods_apart_or_the_policies_of_one():
    def colours(*labels: tuple[str, str]) -> list[str]:
        groups = [Group({"method": m, "policy": p}, []) for m, p in labels]
        return [Look(groups).colour(g) for g in groups]

    first, second, third = colours(("ewc", "continual"), ("ewc", "new"), ("agem", "new"))
    assert first == second != third
    policies = ("continual", "continual_seen", "new")
    assert len(set(colours(*(("ewc", p) for p in policies)))) == 3


def test_series_say_what_the_scores_do(tmp_path: Path):
    write_study(tmp_path, tasks=40, every=5)
    groups = {(g.labels["method"], g.labels["policy"]): g for g in group(load(tmp_path).runs)}
    with_mc, without = groups["ewc", "continual"], groups["ewc", "new"]
    gap = series.difference(with_mc, without, 100)
    assert (np.diff(gap.mean) > 0).all()
    assert gap.mean[-1] == pytest.approx(100 * (with_mc.values("RP") - without.values("RP")).mean())
    aged = series.retention(without, 100)
    assert (np.diff(aged.mean) < 0).all()
    lost = series.forgetting_by_size(without, 100)
    assert lost.mean[-1] > lost.mean[0]  # the large tasks are the early ones here
    heat = series.heat(without.runs[0], 100)
    assert heat is not None
    after, starts, matrix = heat
    assert matrix.shape == (len(after), len(starts))
    assert np.isnan(matrix[0, -1])
    assert matrix[-1, -1] == pytest.approx(100 * without.runs[0].scores.own[-1])  # type: ignore[union-attr]


def test_series_of_an_error_and_of_multitask(tmp_path: Path):
    for method in ("finetune", "multitask"):
        write_run(tmp_path / method, config(method), tasks=40, every=5)
    finetune, multitask = group(load(tmp_path).runs)
    for empty in (series.retention, series.forgetting_by_size):  # it learns no task after another
        assert len(empty(finetune, 1).x) > 0
        assert len(empty(multitask, 1).x) == 0
    lost = series.forgetting_by_size(finetune, 1)
    finetune.runs[0].summary |= scored("mse", "mse", higher_is_better=False)
    turned = series.forgetting_by_size(finetune, 1)
    assert turned.mean == pytest.approx(-lost.mean)


def test_stacks_are_reported_like_runs(tmp_path: Path):
    members = [config(policy=p, seed=s) for p in ("continual", "new") for s in range(4)]
    write_stack(tmp_path / "stacks" / "x", members)
    assert report(tmp_path, "--quiet") == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [(r["policy"], r["seeds"]) for r in rows] == [("continual", 4), ("new", 4)]


@pytest.mark.slow
def test_thousand_runs_take_less_than_30_seconds(tmp_path: Path):
    for seed in range(500):
        for policy in ("continual", "new"):
            settings = config(policy=policy, seed=seed)
            write_run(tmp_path / "runs" / identity(settings), settings, tasks=300, every=30)
    began = time.process_time()
    assert report(tmp_path, "--quiet") == 0
    assert time.process_time() - began < 30


def test_compare_two_folders(tmp_path: Path, capsys):
    for name, policy in (("a", "continual"), ("b", "new")):
        for seed in range(4):
            write_run(tmp_path / name / str(seed), config(policy=policy, seed=seed))
    assert report("--compare", tmp_path / "a", tmp_path / "b", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    rp = next(row for row in rows if row["metric"] == "RP")
    assert rp["mean"] == pytest.approx(rp["b"] - rp["a"])
    assert rp["mean"] < 0
    assert (rp["n"], rp["p"]) == (4, 2 / 16)
    write_run(tmp_path / "other seed", config(policy="new", seed=9))
    assert report("--compare", tmp_path / "a", tmp_path / "other seed", "--json") == 0
    unpaired = json.loads(capsys.readouterr().out)[0]
    assert unpaired["n"] == 0
    assert unpaired["mean"] == pytest.approx(unpaired["b"] - unpaired["a"])
    (tmp_path / "c").mkdir()
    assert report("--compare", tmp_path / "a", tmp_path / "c") == 2
    assert "No finished run" in capsys.readouterr().err


def test_compare_shows_a_run_that_diverged_and_no_two_scores_as_one(tmp_path: Path, capsys):
    for name in "ab":
        write_run(tmp_path / name, config("a_package.its_methods:OfALongName"))
    path = tmp_path / "a" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "RP": None}))
    assert report("--compare", tmp_path / "a", tmp_path / "b") == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if " RP " in x)
    assert "a_package.its_methods:OfALongName" in line  # in a pipe nothing is cut off
    assert "nan" in line
    path.write_text(json.dumps({**summary, "score": "mse"}))
    assert report("--compare", tmp_path / "a", tmp_path / "b") == 2
    assert "the score of A is mse, that of B accuracy" in capsys.readouterr().err


def test_compare_shows_percent_where_the_table_does(tmp_path: Path, capsys):
    for name in "ab":
        path = write_run(tmp_path / name, config()) / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **scored("score", "percent")}))
    assert report("--compare", tmp_path / "a", tmp_path / "b", "--json") == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert row["unit"] == "percent"
    assert row["a"] == pytest.approx(100 * load(tmp_path / "a").runs[0].metric(row["metric"]))


def test_without_the_extra_there_are_tables(tmp_path: Path, capsys, monkeypatch):
    write_study(tmp_path)
    for name in ("matplotlib", "bokeh"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert report(tmp_path, "--out", tmp_path / "out") == 0
    assert "pip install 'longtail[report]'" in capsys.readouterr().out
    statistics = json.loads((tmp_path / "out" / "table.json").read_text())["statistics"]
    assert statistics[0]["low"] < statistics[0]["high"]


def test_parquet_under_the_name_of_a_folder_is_refused(tmp_path: Path, capsys):
    pytest.importorskip("pyarrow")
    write_study(tmp_path / "runs", seeds=1)
    words = ["--parquet", tmp_path, "--no-page", "--no-figures", "--quiet"]
    assert report(tmp_path / "runs", *words) == 2
    assert capsys.readouterr().err == (
        f"longtail: --parquet {tmp_path}: cannot be written to (Is a directory)\n"
    )


def test_parquet_has_every_score(tmp_path: Path):
    pq = pytest.importorskip("pyarrow.parquet")
    write_study(tmp_path / "runs", seeds=2)
    file = tmp_path / "scores.parquet"
    assert report(tmp_path / "runs", "--parquet", file, "--no-page", "--no-figures", "--quiet") == 0
    table = pq.read_table(file).to_pydict()
    run = next(r for r in load(tmp_path / "runs").runs if r.labels["method"] == "ewc")
    lines = [
        (after + 1, int(task), score)
        for after, index, values in RunFiles(run.folder).read_evaluations()
        for task, score in zip(index, values, strict=True)
    ]
    columns = zip(table["run"], table["after"], table["task"], table["score"], strict=True)
    assert [(a, t, s) for i, a, t, s in columns if i == run.id] == lines
    assert set(table["method"]) == {"finetune", "ewc", "derpp"}
