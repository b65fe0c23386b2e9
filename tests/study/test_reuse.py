"""A study says which finished runs it uses again, computes stale ones anew, and mixes none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.reported import finished_of, runs_of
from helpers.user_project import METHOD, Project
from longtail import cli
from longtail.runs.files import StackFiles

STUDY = """
benchmark = "toy"
methods = ["finetune", "{method}:Scaled"]
policies = ["new"]
seeds = "0-1"
stack = {stack}
[data]
tasks = 5
zero_shot = 1
cap = 20
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def study(*further: str) -> int:
    return cli.main(["study", "s.toml", "--out", "out", "--no-report", *further])


def prepare(project: Project, name: str, factor: float = 1.0, stack: bool = False) -> None:
    project.write(f"{name}_helper", f"def factor():\n    return {factor}\n")
    project.write(name, METHOD.format(helper=f"{name}_helper"))
    Path("s.toml").write_text(STUDY.format(method=name, stack=str(stack).lower()))


@pytest.mark.parametrize("stack", [False, True])
def test_the_edited_method_alone_is_computed_anew(
    project: Project, capsys: pytest.CaptureFixture[str], stack: bool
) -> None:
    name = f"ru_edited{stack}"
    prepare(project, name, stack=stack)
    assert study() == 0
    before = {run.id: run.summary for run in runs_of(Path("out"))}
    assert study() == 0
    out, err = capsys.readouterr()
    assert "2 finished runs (finetune; seeds 0 to 1) are used again: the same settings\n" in out
    assert "used again: the same settings, code and data\n" in out
    assert "0 runs computed, 4 were finished before" in out
    assert err == ""
    prepare(project, name, factor=-1.0, stack=stack)
    assert study("--keep") == 2
    err = capsys.readouterr().err
    assert f"no longer what would be computed: {name}_helper.py has changed; --keep refuses" in err
    assert {run.id: run.summary for run in runs_of(Path("out"))} == before
    assert study("--dry-run", "--json") == 0
    assert capsys.readouterr().out.count(f"{name}_helper.py has changed") == 2
    assert study() == 0
    out, err = capsys.readouterr()
    assert f"computed anew: {name}_helper.py has changed\n" in err
    assert "2 runs computed, 2 were finished before" in out
    after = {run.id: run.summary for run in runs_of(Path("out")) if run.status == "finished"}
    assert set(after) == set(before)
    changed = {
        run.config["method"] for run in runs_of(Path("out")) if after[run.id] != before[run.id]
    }
    assert changed == {f"{name}:Scaled"}


def test_runs_that_are_no_longer_stacked_leave_no_old_stack_behind(project: Project) -> None:
    prepare(project, "ru_cut", stack=True)
    assert study() == 0
    old = {path.parent.name for path in Path("out").glob("stacks/*/runs.json")}
    prepare(project, "ru_cut", factor=-1.0, stack=False)
    assert study("--only", "method=scaled") == 0
    kept = {path.parent.name for path in Path("out").glob("stacks/*/runs.json")} & old
    methods = {
        e["config"]["method"] for k in kept for e in StackFiles(Path("out/stacks") / k).read_runs()
    }
    assert methods == {"finetune"}
    assert len({run.id for run in finished_of(Path("out"))}) == 4


def test_stale_runs_that_are_not_asked_for_are_named(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(project, "ru_some")
    assert study() == 0
    prepare(project, "ru_some", factor=-1.0)
    capsys.readouterr()
    assert study("--only", "seed=0") == 0
    err = capsys.readouterr().err
    assert "1 finished run (scaled; seed 1) is not asked for" in err


def test_fresh_begins_again_and_loses_no_run_that_was_not_asked_for(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(project, "ru_fresh", stack=True)
    assert study() == 0
    assert study("--fresh", "--only", "seed=0") == 2
    assert "1 more, which would be lost" in capsys.readouterr().err
    assert len(finished_of(Path("out"))) == 4
    assert study("--fresh") == 0
    assert "4 runs computed, 0 were finished before" in capsys.readouterr().out


def test_machines_are_told_too_and_the_plan_has_the_code(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(project, "ru_json")
    assert study("--quiet") == 0
    plan = json.loads(Path("out/plan.json").read_text())
    assert set(plan["code"]) == {"ru_json.py", "ru_json_helper.py"}
    capsys.readouterr()
    assert study("--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["event"], len(e["runs"])) for e in events] == [("reused", 2), ("reused", 2)]


def test_runs_of_another_version_are_used_again_and_said_to_be(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(project, "ru_before")
    assert study("--quiet") == 0
    for path in Path("out").glob("runs/*/timing.json"):
        timing = json.loads(path.read_text())
        timing["versions"]["longtail"] = "0.0.1"
        path.write_text(json.dumps(timing))
    assert study() == 0
    out = capsys.readouterr().out
    assert "used again: the same settings, by longtail 0.0.1\n" in out
    assert "used again: the same settings, code and data, by longtail 0.0.1\n" in out
    assert "0 runs computed, 4 were finished before" in out


def test_a_run_that_was_begun_with_other_code_is_refused_or_begins_again(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(project, "ru_begun")
    assert study("--quiet") == 0
    for path in Path("out").glob("runs/*/summary.json"):
        path.unlink()  # as if all had been stopped at the end
    prepare(project, "ru_begun", factor=-1.0)
    assert study("--keep") == 2
    assert "2 runs (scaled; seeds 0 to 1) are no longer what" in capsys.readouterr().err
    assert study() == 0
    assert "2 runs (scaled; seeds 0 to 1) are computed anew" in capsys.readouterr().err
    assert len(finished_of(Path("out"))) == 4
