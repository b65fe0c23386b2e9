"""A CPU that announces AMX in a sandbox that forbids it: nothing is probed, one variable is set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "ONEDNN_MAX_CPU_ISA"
# `longtail run toy`, on a machine whose /proc/cpuinfo says that there is AMX.
RUN = """
import sys
from pathlib import Path
read = Path.read_text
def cpuinfo(path, *args, **kwargs):
    return "flags: amx_tile" if str(path) == "/proc/cpuinfo" else read(path, *args, **kwargs)
Path.read_text = cpuinfo
from longtail.cli import main
sys.exit(main(["run", "toy", "--tasks", "2", "--zero-shot", "0", "--quiet", "--out", "mine"]))
"""
CONFTEST = """
import os, runpy, sys
runpy.run_path("conftest.py")
assert "torch" not in sys.modules, "too late: torch has been imported"
print(os.environ["ONEDNN_MAX_CPU_ISA"])
"""
# Every Python starts with it: a soak's worker says what it was given, and is done.
SITE = """
import os, sys
if "--worker" in sys.orig_argv:
    os.write(1, (os.environ.get("ONEDNN_MAX_CPU_ISA", "nothing") + chr(10)).encode())
    os._exit(0)
"""


def test_a_run_starts_no_torch_of_the_current_folder_and_caches_no_answer(tmp_path):
    work, cache = tmp_path / "work", tmp_path / "cache"
    work.mkdir()
    (work / "torch.py").write_text("open('torch.py was run', 'w')\n")
    (tmp_path / "run.py").write_text(RUN)  # its folder is the first on the path, not the current
    environment = {**os.environ, "LONGTAIL_CACHE": str(cache)}
    environment.pop(VARIABLE, None)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in work.iterdir()) == ["mine", "torch.py"]
    assert list(cache.rglob("amx-*")) == []


@pytest.mark.parametrize(("of_the_user", "seen"), [(None, "AVX512_CORE_BF16"), ("AVX2", "AVX2")])
@pytest.mark.skipif(os.name == "nt", reason="neither make nor a shell")
@pytest.mark.parametrize("start", ["make", "ci", "pytest"])
def test_the_variable_is_set_unless_the_user_has_set_it(start, of_the_user, seen, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if of_the_user:
        environment[VARIABLE] = of_the_user
    if start == "make":
        ours = tmp_path / "ours.mk"
        ours.write_text(f"include Makefile\nshow:\n\t@echo $${VARIABLE}\n")
        command = ["make", "--silent", "--file", str(ours), "show"]
    elif start == "ci":  # what it calls is another `make`, which says what it is given
        make = tmp_path / "make"
        make.write_text(f'#!/bin/sh\necho "${VARIABLE}"\n')
        make.chmod(0o755)
        environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
        command = [str(ROOT / ".ci" / "run")]
    else:
        command = [sys.executable, "-c", CONFTEST]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == {seen}, done.stderr


@pytest.mark.parametrize(("of_the_user", "seen"), [(None, "AVX512_CORE_BF16"), ("AVX2", "AVX2")])
@pytest.mark.skipif(os.name == "nt", reason="the soak kills by signals")
def test_workers_of_a_soak_have_it_too(of_the_user, seen, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["PYTHONPATH"] = str(tmp_path)
    if of_the_user:
        environment[VARIABLE] = of_the_user
    command = [sys.executable, str(ROOT / "tests" / "fuzz" / "kill_soak.py"), "--jobs", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count(seen) == 2
    assert "nothing" not in done.stdout
