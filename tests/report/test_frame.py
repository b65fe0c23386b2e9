import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.made_up_runs import (
    config,
    identity,
    scored,
    write_run,
    write_stack,
    write_study,
)
from longtail.names import METRICS
from longtail.report import read
from longtail.report.command import write
from longtail.report.labelling import label_names, policy_name
from longtail.study.jobs import finished_runs


def test_run_and_stack_of_the_same_settings_read_alike(tmp_path: Path):
    settings = [config(policy=p, seed=s) for p in ("continual", "new") for s in (0, 1)]
    for s in settings:
        write_run(tmp_path / "single" / identity(s), s)
    write_stack(tmp_path / "stacked" / "x", settings)
    single, stacked = read(tmp_path / "single"), read(tmp_path / "stacked")
    assert list(single.runs["run"]) == list(stacked.runs["run"])
    assert len(single.runs) == 4
    assert single.labels == stacked.labels == ["method", "policy"]
    columns = [*single.labels, "seed", *METRICS]
    pd.testing.assert_frame_equal(single.runs[columns], stacked.runs[columns])
    names = ["name"]  # a stack that nobody named the tasks of
    ours, theirs = (frames.tasks.drop(columns=names) for frames in (single, stacked))
    pd.testing.assert_frame_equal(ours, theirs)
    for run, points in single.curves.groupby("run"):
        other = stacked.curves[stacked.curves["run"].eq(run)]
        found = np.interp(other["tasks"], points["tasks"], points["RP"])
        np.testing.assert_allclose(found, other["RP"])


def test_last_point_of_the_curve_is_rp_weighted_by_test_size(tmp_path: Path):
    write_run(tmp_path, config())
    frames = read(tmp_path)
    (run,) = frames.runs.itertuples()
    assert frames.curves["RP"].iloc[-1] == pytest.approx(run.RP)
    assert frames.curves["tasks"].iloc[-1] == 12
    learned = np.average(frames.tasks["learned"], weights=frames.tasks["test_size"])
    assert learned == pytest.approx(run.LP)


def test_scores_are_in_the_unit_of_tables_and_columns_are_told_apart(tmp_path: Path):
    path = write_run(tmp_path, config()) / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "late": {"RP": 0.25}, "top5": {"RP": 7.0}}))
    frames = read(tmp_path)
    (run,) = frames.runs.to_dict("records")
    assert run["RP"] == 100 * summary["RP"]
    assert run["late.RP"] == 25.0
    assert (frames.labels, run["status"], run["seed"]) == (["method", "policy"], "finished", 0)
    assert set(METRICS) < set(frames.scores)
    assert not set(frames.scores) & set(frames.labels)


def test_what_reads_a_frame_leaves_it_as_it_was(tmp_path: Path):
    write_study(tmp_path / "runs")
    plan = {"select": {"key": "train.lr"}, "report": {"title": "mine"}}
    (tmp_path / "runs" / "plan.json").write_text(json.dumps(plan))
    frames = read(tmp_path / "runs")
    before, told = frames.stored.copy(deep=True), json.dumps(frames.plan)
    write(frames, tmp_path / "out", with_figures=False)
    pd.testing.assert_frame_equal(frames.stored, before)
    assert json.dumps(frames.plan) == told
    assert frames.problems == read(tmp_path / "runs").problems


@pytest.mark.parametrize("hole", [0, 5])
def test_a_task_without_test_examples_leaves_the_curve_whole(tmp_path: Path, hole: int):
    folder = write_run(tmp_path, config())
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    for line in lines:  # as `longtail run` writes it
        line["scores"] |= {str(hole): None} if str(hole) in line["scores"] else {}
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = json.loads((folder / "tasks.json").read_text())
    tasks["test_sizes"][hole] = 0
    (folder / "tasks.json").write_text(json.dumps(tasks))
    kept = [i for i in range(12) if i != hole]
    rp = np.average(
        [lines[-1]["scores"][str(i)] for i in kept], weights=[tasks["test_sizes"][i] for i in kept]
    )
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "RP": rp}))
    results = read(tmp_path)
    curve = results.curves["RP"] / 100
    assert np.isfinite(curve).all()
    last = [v for v in lines[-1]["scores"].values() if v is not None]
    assert curve.iloc[-1] == pytest.approx(
        np.average(last, weights=[n for n in tasks["test_sizes"] if n])
    )
    assert not results.problems


def test_labels_are_what_varies_within_a_method_and_policy(tmp_path: Path):
    for lr in (0.1, 0.01):
        for seed in (0, 1):
            write_run(tmp_path / f"{lr}{seed}", config(seed=seed, lr=lr))
    frames = read(tmp_path)
    assert frames.labels == ["method", "policy", "lr"]
    assert sorted(set(frames.runs["lr"])) == [0.01, 0.1]


