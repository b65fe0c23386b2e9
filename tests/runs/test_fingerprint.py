"""A run is what its settings, the user's code and its data files make of it."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from helpers.user_project import BENCHMARK, METHOD, Project
from longtail import cli
from longtail.runs.config import resolve
from longtail.runs.files import RunFiles
from longtail.runs.fingerprint import code_of
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


def recorded() -> dict[str, str]:
    return tomllib.loads(Path("out/config.toml").read_text())["fingerprint"]


def test_an_edited_method_is_computed_anew_and_says_which_file(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    command = with_method(project, "fp_method")
    assert cli.main(command) == 0
    weights, config = Path("out/model.safetensors"), Path("out/config.toml").read_bytes()
    first = weights.read_bytes()
    assert set(recorded()) == {"fp_method.py", "fp_method_helper.py"}
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


def test_a_comment_changes_nothing(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    command = with_method(project, "fp_comment")
    assert cli.main(command) == 0
    first = Path("out/timing.json").read_bytes()
    path = project.folder / "fp_comment_helper.py"
    project.write("fp_comment_helper", f"# one\n\n{path.read_text()}  # and another\n")
    assert cli.main(command) == 0
    assert Path("out/timing.json").read_bytes() == first
    assert capsys.readouterr().err == ""


def test_data_that_were_cut_are_read_again(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.write("fp_weeks", BENCHMARK.format(file="settings.file"))
    path = project.write_numbers(16)
    command = ["run", "fp_weeks", "--quiet", "--out", "out"]
    assert cli.main(command) == 0
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert recorded()["weeks.csv"] == f"{path.stat().st_size} bytes, {sha256}"
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


def test_the_files_of_a_folder_that_a_setting_names_count(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.write("fp_folder", BENCHMARK.format(file="settings.file + '/a.csv'"))
    Path("weeks").mkdir()
    project.write_numbers(8, name="weeks/a.csv")
    project.write_numbers(8, name="weeks/b.csv")
    command = ["run", "fp_folder", "--file", "weeks", "--quiet", "--out", "out"]
    assert cli.main(command) == 0
    assert recorded()["weeks"].startswith("2 files, ")
    assert cli.main(command) == 0
    assert capsys.readouterr().err == ""
    project.write_numbers(8, slope=-2.0, name="weeks/b.csv")
    assert cli.main(command) == 0
    assert "weeks has changed since out was computed" in capsys.readouterr().err


def test_a_benchmark_names_the_files_that_no_setting_does(project: Project) -> None:
    text = BENCHMARK.format(file="'weeks.csv'")
    text = text.replace("(Settings, build)", "(Settings, build, files=lambda s: ['big.h5'])")
    project.write("fp_declared", text.replace('= field(default="weeks.csv"', '= field(default=""'))
    project.write_numbers(8)
    Path("big.h5").write_bytes(b"\x89HDF")
    assert cli.main(["run", "fp_declared", "--quiet", "--out", "out"]) == 0
    assert set(recorded()) == {"fp_declared.py", "big.h5"}


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
    Path("power").mkdir()  # a folder with the name of a word that a setting may be
    assert cli.main(["run", "toy", *TOY]) == 0
    assert "fingerprint" not in Path("out/config.toml").read_text()


def test_a_config_with_a_fingerprint_repeats_the_run(project: Project) -> None:
    assert cli.main(with_method(project, "fp_repeated")) == 0
    assert cli.main(["run", "--config", "out/config.toml", "--quiet", "--out", "again"]) == 0
    for name in ("config.toml", "summary.json", "scores.jsonl", "model.safetensors"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes()
    assert resolve(file="out/config.toml").id in Path("out/checksums.json").read_text()


def code(method: str = "finetune", **flags: str) -> dict[str, str]:
    return code_of(resolve("toy", flags={"method": method, **flags}))


def test_code_is_a_module_and_what_it_imports_of_its_project_executed_or_not(
    project: Project,
) -> None:
    project.write("uc_lib.__init__", "from . import shapes")
    project.write("uc_lib.shapes", "import numpy, torch, longtail.methods")
    project.write("uc_lib.late", "open('executed', 'w')")
    project.write("uc_lib.unused", "")
    project.write("uc_broken", "def (:")
    project.write("uc_folder.below", "")
    project.write(
        "uc_main",
        """
        import json
        from longtail.methods import Finetune
        from uc_lib import shapes as s

        class Mine(Finetune):
            def end_task(self, examples):
                import uc_broken
                from uc_folder import below
                from uc_lib.late import nothing
        """,
    )
    assert set(code("uc_main:Mine")) == {
        "uc_main.py",
        "uc_broken.py",
        "uc_folder/below.py",
        "uc_lib/__init__.py",
        "uc_lib/shapes.py",
        "uc_lib/late.py",
    }
    assert not Path("executed").exists()


def test_the_code_is_what_was_imported_not_what_is_on_the_disk(project: Project) -> None:
    text = "from longtail.methods import Finetune\n\nclass Mine(Finetune):\n    x = {}\n"
    path = project.write("uc_edited", text.format(1))
    before = code("uc_edited:Mine")
    path.write_text(text.format(22))
    assert code("uc_edited:Mine") == before
    project.forget()
    assert code("uc_edited:Mine") != before


def test_an_optimizer_and_a_boundary_of_the_users_count_too(project: Project) -> None:
    project.write("fp_optim", "from torch.optim import SGD\n\nclass Mine(SGD):\n    pass\n")
    project.write(
        "fp_boundary", "def forget(optimizer, model, task):\n    optimizer.state.clear()\n"
    )
    flags = {"optimizer": "fp_optim:Mine", "policy": "fp_boundary:forget"}
    assert set(code(**flags)) == {"fp_optim.py", "fp_boundary.py"}
    assert code(optimizer="torch.optim:SGD") == {}
