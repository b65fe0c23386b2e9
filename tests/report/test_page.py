import base64
import gzip
import importlib.util
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.made_up_runs import config, identity, write_run, write_stack, write_study
from longtail import cli
from longtail.report import page, read, series
from longtail.report.frame import Line
from longtail.report.table import build


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
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)  # Vega is full of addresses
    assert not re.search(r'(src|href)="(https?:)?//', markup)
    assert "default-src 'none'" in markup
    for name in ("Finetune", "DER++", "Statistics", "Figures"):
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
    frames = read(write_run(tmp_path / "a", config(), tasks=12))
    (line,) = frames.lines
    sizes = rng.integers(1, 40, 20399)
    noisy = {name: rng.integers(0, sizes + 1) / sizes for name in ("own", "best", "last")}
    names = tuple(f"word{i}" for i in range(20399))
    first = line.entries[0].scores
    assert first is not None
    own = replace(first, names=names, train_sizes=sizes, test_sizes=sizes, **noisy)
    many = [Line({"method": f"m{i}", "policy": "new"}, line.runs, line.entries) for i in range(14)]
    for one in many:
        vars(one)["scores"] = [own]
    packed = gzip.compress(json.dumps(page.task_tables(many, build(frames))).encode())
    assert len(packed) * 4 / 3 < 3e6


def diverge(folder: Path, settings: dict, task: int) -> None:
    """As `longtail run` leaves a run whose weights became NaN: with the scores of class 0."""
    path = folder / "runs" / identity(settings) / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "diverged_at": task}))


def test_seeds_that_diverged_are_marked_everywhere_and_in_no_mean(tmp_path: Path, capsys):
    write_study(tmp_path, tasks=40, every=5)
    whole = {line.name: line for line in read(tmp_path).lines}["EWC AdamW new"]
    kept = [entry.scores for entry in whole.entries if entry.seed != 1]
    diverge(tmp_path, config("ewc", "new", 1), 7)
    for seed in range(3):
        diverge(tmp_path, config("derpp", "new", seed), seed)
    frames = read(tmp_path)
    lines = {line.name: line for line in frames.lines}
    one, all_of = lines["EWC AdamW new"], lines["DER++ AdamW new"]
    assert one.mark == " † (1 of 3 diverged)"
    expected = np.mean([s.curve for s in kept if s], axis=0)
    assert series.rp_curve(one, 1.0).mean == pytest.approx(expected[-len(one.curves[0]) :])
    mean = page.mean_by_task(one)
    assert mean is not None
    assert mean.last == pytest.approx(np.mean([s.last for s in kept if s], axis=0))
    for make in (series.rp_curve, series.retention, series.forgetting_by_size):
        assert not len(make(all_of, 1.0).x)
    assert not len(series.difference(lines["DER++ Continual AdamW"], all_of, 1.0).x)
    ((tasks, _),) = series.divergences(one, series.rp_curve(one, 1.0))
    assert tasks == 8
    assert report(tmp_path, "--out", tmp_path / "out") == 0
    assert "4 runs diverged" in capsys.readouterr().out
    text = (tmp_path / "out" / "report.html").read_text()
    assert (
        "† 4 runs diverged and are in no mean and no line: EWC AdamW new, seed 1 in task 8;" in text
    )
    drawn = (tmp_path / "out" / "figures" / "rp_by_tasks.svg").read_text()
    for words in ("EWC AdamW new † (1 of 3 diverged)", "DER++ AdamW new † (3 of 3 diverged)", "✕"):
        assert f">{words}<" in drawn
    data = data_of(tmp_path / "out" / "report.html")
    assert data["figures"]["rp_by_tasks 0 marks"]["x"] == [8.0]
    names = [unit["name"] for unit in data["units"]]
    assert "EWC AdamW new, mean of 2 seeds † (1 of 3 diverged)" in names
    assert "EWC AdamW new, seed 1 † (diverged)" in names
    (row,) = [row for row in build(frames).rows if row.get("diverged") == 1]
    assert row["RP_curve"] == pytest.approx((100 * series.rp_curve(one, 1.0).mean).tolist())


def test_page_begins_with_the_finding_and_folds_the_checks(tmp_path: Path):
    write_study(tmp_path)
    plan = {"report": {"checks": ["mc_improves", "multitask_is_best"]}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert report(tmp_path, "--no-figures", "--quiet") == 0
    text = (tmp_path / "report.html").read_text()
    body = text[text.index("<main>") :]
    places = [body.index(part) for part in (
        '<p class="finding">', 'id="finding-0"', '<div class="switch"', '<details id="checks">',
        'id="rp_by_tasks-0"',
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
    assert 'id="finding-0"' in body
    assert 'id="tasks"' in body
    assert 'id="statistics"' not in body


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


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path, capsys, monkeypatch):
    write_study(tmp_path)
    present = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "altair" else present(name)
    )
    assert report(tmp_path, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said == "longtail: Reports need altair: pip install 'longtail[report]'\n"
    assert not (tmp_path / "out").exists()


def test_control_characters_of_names_are_written_out(tmp_path: Path):
    names = ["\x1b[31mred", "bell\x07", *(f"w{i}" for i in range(10))]
    write_run(tmp_path, config("mine\x07:\x1b[2J"), names=names, every=4)
    assert report(tmp_path, "--quiet", "--title", "a\x1b[2J title") == 0
    made = [tmp_path / "report.html", *sorted((tmp_path / "figures").glob("*.svg"))]
    assert len(made) > 2
    for path in made:
        assert not set(path.read_text()) & set("\x07\x1b"), path.name
    assert data_of(tmp_path / "report.html")["tasks"][0]["names"][0] == "\\u001b[31mred"


def test_what_changes_nothing_is_written_again_alike(tmp_path: Path):
    write_study(tmp_path / "runs", tasks=40, every=5)
    assert report(tmp_path / "runs", "--out", tmp_path / "a", "--quiet") == 0
    assert report(tmp_path / "runs", "--out", tmp_path / "b", "--quiet") == 0
    for name in ("table.json", "table.csv", "report.html", "figures/plane.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