def test_unfinished_cut_off_damaged_and_failed_runs_are_told_apart(tmp_path: Path):
    unfinished = write_run(tmp_path / "a", config(seed=0), finished=False)
    with open(unfinished / "scores.jsonl", "a") as file:
        file.write('{"after": 12, "scor')
    write_run(tmp_path / "b", config(seed=1))
    (tmp_path / "b" / "summary.json").write_text('{"RP": 0.')
    failed = write_run(tmp_path / "c", config(seed=2), finished=False)
    (failed / "error.json").write_text(json.dumps({"error": "RuntimeError: out of memory"}))
    write_run(tmp_path / "d", config(seed=3))
    results = read(tmp_path)
    states = dict(zip(results.runs["seed"], results.runs["status"], strict=True))
    assert states == {0: "unfinished", 2: "failed", 3: "finished"}
    assert len(results.problems) == 1
    assert "b cannot be read: summary.json" in results.problems[0]
    assert results.state == "1 of 3 runs finished, 1 failed."
    assert results.entries[0].scores is not None


@pytest.mark.parametrize("higher", [True, False])
def test_best_follows_the_direction_of_the_score(tmp_path: Path, higher: bool):
    path = write_run(tmp_path, config()) / "summary.json"
    kind = scored("accuracy", "percent", higher_is_better=higher)
    path.write_text(json.dumps({**json.loads(path.read_text()), **kind}))
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    seen = [json.loads(line)["scores"] for line in lines]
    of_first = [scores["0"] for scores in seen if "0" in scores]
    assert len(set(of_first)) > 2
    best = read(tmp_path).tasks["best"][0]
    assert best == pytest.approx(100 * (max if higher else min)(of_first))


@pytest.mark.parametrize("first", ["finished", "unfinished"])
def test_of_two_folders_of_one_run_the_finished_one_counts(tmp_path: Path, first: str):
    for folder, finished in (("a", first == "finished"), ("b", first != "finished")):
        write_run(tmp_path / folder, config(), finished=finished)
    assert list(read(tmp_path).runs["status"]) == ["finished"]


def test_plan_names_runs_and_drops_those_it_does_not_know(tmp_path: Path):
    write_study(tmp_path)
    known = config("ewc", "new", 1)
    entry = {"id": identity(known), "labels": {"method": "ewc", "policy": "new", "row": 2}}
    (tmp_path / "plan.json").write_text(json.dumps({"runs": [entry]}))
    frames = read(tmp_path)
    (run,) = frames.runs[["method", "policy", "row"]].to_dict("records")
    assert run == entry["labels"]
    assert frames.entries[0].config == known


def test_ablation_rows_are_named_by_what_they_do():
    assert policy_name(config()) == "continual"
    changed = config()
    changed["moments"] = {**changed["moments"], "first_moment": "ema", "second_moment": "ema"}
    assert policy_name(changed) == "ema/ema+adjust"
    changed["moments"]["beta3"] = 0.5
    assert policy_name(changed) == "ema/ema+adjust 0.5"


def test_runs_that_differ_in_the_warm_up_or_the_seed_of_the_data_are_not_one_row(tmp_path: Path):
    plain = {**config(), "data": {"seed": 0}}
    warm = {**plain, "moments": {**plain["moments"], "beta3": 0.5}}
    other = {**plain, "data": {"seed": 1}}
    for name, settings in (("plain", plain), ("warm", warm), ("other", other)):
        write_run(tmp_path / name, settings)
    frames = read(tmp_path)
    assert set(frames.runs["policy"]) == {"continual", "reset/task+adjust 0.5"}
    assert set(frames.runs["data_seed"]) == {0, 1}
    assert len(frames.lines) == 3


def test_settings_of_one_name_keep_their_tables():
    assert label_names(["train.lr", "data.hidden", "methods.hidden", "train.validation"]) == {
        "train.lr": "lr",
        "data.hidden": "data_hidden",
        "methods.hidden": "methods_hidden",
        "train.validation": "train_validation",
    }
    assert label_names(["data.setting"], {"setting"}) == {"data.setting": "data_setting"}


