import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.folders import contents
from helpers.reported import finished_of, runs_of
from longtail import cli
from longtail.benchmarks import toy
from longtail.report import read
from longtail.report.select import select
from longtail.report.table import build as build_table
from longtail.runs.build import build_stack
from longtail.study import command as execution
from longtail.study import local as engines
from longtail.study.display import Overview
from longtail.study.expand import expand, matching
from longtail.study.file import parse_seeds, read_study
from longtail.study.jobs import JobOptions, make_jobs
from longtail.study.local import train_jobs_in_processes
from longtail.support import mark
from longtail.support.files import FolderLock
from longtail.support.machine import commit
from longtail.support.mark import Mark, write_mark

TINY = """
benchmark = "toy"
methods = ["finetune"]
seeds = "0-1"
[data]
tasks = 12
zero_shot = 1
cap = 40
[train]
evaluate_every = 4
"""


def study_file(folder: Path, text: str = TINY, **replaced: str) -> Path:
    for key, new in replaced.items():
        lines = text.splitlines()
        lines[next(i for i, line in enumerate(lines) if line.startswith(f"{key} "))] = new
        text = "\n".join(lines) + "\n"
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def study(*arguments: object) -> int:
    return cli.main(["study", *map(str, arguments)])


def test_file_expands_to_methods_policies_grid_and_seeds(tmp_path: Path):
    path = study_file(tmp_path, TINY + '[grid]\n"train.lr" = [0.1, 0.01, 0.001]\n')
    runs = expand(read_study(path))
    assert len(runs) == len({run.id for run in runs}) == 2 * 3 * 2
    assert runs[0].labels == {"method": "finetune", "policy": "continual", "lr": 0.1}
    assert [run.id for run in runs] == [run.id for run in expand(read_study(path))]
    assert runs[0].config.data.tasks == 12


def test_a_grid_may_be_of_one_method_and_selected_by_seeds_of_its_own(tmp_path: Path):
    text = study_file(tmp_path, methods='methods = ["finetune", "ewc", "l2"]').read_text()
    text += '[grid]\n"method.ewc.strength" = [1.0, 2.0]\n"method.l2.strength" = [0.1, 0.2, 0.3]\n'
    text += '[select]\nkey = "methods.strength"\nseeds = "8-9"\n'
    path = study_file(tmp_path, text)
    read = read_study(path)
    runs = expand(read)
    assert read.seeds == [0, 1, 8, 9]
    found = {
        m: {r.labels.get("strength") for r in runs if r.config.method == m} for m in read.methods
    }
    assert found == {"finetune": {None}, "ewc": {1.0, 2.0}, "l2": {0.1, 0.2, 0.3}}
    assert len(runs) == (1 + 2 + 3) * 2 * 4
    path.write_text(path.read_text().replace("8-9", "1-9"))
    with pytest.raises(ValueError, match="seed 1 is one of the study's"):
        read_study(path)


def test_reported_seeds_train_at_the_best_values_alone(tmp_path: Path, capsys):
    text = TINY.replace('"0-1"', '"0-1"\npolicies = ["new"]')
    text += '[grid]\n"train.lr" = [0.0, 0.05]\n[select]\nkey = "train.lr"\nseeds = [8]\n'
    path, out = study_file(tmp_path, text), tmp_path / "out"
    words = (path, "--out", out, "--quiet", "--no-report")
    assert study(*words, "--best") == 2
    assert "--only seed=8," in capsys.readouterr().err
    assert study(*words, "--only", "seed=8") == 0
    assert study(*words, "--best") == 0
    found = {(run.seed, run.config["train"]["lr"]) for run in finished_of(out)}
    assert found == {(8, 0.0), (8, 0.05), (0, 0.05), (1, 0.05)}


def test_seeds_that_choose_may_hold_out_what_the_reported_ones_train_on(tmp_path: Path, capsys):
    text = TINY.replace('"0-1"', '"0-1"\npolicies = ["new"]')
    text += '[grid]\n"train.lr" = [0.0, 0.05]\n[select]\nkey = "train.lr"\n'
    path, out = study_file(tmp_path, text + "train = { validation = 0.2 }\n"), tmp_path / "out"
    words = (path, "--out", out, "--quiet", "--no-report")
    assert study(*words) == 2
    assert "select.train is for select.seeds" in capsys.readouterr().err
    path.write_text(path.read_text() + "seeds = [8]\n")
    assert study(*words, "--only", "seed=8") == 0
    assert study(*words, "--best") == 0
    found = {(run.seed, run.config["train"]["validation"]) for run in finished_of(out)}
    assert found == {(8, 0.2), (0, 0.0), (1, 0.0)}
    path.write_text(path.read_text().replace("validation = 0.2", "validaton = 0.2"))
    assert study(*words) == 2
    assert "validaton" in capsys.readouterr().err


