"""What a result says about where it came from."""

import importlib.util
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from longtail.support.machine import commit, usable_cores, versions


def test_a_copy_without_history_is_told_its_commit(monkeypatch):
    commit.cache_clear()
    monkeypatch.setenv("LONGTAIL_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab"
    commit.cache_clear()
    monkeypatch.delenv("LONGTAIL_COMMIT")
    assert commit() != "0123456789ab"
    commit.cache_clear()


def test_a_wheel_knows_the_commit_it_was_built_from(tmp_path: Path):
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or importlib.util.find_spec("hatchling") is None:
        pytest.skip("a wheel is built from a checkout, by hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    code = "from longtail.support.machine import versions; print(versions()['commit'])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    environment.pop("LONGTAIL_COMMIT", None)
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    head = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    known = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    assert told.stdout.strip().removesuffix("-dirty").endswith(known)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="nobody says which cores to use")
def test_cores_are_those_that_may_be_used_or_all(monkeypatch):
    assert usable_cores() == sorted(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == [0, 1, 2]


def test_a_result_says_the_versions_it_was_computed_with():
    found = versions()
    assert found["python"] == platform.python_version()
    assert {"longtail", "torch", "numpy"} <= set(found)


def test_nothing_here_waits_for_torch():
    code = "import sys, longtail.support.machine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
