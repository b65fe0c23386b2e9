"""A run is what its settings, the user's code and its data files make of it."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from helpers.user_project import BENCHMARK, METHOD, Project
from longtail import cli
from longtail.runs import fingerprint
from longtail.runs.config import resolve
from longtail.runs.files import RunFiles
from longtail.runs.fingerprint import Fingerprint, Watch, change
from longtail.runs.integrity import check_folder

TOY = ["--tasks", "5", "--zero-shot", "1", "--cap", "20", "--quiet", "--out", "out"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def with_method(project: Project, name: str, factor: float = 1.0) -> list[str]:
    """The command for a method of the user's whose module imports another."""
    project.write(f"{name}_helper", f"def factor():\n    return {factor}\n")
    project.write(name, METHOD.format(helper=f"{name}_helper"))
    return ["run", "toy", "--method", f"{name}:Scaled", *TOY]


def summary() -> dict[str, Any]:
    return json.loads(Path("out/summary.json").read_text())


def test_an_edited_method_is_computed_anew_and_says_which_file(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    command = with_method(project, "fp_method")
    assert cli.main(command) == 0
    weights, config = Path("out/model.safetensors"), Path("out/config.toml").read_bytes()
    first = weights.read_bytes()
    recorded = tomllib.loads(config.decode())["fingerprint"]
    assert set(recorded["code"]) == {"fp_method.py", "fp_method_helper.py"}
    assert cli.main(command) == 0
    assert Path("out/config.toml").read_bytes() == config
    assert capsys.readouterr().err == ""
    with_method(project, "fp_method", factor=-1.0)
    assert cli.main(command) == 0
    said = "longtail: fp_method_helper.py has changed since out was computed: it is computed anew\n"
    assert capsys.readouterr().err == said
    assert weights.read_bytes() != first
    assert not check_folder(Path("out")).damaged


def test_keep_refuses_and_leaves_everything_as_it_was(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    command = with_method(project, "fp_kept")
    assert cli.main(command) == 0
    before = {p.name: p.read_bytes() for p in Path("out").iterdir() if p.is_file()}
    assert cli.main([*command, "--keep"]) == 0
    with_method(project, "fp_kept", factor=2.0)
    assert cli.main([*command, "--keep"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "longtail: out: fp_kept_helper.py has changed since this run was computed"
    )
    assert err.count("\n") == 1
    assert {p.name: p.read_bytes() for p in Path("out").iterdir() if p.is_file()} == before
    assert cli.main([*command, "--keep", "--fresh"]) == 2
    assert "not both" in capsys.readouterr().err


def test_fresh_computes_what_is_finished_and_takes_the_folder_of_another(project: Project) -> None:
    command = ["run", "toy", *TOY]
    assert cli.main(command) == 0
    first = Path("out/timing.json").read_bytes()
    Path("out/notes.txt").write_text("mine")
    assert cli.main(command) == 0
    assert Path("out/timing.json").read_bytes() == first
    assert cli.main([*command, "--fresh"]) == 0
    assert Path("out/timing.json").read_bytes() != first
    assert cli.main([*command, "--seed", "3"]) == 2
    assert cli.main([*command, "--seed", "3", "--fresh"]) == 0
    assert tomllib.loads(Path("out/config.toml").read_text())["seed"] == 3
    assert Path("out/notes.txt").read_text() == "mine"
    assert not check_folder(Path("out")).damaged


def test_data_that_were_cut_are_read_again(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.write("fp_weeks", BENCHMARK.format(file="'weeks.csv'"))
    path = project.write_numbers(16)
    command = ["run", "fp_weeks", "--quiet", "--out", "out"]
    assert cli.main(command) == 0
    entry = tomllib.loads(Path("out/config.toml").read_text())["fingerprint"]["data"]["weeks.csv"]
    assert entry["bytes"] == path.stat().st_size
    os.utime(path)  # touched, and as it was
    assert cli.main(command) == 0
    assert (capsys.readouterr().err, summary()["tasks"]) == ("", 4)
    project.write_numbers(8)
    project.forget()
    assert cli.main([*command, "--keep"]) == 2
    assert cli.main(command) == 0
    assert "weeks.csv has changed since out was computed" in capsys.readouterr().err
    assert summary()["tasks"] == 2
    path.unlink()  # as on another machine: what is there is as good as it was
    assert cli.main(command) == 0


def test_a_file_that_a_setting_names_counts_whoever_reads_it(project: Project) -> None:
    project.write("fp_named", BENCHMARK.format(file="settings.file"))
    project.write_numbers(8, name="a.csv")
    assert cli.main(["run", "fp_named", "--file", "a.csv", "--quiet", "--out", "out"]) == 0
    data = tomllib.loads(Path("out/config.toml").read_text())["fingerprint"]["data"]
    assert list(data) == ["a.csv"]


def test_weights_in_a_folder_that_a_setting_names_count_though_python_sees_none(
    project: Project,
) -> None:
    project.write("fp_folder", BENCHMARK.format(file="'weeks.csv'"))
    project.write_numbers(8)
    Path("bert").mkdir()
    Path("bert/model.safetensors").write_bytes(b"weights")
    Path("bert/README.md").write_text("which nobody reads")
    assert cli.main(["run", "fp_folder", "--file", "bert", "--quiet", "--out", "out"]) == 0
    data = tomllib.loads(Path("out/config.toml").read_text())["fingerprint"]["data"]
    assert set(data) == {"weeks.csv", str(Path("bert/model.safetensors"))}


def test_a_benchmark_names_files_that_python_does_not_see(project: Project) -> None:
    text = BENCHMARK.format(file="'weeks.csv'")
    text = text.replace("(Settings, build)", "(Settings, build, files=lambda s: ['big.h5'])")
    project.write("fp_declared", text)
    project.write_numbers(8)
    Path("big.h5").write_bytes(b"\x89HDF")
    assert cli.main(["run", "fp_declared", "--quiet", "--out", "out"]) == 0
    data = tomllib.loads(Path("out/config.toml").read_text())["fingerprint"]["data"]
    assert set(data) == {"weeks.csv", "big.h5"}


def test_a_run_that_was_begun_with_other_code_begins_again(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    command = with_method(project, "fp_begun")
    assert cli.main(command) == 0
    RunFiles(Path("out")).result.unlink()  # as if it had been stopped: its snapshot is there
    with_method(project, "fp_begun", factor=3.0)
    assert cli.main(command) == 0
    assert "fp_begun_helper.py has changed" in capsys.readouterr().err
    again = summary()
    assert cli.main([*command[:-1], "other"]) == 0
    assert json.loads(Path("other/summary.json").read_text()) == again


def test_ours_have_no_fingerprint(project: Project) -> None:
    assert cli.main(["run", "toy", *TOY]) == 0
    assert "fingerprint" not in Path("out/config.toml").read_text()


def test_a_config_with_a_fingerprint_repeats_the_run(project: Project) -> None:
    assert cli.main(with_method(project, "fp_repeated")) == 0
    assert cli.main(["run", "--config", "out/config.toml", "--quiet", "--out", "again"]) == 0
    for name in ("config.toml", "summary.json", "scores.jsonl", "model.safetensors"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes()
    assert resolve(file="out/config.toml").id in json.dumps(
        json.loads(Path("out/checksums.json").read_text())
    )


def declared(project: Project, name: str, paths: list[str]) -> Fingerprint:
    """The fingerprint of a benchmark that says it reads these files, which are written here."""
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(path)
    text = BENCHMARK.format(file="'weeks.csv'")
    project.write(
        name, text.replace("(Settings, build)", f"(Settings, build, files=lambda s: {paths})")
    )
    return Watch(resolve(name)).fingerprint()


def test_many_files_are_told_by_a_pattern(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "MOST_FILES", 3)
    images = [f"images/{name}.png" for name in ("a/1", "a/2", "b/3", "c/4", "d/[5]")]
    before = declared(project, "fp_images", images)
    ((pattern, found),) = before.data.items()
    assert pattern == str(Path("images", "**", "*.png"))
    assert found["files"] == 5
    now = Fingerprint(before.code)
    assert change(before, now) is None
    Path("images/d/[5].png").write_text("another")
    assert change(before, now) == f"{pattern} has changed"


def test_many_files_of_many_kinds_are_told_by_their_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "MOST_FILES", 3)
    data = declared(project, "fp_parts", [f"parts/x.{i}" for i in range(9)]).data
    assert {pattern: entry["files"] for pattern, entry in data.items()} == {
        str(Path("parts", "*")): 9
    }


def test_what_changed_is_said_in_a_few_words() -> None:
    before = Fingerprint({"a.py": "1", "b.py": "2"})
    assert change(None, before) is None
    assert change(before, before) is None
    assert change(before, Fingerprint({"a.py": "1", "b.py": "3"})) == "b.py has changed"
    now = Fingerprint({"a.py": "1", "c.py": "2"})
    assert change(before, now) == "b.py is no longer part of the code and 1 more"
    assert change(Fingerprint(), Fingerprint({"a.py": "1"})) == "a.py is new"


def test_an_optimizer_and_a_boundary_of_the_users_count_too(project: Project) -> None:
    project.write(
        "fp_optim",
        """
        from torch.optim import SGD

        class Mine(SGD):
            pass
        """,
    )
    project.write(
        "fp_boundary", "def forget(optimizer, model, task):\n    optimizer.state.clear()\n"
    )
    flags = {"train.optimizer": "fp_optim:Mine", "optimizer": "fp_boundary:forget"}
    config = resolve("toy", flags=flags)
    assert set(fingerprint.code_now(config).code) == {"fp_optim.py", "fp_boundary.py"}
    config = resolve("toy", flags={"train.optimizer": "torch.optim:SGD"})
    assert set(fingerprint.code_now(config).code) == {
        "torch/optim/__init__.py",
        "torch/optim/sgd.py",
    }