def test_rows_with_an_average_are_scored_by_it_where_the_report_asks_for_that(tmp_path: Path):
    text = (
        TINY.replace('"0-1"', '"0-1"\n')
        + """
[[policies]]
name = "plain"
policy = "kept"
[[policies]]
name = "averaged"
policy = "kept"
train = { average = "task" }
[report]
average = true
"""
    )
    path, out = study_file(tmp_path, text), tmp_path / "out"
    assert study(path, "--out", out, "--quiet", "--no-report") == 0
    found = {(run.labels["policy"], run.seed): run for run in finished_of(out)}
    for seed in (0, 1):
        plain, averaged = found["plain", seed], found["averaged", seed]
        kept = averaged.summary["average"]
        assert averaged.numbers["RP"] == kept["RP"] != plain.numbers["RP"]
        assert averaged.scores is None  # those by task are the weights'
    assert not read(out).problems
    table = json.loads((out / "plan.json").read_text())
    (out / "plan.json").write_text(json.dumps({**table, "report": {"average": False}}))
    found = {(run.labels["policy"], run.seed): run for run in finished_of(out)}
    assert found["averaged", 0].numbers["RP"] == found["plain", 0].numbers["RP"]


BESIDE = """
[grid]
"train.lr" = [0.01, 0.05, 0.2]
[select]
key = "train.lr"
seeds = [8]
[[policies]]
name = "plain"
policy = "kept"
[[policies]]
name = "kept"
policy = "kept"
methods = ["finetune"]
train = { average = "task", epochs = 2 }
[report]
average = "beside"
"""


def test_an_average_may_have_a_row_beside_the_weights_at_a_rate_of_its_own(
    tmp_path: Path, capsys, monkeypatch
):
    path, out = study_file(tmp_path, TINY + BESIDE), tmp_path / "out"
    words = (path, "--out", out, "--quiet", "--no-report")
    assert study(*words, "--only", "seed=8") == 0
    scores = {(r.labels["policy"], r.labels["lr"]): r.numbers["RP"] for r in finished_of(out)}
    chosen = {
        policy: max((0.01, 0.05, 0.2), key=lambda lr: scores[policy, lr])
        for policy in ("plain", "kept", "kept, task average")
    }
    assert chosen["kept"] != chosen["kept, task average"]
    assert study(*words, "--best") == 0
    results = read(out)
    reported = [run for run in finished_of(out) if run.seed != 8]
    trained = {(run.config["train"].get("average", "none"), run.labels["lr"]) for run in reported}
    kept = {("task", chosen["kept"]), ("task", chosen["kept, task average"])}
    assert trained == {("none", chosen["plain"])} | kept
    assert len(results.finished) > 12  # some stand twice
    assert results.state.startswith("12 of 12 runs finished")
    rows = {row["policy"]: row for row in build_table(select(results)[0]).rows}
    assert {"plain", "kept", "kept, task average"} == {*rows}
    for policy, lr in chosen.items():
        assert rows[policy]["selected"] == {"lr": lr}
        assert rows[policy]["seeds"] == 2
    assert rows["kept"]["RP"] != rows["kept, task average"]["RP"]
    logged: list[str] = []
    monkeypatch.setattr("longtail.runs.loggers.require", lambda tool: None)  # it may not be here
    monkeypatch.setattr("longtail.study.logged.log_result", lambda *_, name: logged.append(name))
    words_of_report = ["--quiet", "--no-page", "--no-figures", "--log", "tensorboard"]
    assert cli.main(["report", str(out), *words_of_report]) == 0
    assert len(logged) == 12  # a run that stands twice is logged once, by its weights
    policies = {name.partition(",")[0].partition(" ")[2] for name in logged}
    assert policies == {"plain", "kept"}
    path.write_text(path.read_text().replace('"beside"', '"besides"'))
    assert study(*words) == 2
    assert "report.average must be" in capsys.readouterr().err


def test_adding_a_seed_keeps_the_ids_of_the_others(tmp_path: Path):
    few = {run.id for run in expand(read_study(study_file(tmp_path)))}
    more = {run.id for run in expand(read_study(study_file(tmp_path, seeds='seeds = "0-2"')))}
    assert few < more
    assert len(more) == 6


def test_multitask_has_one_policy_and_grid_skips_methods_without_the_setting(tmp_path: Path):
    text = study_file(tmp_path, methods='methods = ["finetune", "reservoir", "multitask"]')
    text.write_text(text.read_text() + '[grid]\n"methods.buffer" = [5, 10]\n')
    runs = expand(read_study(text))
    counts = {m: sum(r.labels["method"] == m for r in runs) for m in read_study(text).methods}
    assert counts == {"finetune": 4, "reservoir": 8, "multitask": 2}
    assert "buffer" not in runs[0].labels


