"""The files behind a user's module: all of the project that it imports, and nothing else."""

from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path

import pytest
import torch

from helpers.user_project import Project
from longtail.support.user_code import owner, project_files, sources


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def test_a_module_stands_for_what_it_imports_of_its_project(project: Project) -> None:
    project.write("uc_lib.__init__", "from . import shapes")
    project.write("uc_lib.shapes", "import numpy, torch, longtail.methods")
    project.write("uc_lib.late", "")
    project.write("uc_lib.unused", "")
    project.write("uc_alone", "import json")
    project.write("uc_spare", "")
    project.write(
        "uc_main",
        """
        import uc_alone
        from uc_lib import shapes as s

        def later():
            from uc_lib.late import nothing
            __import__("importlib").import_module("uc_spare")
        """,
    )
    found = project_files("uc_main")
    assert set(found) == {
        "uc_main.py",
        "uc_alone.py",
        "uc_spare.py",
        "uc_lib/__init__.py",
        "uc_lib/shapes.py",
        "uc_lib/late.py",
    }
    assert found["uc_alone.py"] == project.folder / "uc_alone.py"


def test_nothing_is_executed_to_find_out(project: Project) -> None:
    project.write("uc_careful", "def f():\n    import uc_bang\n")
    project.write("uc_bang", "open('executed', 'w')")
    assert set(project_files("uc_careful")) == {"uc_careful.py", "uc_bang.py"}
    assert not (project.folder / "executed").exists()


def test_whose_a_file_is(tmp_path: Path) -> None:
    import json

    import numpy

    import longtail

    assert owner(str(longtail.__file__)) == "ours"
    assert owner(str(json.__file__)) == owner(str(numpy.__file__)) == owner("<stdin>") == "other"
    assert owner(str(tmp_path / "mine.py")) == "user"


def test_an_installed_package_is_known_by_its_version(project: Project) -> None:
    assert sources("torch.optim") == {
        "torch/optim/__init__.py": (
            Path(torch.optim.__file__),
            f"version {metadata.version('torch')}",
        )
    }
    project.write("site-packages.uc_installed", "import uc_other")
    project.write("site-packages.uc_other", "")
    project.monkeypatch.syspath_prepend(project.folder / "site-packages")
    ((name, source),) = sources("uc_installed").items()
    assert (name, len(source.mark)) == ("uc_installed.py", 64)
    assert sources("longtail.methods") == {}


def test_the_code_is_what_was_imported_not_what_is_on_the_disk(project: Project) -> None:
    path = project.write("uc_edited", "x = 1")
    importlib.import_module("uc_edited")
    before = sources("uc_edited")["uc_edited.py"].mark
    path.write_text("x = 22")
    assert sources("uc_edited")["uc_edited.py"].mark == before
    project.forget()
    importlib.import_module("uc_edited")
    assert sources("uc_edited")["uc_edited.py"].mark != before


def test_a_file_that_is_no_python_is_a_leaf(project: Project) -> None:
    project.write("uc_broken", "import uc_syntax")
    project.write("uc_syntax", "def (:")
    assert set(project_files("uc_broken")) == {"uc_broken.py", "uc_syntax.py"}
    assert project_files("longtail.methods") == {}
