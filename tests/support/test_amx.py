"""A CPU that announces AMX where the system forbids it, played by a probe that kills itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longtail.cli import main
from longtail.support import amx

TESTS = Path(__file__).parents[1]
DYING = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
LIVING = (sys.executable, "-c", "")
# For programs of their own: the same fake, before anything else happens.
IN_A_SANDBOX = f"""
import os, sys
from longtail.support import amx
amx.announced, amx.PROBE = lambda: True, {DYING!r}
"""
SMALL = ["run", "toy", "--tasks", "4", "--zero-shot", "1", "--features", "6", "--hidden", "8"]


@pytest.fixture
def sandbox(monkeypatch, tmp_path):
    """Where AMX is announced and deadly, torch not imported and nothing known about it."""
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(amx.VARIABLE, "")  # so that it is put back afterwards
    monkeypatch.delenv(amx.VARIABLE)
    monkeypatch.setattr(amx, "announced", lambda: True)
    monkeypatch.setattr(amx, "PROBE", DYING)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.parametrize(
    ("flags", "has"),
    [("fpu sse avx512_bf16 amx_bf16 amx_tile", True), ("fpu sse avx512_bf16", False), ("", False)],
)
def test_what_the_cpu_announces(flags, has, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: some amx\nflags\t\t: {flags}\nbugs\t\t:\n")
    assert amx.announced(cpuinfo) is has
    assert not amx.announced(tmp_path / "no such file")


@pytest.mark.usefixtures("sandbox")
def test_where_the_probe_dies_amx_is_left_alone():
    text = amx.avoid()
    assert os.environ[amx.VARIABLE] == "AVX512_CORE_BF16"
    assert text is not None
    assert text.endswith("ONEDNN_MAX_CPU_ISA was set to AVX512_CORE_BF16")
    assert "\n" not in text


@pytest.mark.usefixtures("sandbox")
def test_a_shell_that_tells_of_the_death_is_believed(monkeypatch):
    monkeypatch.setattr(amx, "PROBE", ("sh", "-c", "exit 132"))
    assert amx.avoid() is not None


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("probe", [LIVING, ("sh", "-c", "exit 1"), ("no such program",)])
def test_where_it_lives_or_says_nothing_all_stays_as_it_was(probe, monkeypatch):
    monkeypatch.setattr(amx, "PROBE", probe)
    assert amx.avoid() is None
    assert amx.VARIABLE not in os.environ


@pytest.mark.usefixtures("sandbox")
def test_no_amx_no_probe(monkeypatch):
    monkeypatch.setattr(amx, "announced", lambda: False)
    assert amx.avoid() is None
    assert amx.VARIABLE not in os.environ


@pytest.mark.usefixtures("sandbox")
def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv(amx.VARIABLE, "AVX2")
    assert amx.avoid() is None
    assert os.environ[amx.VARIABLE] == "AVX2"


@pytest.mark.usefixtures("sandbox")
def test_it_is_honest_where_torch_came_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", amx)  # any module under that name
    text = amx.avoid()
    assert text is not None
    assert "imported already" in text
    assert "was set" not in text


@pytest.mark.usefixtures("sandbox")
def test_the_answer_is_remembered_and_a_broken_memory_asked_again(monkeypatch, tmp_path):
    assert amx.avoid() is not None
    monkeypatch.setattr(amx, "PROBE", LIVING)
    monkeypatch.delenv(amx.VARIABLE)
    assert amx.avoid() is not None  # of the first probe
    [file] = (tmp_path / "cache").iterdir()
    for broken in ("{", "[]", '{"key": "another machine", "dies": true}'):
        file.write_text(broken)
        monkeypatch.delenv(amx.VARIABLE, raising=False)
        assert amx.avoid() is None, broken


@pytest.mark.usefixtures("sandbox")
def test_what_could_not_be_learned_is_not_remembered(monkeypatch, tmp_path):
    monkeypatch.setattr(amx, "PROBE", ("sh", "-c", "exit 1"))  # as where torch cannot be imported
    assert amx.avoid() is None
    monkeypatch.setattr(amx, "PROBE", DYING)
    assert amx.avoid() is not None


@pytest.mark.usefixtures("sandbox")
def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "file"))
    assert amx.avoid() is not None


@pytest.mark.usefixtures("sandbox")
def test_help_asks_nothing(monkeypatch, capsys):
    monkeypatch.setattr(amx, "avoid", lambda: pytest.fail("a probe for a page of help"))
    assert main(["run", "--help"]) == 0
    assert main(["list", "--help"]) == 0
    assert capsys.readouterr().err == ""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != amx.VARIABLE}
    environment |= {"LONGTAIL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IN_A_SANDBOX + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_a_run_in_bf16_is_made_and_says_what_was_done(tmp_path):
    arguments = [*SMALL, "--cap", "20", "--autocast", "bf16", "--device", "cpu", "--quiet"]
    code = "from longtail.cli import main\nassert 'torch' not in sys.modules\n"
    code += f"code = main({arguments})\nassert 'torch' in sys.modules\n"
    done = python(code + "print(os.environ[amx.VARIABLE])\nsys.exit(code)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "AVX512_CORE_BF16\n"
    [line] = done.stderr.splitlines()
    assert line.startswith("longtail: warning: ")
    assert line.endswith("ONEDNN_MAX_CPU_ISA was set to AVX512_CORE_BF16")
    assert next(tmp_path.glob("runs/*/summary.json")).is_file()


def test_the_tests_themselves_are_kept_alive(tmp_path):
    code = f"import runpy\nfound = runpy.run_path({str(TESTS / 'conftest.py')!r})\n"
    code += "print(os.environ[amx.VARIABLE], 'torch' in sys.modules, bool(found['AMX_TRAP']))"
    done = python(code, tmp_path)
    assert done.stdout == "AVX512_CORE_BF16 False True\n", done.stderr


def test_the_product_of_the_probe_can_be_made():
    exec(amx._PRODUCT, {})  # where conftest.py has left it safe