def test_named_policies_become_labelled_rows(tmp_path: Path):
    rows = """
[[policies]]
name = "1"
row = 1
moments = { first_moment = "reset", second_moment = "reset", beta3 = 0.9 }
[[policies]]
name = "MTL"
row = 11
methods = ["multitask"]
policy = "new"
"""
    path = study_file(tmp_path, TINY + rows, methods='methods = ["finetune", "multitask"]')
    labels = [run.labels for run in expand(read_study(path))][::2]
    assert labels[0] == {
        "method": "finetune",
        "policy": "1",
        "row": 1,
        "first_moment": "reset",
        "second_moment": "reset",
        "lr_adjust": True,
    }
    assert labels[1] == {"method": "multitask", "policy": "MTL", "row": 11}


def test_settings_of_methods_reach_those_that_have_them(tmp_path: Path):
    text = TINY + "[method]\nbuffer = 7\n[method.derpp]\nalpha = 0.25\n"
    path = study_file(tmp_path, text, methods='methods = ["finetune", "derpp"]')
    derpp = next(r for r in expand(read_study(path)) if r.labels["method"] == "derpp")
    assert (derpp.config.methods.buffer, derpp.config.methods.alpha) == (7, 0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": 'benchmrk = "toy"'}, "benchmark"),
        ({"seeds": 'seeds = "a-b"'}, "a-b"),
        ({"tasks": "taskz = 3"}, "tasks"),
        ({"methods": 'methods = ["finetun"]'}, "finetune"),
        ({"methods": "methods = 3"}, "list of names"),
        ({"seeds": 'seeds = "5-2"'}, "5-2 is empty"),
        ({"methods": 'stack = "no"'}, "stack must be true | false, got 'no'"),
        (
            {"methods": "policies = []"},
            "must be names or rows of [[policies]], got []",
        ),
        ({"methods": "optimizer = 3"}, "optimizer must be text, got 3"),
        ({"methods": 'select = "train.lr"'}, "select must be a table"),
        (
            {"methods": "policies = 3"},
            "must be names or rows of [[policies]], got 3",
        ),
        ("[resources]\ncpus = 'two'", "resources.cpus must be number, got 'two'"),
        ("[resources]\ncpus = 0", "resources.cpus must be above zero, got 0.0"),
        ("[resources]\ngpus = -1", "resources.gpus must be above zero, got -1.0"),
        ("[resources]\ncpus = 1e9", "resources.cpus must be at most "),
        ("[resources]\ncpus = nan", "resources.cpus must be above zero, got nan"),
        ("[resources]\ngpus = inf", "resources.gpus must be above zero, got inf"),
        ("[resources]\ncpu = 2", "resources.cpu = 2: unknown key of [resources] 'cpu'"),
        ("[report]\ntitel = 'x'", "did you mean 'title'?"),
        ("[select]\nkeys = 'train.lr'", "did you mean 'key'?"),
        ("[report]\nchecks = ['mc_improve']", "did you mean 'mc_improves'?"),
        ("[report]\nchecks = ['nowhere:mine']", "Check 'nowhere:mine' cannot be imported"),
        ("[report]\npaper = 'table9'", "Unknown table of a paper: 'table9'"),
        ("[report]\nindex = ['methd']", "unknown label in [report] 'methd'"),
        ("[report]\ncolumns = 'buffer'", "unknown label in [report] 'buffer'"),
        ("[report]\npair = ['continual', 'kept']", "unknown policy in report.pair 'kept'"),
        ({"methods": 'name = "../up"'}, "name = '../up'"),
        ({"methods": 'name = ".."'}, "name = '..'"),
        ({"methods": 'name = ""'}, "name = ''"),
        ({"seeds": "seeds = [9223372036854775808]"}, "seeds must be below 2**63"),
        ("[grid]\nseed = [1, 2]", "give seeds at the top of the file"),
        ("[grid]\npolicy = ['new']", "give policies at the top of the file"),
        ("[[policies]]\nname = 'a'\n[[policies]]\nname = 'b'", "'a' and 'b' of [[policies]] do"),
        ("[[policies]]\nname = 'a'\nRP = 3", "RP = 3 in the row 'a'"),
        ("[[policies]]\nname = 'a'\nseed = 3", "seed = 3 in the row 'a'"),
        ("[method]\nbufer = 3", "method.bufer = 3"),
        ("[method.finetun]\nx = 3", "did you mean 'finetune'?"),
        ("[grid]\n'methods.bufer' = [3]", "grid.methods.bufer = [3]"),
        ("[grid]\n'method.ewc.strength' = [3]", "grid.methods.ewc.strength = [3]"),
        ("[select]\nkey = ['train.lr']", "select.key = 'train.lr' is not a key of [grid]"),
        ("[[policies]]\nname = 'a'\nfirst_momnt = 'task'", "first_moment belongs in its table"),
        ("[[policies]]\nname = 'a'\nbeta3 = 0.0", "beta3 belongs in its table `moments`"),
        ("[[policies]]\nname = 'a'\nmoments = { beta4 = 0.0 }", "did you mean 'moments.beta3'?"),
        ("[[policies]]\nname = 'a'\npolcy = 'new'", "did you mean 'policy'?"),
        ("[[policies]]\nname = 'a'\nmethods = 'finetune'", "list of names, got 'finetune'"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, capsys, change, message):
    if isinstance(change, str):
        path = study_file(tmp_path, TINY + change + "\n")
    else:
        path = study_file(tmp_path, **change)
    assert study(path, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--snapshot-minutes", "-2"], "--snapshot-minutes must not be negative, got -2.0"),
        (["--snapshot-minutes", "nan"], "must not be negative, got nan"),
        (["--device", "meta"], "device 'meta': nothing trains on meta"),
        (["--device", "meta", "--dry-run"], "device 'meta': nothing trains on meta"),
        (["--best"], "--best: [select] of the study file names no seeds to choose by"),
        (["--address", "auto"], "are for --engine ray"),
        (["--log", "tensorbored"], "did you mean 'tensorboard'?"),
        (["--only", "policy=continual,ne"], "unknown policy of --only 'ne'; did you mean"),
        (["--engine", "ray"], "needs Ray: pip install"),
    ],
)
def test_mistakes_in_flags_are_named_before_anything_runs(
    tmp_path: Path, capsys, monkeypatch, flags, message
):
    found = execution.find_spec
    monkeypatch.setattr(execution, "find_spec", lambda name: found(name) if name != "ray" else None)
    assert study(study_file(tmp_path), "--out", tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_grid_understands_method(tmp_path: Path):
    text = TINY.replace("seeds", 'policies = ["new"]\nseeds')
    path = study_file(tmp_path, text, methods='methods = ["reservoir"]')
    path.write_text(path.read_text() + '[grid]\n"method.buffer" = [5, 10]\n')
    runs = expand(read_study(path))
    assert {(r.labels["policy"], r.config.methods.buffer) for r in runs} == {
        ("new", 5),
        ("new", 10),
    }


def test_seeds_and_conditions(tmp_path: Path):
    assert parse_seeds("0-2, 7") == [0, 1, 2, 7]
    assert parse_seeds("0-2, 1") == parse_seeds([0, 1, 2, 1]) == [0, 1, 2]
    runs = expand(read_study(study_file(tmp_path)))
    assert len(matching(runs, ["policy=new", "seed=1"])) == 1
    assert len(matching(runs, ["data.tasks=12"])) == 4
    assert len(matching(runs, ["train.lr=1e-2", "moments.boundary=true"])) == 4
    with pytest.raises(ValueError, match=r"polcy.*policy"):
        matching(runs, ["polcy=new"])
    path = study_file(tmp_path, TINY + '[grid]\n"train.weight_decay" = [1.0, 3.0]\n')
    runs = expand(read_study(path))
    whole = [run.config.train.weight_decay for run in matching(runs, ["weight_decay=3"])]
    assert set(whole) == {3.0}
    with pytest.raises(ValueError, match="unknown weight_decay of --only '2'"):
        matching(runs, ["weight_decay=1,2"])


def test_one_policy_may_have_other_settings_with_other_methods(tmp_path: Path):
    text = TINY.replace('["finetune"]', '["finetune", "ewc", "reservoir"]')
    row = '[[policies]]\nname = "kept"\npolicy = "kept"\n'
    rows = f'{row}methods = ["finetune", "ewc"]\n{row}methods = ["reservoir"]\n'
    rows += 'train = { average = "task" }\n'
    runs = expand(read_study(study_file(tmp_path, text + rows)))
    averages = {(run.config.method, run.config.train.average) for run in runs}
    assert averages == {("finetune", "none"), ("ewc", "none"), ("reservoir", "task")}
    for twice in (rows + row, rows.replace('["reservoir"]', '["ewc", "reservoir"]')):
        with pytest.raises(ValueError, match=r"two rows of .* are called 'kept'"):
            read_study(study_file(tmp_path, text + twice))


def test_only_takes_a_policy_whose_name_has_a_comma(tmp_path: Path):
    rows = '[[policies]]\nname = "kept, ema"\npolicy = "kept"\ntrain = { average = "ema" }\n'
    rows += '[[policies]]\nname = "kept"\n[[policies]]\nname = "new"\npolicy = "new"\n'
    runs = expand(read_study(study_file(tmp_path, TINY + rows)))
    found = [matching(runs, [f"policy={text}"]) for text in ("kept, ema", "kept,new")]
    told = [{run.labels["policy"] for run in part} for part in found]
    assert told == [{"kept, ema"}, {"kept", "new"}]


def test_executes_reports_and_later_computes_only_what_is_new(tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert study(study_file(tmp_path), "--out", out) == 0
    assert "4 runs computed" in capsys.readouterr().out
    table = json.loads((out / "table.json").read_text())
    assert [(r["method"], r["policy"], r["seeds"]) for r in table["rows"]] == [
        ("finetune", "continual", 2),
        ("finetune", "new", 2),
    ]
    stack = next(out.glob("stacks/*/runs.json"))
    before = stack.stat().st_mtime_ns
    path = study_file(tmp_path, seeds="seeds = [0, 1, 2]")
    assert study(path, "--out", out, "--no-report") == 0
    assert "2 runs computed, 4 were finished before" in capsys.readouterr().out
    assert stack.stat().st_mtime_ns == before
    assert study(out / "study.toml", "--out", out, "--no-report") == 0  # the folder's own copy
    assert "6 were finished before" in capsys.readouterr().out
    assert study(path, "--out", out, "--dry-run", "--quiet") == 0
    assert "6 runs, 6 finished" in " ".join(capsys.readouterr().out.split())


def test_only_executes_what_matches_and_the_report_counts_the_rest(tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert study(study_file(tmp_path), "--out", out, "--only", "policy=new", "--no-report") == 0
    assert "2 runs computed" in capsys.readouterr().out
    assert read(out).state == "2 of 4 runs finished."


def test_other_seeds_keep_the_finished_runs_and_the_report_says_where_from(tmp_path: Path, capsys):
    out, path = tmp_path / "out", study_file(tmp_path)
    assert study(path, "--out", out, "--no-report") == 0
    assert "RP 0." in capsys.readouterr().out
    assert study(path, "--out", out, "--seeds", 2, "--quiet") == 0
    assert not capsys.readouterr().out
    table = json.loads((out / "table.json").read_text())
    assert [row["seeds"] for row in table["rows"]] == [3, 3]
    assert table["provenance"]["command"] == "longtail study tiny.toml --out out --seeds 2 --quiet"
    assert table["provenance"].get("commit") == commit()
    assert "directory" not in table["provenance"]  # of somebody's machine
    path = study_file(tmp_path, evaluate_every="evaluate_every = 3")
    assert study(path, "--out", out, "--seeds", 3, "--no-report") == 0
    assert read(out).state == "2 of 2 runs finished."
    assert read(out).problems[0].startswith("6 runs in this folder are not in its plan.json")


def test_seeds_of_a_study_that_ends_just_before_ours_begins_stay_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, out = study_file(tmp_path), tmp_path / "out"
    words = (path, "--out", out, "--quiet", "--no-report")

    class Late(FolderLock):
        def __enter__(self) -> FolderLock:
            monkeypatch.setattr(mark, "FolderLock", FolderLock)
            assert study(*words, "--seeds", "2-3") == 0
            return super().__enter__()

    monkeypatch.setattr(mark, "FolderLock", Late)
    assert study(*words) == 0
    plan = json.loads((out / "plan.json").read_text())
    assert {entry["seed"] for entry in plan["runs"]} == {0, 1, 2, 3}


def test_a_plan_is_shown_while_another_process_holds_the_folder(tmp_path: Path, capsys):
    path, out = study_file(tmp_path), tmp_path / "out"
    assert study(path, "--out", out, "--dry-run", "--json") == 0
    assert not out.exists()
    with FolderLock(out):
        assert study(path, "--out", out, "--dry-run", "--json") == 0
        assert study(path, "--out", out) == 2
    assert "is in use by another process" in capsys.readouterr().err


def test_a_study_that_is_refused_leaves_nothing(tmp_path: Path, capsys):
    text = TINY + '[grid]\n"train.lr" = [0.0, 0.05]\n[select]\nkey = "train.lr"\nseeds = [8]\n'
    path = study_file(tmp_path, text)
    assert study(path, "--out", tmp_path / "runs" / "out", "--best") == 2
    assert "--only seed=8" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_runs_of_several_folders_become_one_study(tmp_path: Path, capsys):
    file = study_file(tmp_path)
    for policy in ("continual", "new"):  # as two machines would share them
        only = ("--only", f"policy={policy}")
        assert study(file, "--out", tmp_path / policy, "--no-report", "--quiet", *only) == 0
        for kind in ("runs", "stacks"):
            if (tmp_path / policy / kind).is_dir():
                shutil.copytree(
                    tmp_path / policy / kind, tmp_path / "one" / kind, dirs_exist_ok=True
                )
    assert study(file, "--out", tmp_path / "whole", "--no-report", "--quiet") == 0
    capsys.readouterr()
    assert study(file, "--out", tmp_path / "one") == 0
    assert "0 runs computed, 4 were finished before" in capsys.readouterr().out
    one, whole = read(tmp_path / "one"), read(tmp_path / "whole")
    assert list(one.runs["RP"]) == list(whole.runs["RP"])


def test_running_rp_is_not_forgotten(tmp_path: Path):
    (job,) = make_jobs(expand(read_study(study_file(tmp_path))), tmp_path, stack=True, earlier={})
    shown = Overview([job], 0)
    progress = {"done": 1, "tasks": 2, "seconds_left": None}
    for rp in (0.5, None):
        shown.event("progress", job, {**progress, "rp": rp})
    shown.event("finished", job, {"rp": None})
    assert shown.states[job.id].rp == 0.5


def test_unfinished_stack_goes_on_as_it_was_begun(tmp_path: Path):
    runs = expand(read_study(study_file(tmp_path)))
    (job,) = make_jobs(runs, tmp_path, stack=True, earlier={})
    (tmp_path / job.folder / "snapshot").mkdir(parents=True)
    (tmp_path / job.folder / "snapshot" / f"00000001-{'0' * 64}.pt").touch()
    more = expand(read_study(study_file(tmp_path, seeds='seeds = "0-2"')))
    members = [config.id for config in job.configs]
    jobs = make_jobs(more, tmp_path, stack=True, earlier={job.id: members})
    assert [(j.id == job.id, len(j.configs)) for j in jobs] == [(True, 4), (False, 2)]


def test_stacks_are_full_products_of_variants_and_seeds(tmp_path: Path):
    runs = expand(read_study(study_file(tmp_path, seeds='seeds = "0-2"')))
    lacking = [r for r in runs if not (r.labels["policy"] == "new" and r.config.seed == 0)]
    jobs = make_jobs(lacking, tmp_path, stack=True, earlier={})
    assert sorted(len(job.configs) for job in jobs) == [2, 3]


def test_runs_whose_settings_cannot_be_stacked_are_planned_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []

    def stackable(settings: Any) -> bool:
        asked.append(settings.tasks)
        return settings.tasks != 9

    monkeypatch.setattr(toy, "SPEC", replace(toy.SPEC, stackable=stackable))
    runs = expand(read_study(study_file(tmp_path, TINY + '[grid]\n"data.tasks" = [9, 12]\n')))
    jobs = make_jobs(runs, tmp_path, stack=True, earlier={})
    assert sorted((job.stacked, len(job.configs)) for job in jobs) == [*[(False, 1)] * 4, (True, 4)]
    assert sorted(asked) == [9, 12]  # once for all runs that are alike
    for tasks, size in ((9, 0), (12, 4)):
        chosen = [run.config for run in runs if run.config.data.tasks == tasks]
        if size:
            assert len(build_stack(chosen).configs) == size
        else:
            with pytest.raises(ValueError, match=r"cannot be stacked .* `stack = false`"):
                build_stack(chosen)


@pytest.mark.parametrize(("device", "sizes"), [("cpu", [2] * 4), ("cuda", [4] * 2)])
def test_workers_share_stacks_and_cut_them_where_a_part_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, sizes: list[int]
):
    monkeypatch.setattr("longtail.study.jobs.choose_device", torch.device)
    monkeypatch.setattr("longtail.study.jobs.data_memory", lambda device: 2**31)
    runs = expand(read_study(study_file(tmp_path, methods='methods = ["finetune", "ewc"]')))
    jobs = make_jobs(runs, tmp_path, stack=True, earlier={}, device=device, workers=2)
    assert [len(job.configs) for job in jobs] == sizes


@pytest.mark.parametrize(
    ("most", "workers", "sizes"),
    [(99, 1, [7]), (3, 1, [3, 2, 2]), (99, 2, [4, 3]), (3, 2, [2, 2, 2, 1]), (1, 9, [1] * 7)],
)
def test_parts_of_a_stack_are_alike_and_occupy_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, workers: int, sizes: list[int]
):
    monkeypatch.setattr(toy, "SPEC", replace(toy.SPEC, most_seeds=lambda *_: most))
    runs = expand(read_study(study_file(tmp_path, seeds='seeds = "0-6"')))
    jobs = make_jobs(runs, tmp_path, stack=True, earlier={}, workers=workers)
    found = [sorted({c.seed for c in job.configs}) for job in jobs]
    assert [len(seeds) for seeds in found] == sizes
    assert [seed for seeds in found for seed in seeds] == list(range(7))


def test_workers_that_die_before_they_listen_fail_their_jobs_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def start(*_: object):
        (ours, theirs), (sentinel, other) = Pipe(), Pipe()
        theirs.close()
        other.close()
        join = lambda timeout: None  # noqa: E731
        return ours, SimpleNamespace(pid=None, exitcode=-9, sentinel=sentinel, join=join)

    monkeypatch.setattr(engines, "_start", start)
    runs = expand(read_study(study_file(tmp_path)))
    jobs = make_jobs(runs, tmp_path, stack=False, earlier={}, workers=2)
    told: list[tuple[str, str]] = []
    shown = SimpleNamespace(event=lambda kind, _, content: told.append((kind, content["error"])))
    train_jobs_in_processes(jobs, tmp_path, JobOptions(device="cpu"), shown, 2)  # pyright: ignore
    assert told == [("failed", "its process died with exit code -9")] * len(jobs)
    assert len(list(tmp_path.glob("runs/*/error.json"))) == len(jobs) > 2


FAILING = '''
from longtail.methods import Finetune

class Broken(Finetune):
    """Fails in the middle of a run."""

    def end_task(self, train):
        raise RuntimeError("no <b>luck</b>")
'''


def test_a_worker_whose_parent_was_killed_saves_and_leaves_without_a_traceback(
    tmp_path: Path, monkeypatch
):
    ours, theirs = Pipe()
    ours.send("a job")

    def until_nobody_listens(job, out, options, send):
        ours.close()
        send("progress", {})  # which the worker takes for a request to stop
        pytest.fail("it went on")

    monkeypatch.setattr(engines, "train_job", until_nobody_listens)
    monkeypatch.setattr(engines, "_placed", lambda slot, workers, options: options)
    monkeypatch.setattr(os, "setpgrp", lambda: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        engines.take_jobs(theirs, 0, 1, tmp_path, JobOptions())
    except KeyboardInterrupt:
        pytest.fail("it came out of the worker")
    finally:
        signal.signal(signal.SIGINT, before)


def test_failed_run_is_recorded_and_the_others_go_on(tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "broken_method.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    path = study_file(tmp_path, methods='methods = ["broken_method:Broken", "finetune"]')
    path.write_text("stack = false\n" + path.read_text())
    out = tmp_path / "out"
    assert study(path, "--out", out, "--seeds", "0") == 1
    said = capsys.readouterr()
    assert "2 runs computed" in said.out
    assert said.err.count("no <b>luck</b>") == 2
    errors = [json.loads(p.read_text()) for p in out.glob("runs/*/error.json")]
    assert [e["error"] for e in errors] == ["RuntimeError: no <b>luck</b>"] * 2
    assert "no &lt;b&gt;luck" in (out / "report.html").read_text()

    monkeypatch.delattr(sys.modules["broken_method"].Broken, "end_task")  # repaired
    assert study(path, "--out", out, "--seeds", "0", "--no-report") == 0
    assert len(list(out.glob("runs/*/summary.json"))) == 4
    assert not list(out.glob("runs/*/error.json"))


def test_a_folder_of_others_in_the_place_of_a_run_is_left_alone(tmp_path: Path, capsys):
    path = study_file(tmp_path, "stack = false\n" + TINY)
    out = tmp_path / "out"
    words = (path, "--out", out, "--only", "policy=new", "--quiet")
    assert study(*words, "--dry-run", "--json") == 0
    first, _ = (json.loads(line)["id"] for line in capsys.readouterr().out.splitlines())
    theirs = out / "runs" / first
    theirs.mkdir(parents=True)
    write_mark(out, Mark("study"))
    (theirs / "summary.json").write_text("")
    assert study(*words, "--fresh") == 2  # before anything is removed
    assert "it holds summary.json" in capsys.readouterr().err
    assert study(*words, "--no-report") == 1
    assert "it holds summary.json" in capsys.readouterr().err
    assert [path.name for path in theirs.iterdir()] == ["summary.json"]
    assert len(read(out).finished) == 1


def test_two_processes_write_the_same_files_as_one(tmp_path: Path):
    path = study_file(tmp_path, TINY + "[resources]\ncpus = 1\n")
    path.write_text("stack = false\n" + path.read_text())
    for name, jobs in (("one", 1), ("two", 2)):
        assert study(path, "--out", tmp_path / name, "--jobs", jobs, "--no-report", "--quiet") == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "one")) > 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_saves_and_the_next_call_ends_with_the_same_files(tmp_path: Path, jobs: int):
    text = TINY.replace("tasks = 12", "tasks = 300").replace("cap = 40", "cap = 400")
    path = study_file(tmp_path, "stack = false\n" + text + "[resources]\ncpus = 1\n")
    command = [sys.executable, "-m", "longtail", "study", str(path), "--jobs", str(jobs)]
    command += ["--no-report", "--out"]
    process = subprocess.Popen([*command, str(tmp_path / "a")])
    while not list((tmp_path / "a").glob("runs/*/scores.jsonl")):
        time.sleep(0.1)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(600) == 130
    assert list((tmp_path / "a").glob("runs/*/snapshot/*.pt"))
    assert len(list((tmp_path / "a").glob("runs/*/summary.json"))) < 4
    subprocess.run([*command, str(tmp_path / "a")], check=True)
    subprocess.run([*command, str(tmp_path / "b")], check=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


SEVERAL = """
benchmark = "toy"
seeds = "0-1"
[data]
tasks = 6
zero_shot = 1
cap = 20
[train]
epochs = 1
eps = 1e-6
[optim]
momentum = 0.5
[optim.sgd]
nesterov = true
[grid]
"optim.dampening" = [0.0]
[[policies]]
name = "ours"
[[policies]]
name = "SGD"
policy = "new"
optimizer = "sgd"
train = { lr = 0.05 }
optim = { dampening = 0.0 }
[[policies]]
name = "Adafactor"
optimizer = "adafactor"
[[policies]]
name = "softened"
policy = "helpers.own_optimizers:soften"
moments = { keep = 0.25 }
"""


def test_rows_may_have_optimizers_of_their_own(tmp_path: Path, capsys):
    path = study_file(tmp_path, SEVERAL)
    runs = expand(read_study(path))
    of = {run.labels["policy"]: run.config for run in runs}
    assert len(runs) == 2 * 4
    assert of["ours"].train.eps == 1e-6
    assert (of["SGD"].optimizer, of["SGD"].train.lr) == ("sgd", 0.05)
    assert of["Adafactor"].policy == "kept"  # as where an optimizer is named and no policy
    assert dict(of["SGD"].optim)["momentum"] == 0.5
    assert dict(of["SGD"].optim)["nesterov"] is True
    assert dict(of["softened"].moments.settings) == {"keep": 0.25}
    assert study(path, "--out", tmp_path / "out", "--dry-run", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    alone = {entry["policy"]: entry.get("alone") for entry in told}
    assert alone["Adafactor"] == "adafactor is not known to be elementwise"
    assert alone["SGD"] is alone["ours"] is alone["softened"] is None
    stacked = {entry["policy"] for entry in told if entry["folder"].startswith("stacks/")}
    assert stacked == {"ours", "SGD", "softened"}


def test_a_study_of_several_optimizers_is_trained(tmp_path: Path):
    out = tmp_path / "out"
    path = study_file(tmp_path, SEVERAL)
    assert study(path, "--out", out, "--quiet", "--no-report") == 0
    runs = runs_of(out)
    assert {run.labels["policy"] for run in runs} == {"ours", "SGD", "Adafactor", "softened"}
    assert len(runs) == 8
    assert len({run.summary["RP"] for run in runs if run.seed == 0}) > 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("momentum = 0.5", "momentun = 0.5", "optim.momentun = 0.5: .*did you mean 'momentum'"),
        ("[optim.sgd]", "[optim.sdg]", r"\[optim.sdg\].*did you mean 'sgd'"),
        ("optim.dampening", "optim.damping", "grid.optim.damping.*unknown setting"),
        (
            "keep = 0.25",
            "kept = 0.25",
            "setting 'moments.kept'; did you mean 'moments.keep'",
        ),
        ('optimizer = "adafactor"', 'train = "adafactor"', "must be a table"),
    ],
)
def test_mistakes_about_optimizers_in_a_study(tmp_path: Path, old: str, new: str, message: str):
    path = study_file(tmp_path, SEVERAL.replace(old, new))
    with pytest.raises(ValueError, match=message):
        expand(read_study(path))


def test_a_table_may_ask_for_the_average_of_the_weights(tmp_path: Path):
    report = '[report]\nmetrics = ["RP", "average.RP"]\n'
    text = TINY.replace("[train]\n", '[train]\naverage = "task"\n') + report
    out = tmp_path / "out"
    assert study(study_file(tmp_path, text), "--out", out, "--quiet", "--no-report") == 0
    table = build_table(read(out))
    assert table.metrics == ["RP", "average.RP"]
    for row in table.rows:
        assert row["average.RP"] != row["RP"]
        assert row["average.RP_se"] is not None
        assert row["average.RP_after"] == row["RP_after"]
        assert row["average.RP_curve"][-1] == pytest.approx(row["average.RP"])