def test_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="nowhere"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04cut", b"[1", b"[1]", b'"x"', b"3", b"\xff\xfe"]
)
@pytest.mark.parametrize(
    "name",
    [
        "plan.json",
        "a/timing.json",
        "a/tasks.json",
        "a/summary.json",
        "a/scores.jsonl",
        "s/runs.json",
        "s/timing.json",
        "s/tasks.json",
        "s/scores.npz",
    ],
)
def test_damaged_file_is_named_and_the_report_is_made(tmp_path: Path, name: str, content: bytes):
    for seed, folder in enumerate("ab"):
        write_run(tmp_path / folder, config(seed=seed))
    write_stack(tmp_path / "s", [config("ewc", seed=s) for s in (0, 1)])
    (tmp_path / name).write_bytes(content)
    results = read(tmp_path)
    write(results, tmp_path / "report", with_figures=False, with_page=False)
    read_ones = [results.entries[i].scores is not None for i in results.finished.index]
    assert read_ones.count(True) >= 2
    cut_off = name == "a/scores.jsonl" and content in (b"", b"PK\x03\x04cut", b"[1")
    if not cut_off:  # which is what an interrupted run leaves
        assert any(name.partition("/")[2] in problem for problem in results.problems)


def test_a_broken_line_within_the_scores_is_named_and_nothing_is_made_of_the_rest(tmp_path: Path):
    write_run(tmp_path, config())
    path = tmp_path / "scores.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "{broken", *lines[3:]]) + "\n")
    results = read(tmp_path)
    assert results.curves.empty
    assert "scores.jsonl cannot be read: line 3 is not JSON: '{broken'" in results.problems[0]


def test_truncated_scores_of_a_stack_are_named(tmp_path: Path):
    write_stack(tmp_path / "s", [config(seed=s) for s in (0, 1)])
    file = tmp_path / "s" / "scores.npz"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    results = read(tmp_path)
    written = write(results, tmp_path / "report", with_figures=False)
    assert "scores.npz cannot be read" in written["page"].read_text()
    assert len(results.problems) == 1


def test_metrics_that_are_no_numbers_and_odd_plans_are_left_out(tmp_path: Path):
    write_run(tmp_path / "a", config())
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    (tmp_path / "a" / "summary.json").write_text(json.dumps({**summary, "RP": "x", "LP": [1]}))
    (tmp_path / "plan.json").write_text('{"runs": 3, "report": [], "select": "x"}')
    results = read(tmp_path)
    write(results, tmp_path / "report", with_figures=False)
    assert "RP" not in results.scores
    assert len(results.problems) == 5


def test_unreadable_end_of_a_stack_is_not_finished(tmp_path: Path, capsys):
    write_stack(tmp_path / "stacks" / "s", [config(seed=s) for s in (0, 1)])
    assert len(finished_runs(tmp_path)) == 2
    (tmp_path / "stacks" / "s" / "runs.json").write_text("[{")
    assert finished_runs(tmp_path) == {}
    assert str(tmp_path / "stacks" / "s" / "runs.json") in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [{"metrics": [["RP"]]}, {"checks": "mc"}, {"pair": ["a"]}, {"title": 3}]
)
def test_what_a_plan_asks_of_a_report_in_the_wrong_kind_is_left_out_and_said(tmp_path, wrong):
    write_study(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"report": wrong}))
    results = read(tmp_path)
    write(results, tmp_path, with_figures=False, with_page=False)
    assert f"report.{next(iter(wrong))} = " in results.problems[0]


def test_a_folder_may_be_named_by_a_text_and_have_no_runs(tmp_path: Path):
    write_study(tmp_path / "out", seeds=2)
    write_run(tmp_path / "out" / "runs" / "begun", config(seed=7), finished=False)
    runs = read(str(tmp_path / "out")).runs
    assert len(runs) == 13
    means = runs[runs["status"] == "finished"].groupby(["method", "policy"])["RP"].mean()
    assert means["derpp", "continual"] > means["finetune", "new"]
    assert runs[runs["status"] == "unfinished"]["RP"].isna().all()
    (tmp_path / "empty").mkdir()
    empty = read(str(tmp_path / "empty"))
    assert [len(table) for table in (empty.runs, empty.curves, empty.tasks)] == [0, 0, 0]


def test_without_the_extra_reading_says_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'longtail\[report\]'"):
        read(tmp_path)


def test_a_users_method_is_called_by_its_name_unless_that_is_anothers(tmp_path: Path):
    for i, (method, called) in enumerate(
        [("mine:A", "anchor"), ("mine:B", "ewc"), ("mine:C", "twin"), ("yours:C", "twin")]
    ):
        folder = write_run(tmp_path / str(i), config(method))
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "method_name": called}))
    write_run(tmp_path / "old", config("mine:D"))
    frames = read(tmp_path)
    methods = [entry.config["method"] for entry in frames.entries]
    found = dict(zip(methods, frames.runs["method"], strict=True))
    assert found == {
        "mine:A": "anchor",
        "mine:B": "mine:B",
        "mine:C": "mine:C",
        "yours:C": "yours:C",
        "mine:D": "mine:D",
    }
