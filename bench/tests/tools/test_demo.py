"""From `git clone` to the page of the demo: two commands, each step announced, the finding last."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.made_up_runs import config, write_run
from helpers.scripts import ROOT

WITHOUT_MAKE = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def what_make_does(target: str, venv: Path) -> list[str]:
    """The commands of `make target` where nothing is installed yet."""
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={venv}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@WITHOUT_MAKE
def test_the_demo_installs_what_it_needs_and_no_more(tmp_path: Path) -> None:
    lines = what_make_does("demo", tmp_path / "venv")
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 1
    assert installs[0].endswith("--editable '.[report]' --editable ./bench")
    assert lines[-1].endswith("bench/tools/demo.py")


@WITHOUT_MAKE
@pytest.mark.parametrize("target", ["demo", "test"])
def test_what_takes_long_is_announced(target: str, tmp_path: Path) -> None:
    """A line stands before each step of the set-up, which pip itself does in silence."""
    lines = what_make_does(target, tmp_path / "venv")
    for step in ("-m venv", "pip install"):
        place = next(number for number, line in enumerate(lines) if step in line)
        assert lines[place - 1].startswith('echo "set-up: ')


@WITHOUT_MAKE
def test_tests_and_documentation_share_one_installation(tmp_path: Path) -> None:
    for target in ("test", "docs", "lint"):
        installs = [ln for ln in what_make_does(target, tmp_path / "venv") if "pip install" in ln]
        assert len(installs) == 1
        assert installs[0].endswith("--editable '.[dev]' --editable './bench[all]'")


@pytest.mark.slow
def test_the_demo_ends_with_the_finding_and_the_page(tmp_path: Path) -> None:
    for policy in ("continual", "new"):
        for seed in range(3):
            settings = config(policy=policy, seed=seed)
            write_run(tmp_path / "demo" / "runs" / f"{policy}-{seed}", settings)
    ends = "import sys, pathlib, demo; sys.exit(demo.report(pathlib.Path('demo')))"
    paths = os.pathsep.join([str(ROOT / "bench" / "tools"), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", ends]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *_, finding, page = done.stdout.splitlines()
    assert first.startswith("demo: ")
    table = json.loads((tmp_path / "demo" / "table.json").read_text(encoding="utf-8"))
    assert finding.startswith(table["finding"])
    assert page == f"page: {(tmp_path / 'demo' / 'report.html').resolve()}"
    assert (tmp_path / "demo" / "report.html").is_file()
