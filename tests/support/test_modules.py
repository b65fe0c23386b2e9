from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from longtail.cli import main
from longtail.support.modules import exists, import_named

STARTED = "import sys; from longtail.cli import main; sys.exit(main({arguments}))"


def longtail(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As the installed command does it: without the current folder on the path (-P)."""
    code = STARTED.format(arguments=list(arguments))
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_module_in_the_current_folder_stands_in_for_no_other(tmp_path: Path):
    for name in ("numpy", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\nraise SystemExit('broken')")
    done = longtail(tmp_path, "list", "toy")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "executed").exists()


def test_a_users_module_in_the_current_folder_is_found_where_it_is_named(tmp_path: Path):
    text = "from longtail.methods import Finetune\n\nclass Mine(Finetune): pass\n"
    (tmp_path / "my_method.py").write_text(text)
    done = longtail(tmp_path, "run", "toy", "--method", "my_method:Mine", "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", [".x", "", "a..b", "a/b", "1a"])
def test_what_is_no_name_of_a_module_is_never_imported(path: str):
    with pytest.raises(ImportError, match="not the dotted path"):
        import_named(path)
    assert not exists(path)


@pytest.mark.parametrize("arguments", [(".x",), ("toy", "--method", ".x:Y")])
def test_such_a_name_on_the_command_line_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
