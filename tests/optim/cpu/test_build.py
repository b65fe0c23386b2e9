"""How the CPU's step is compiled: once, into a folder that is its owner's alone."""

import ctypes
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.optimizers import assert_same, parameters, train, twins
from longtail import ContinualAdam
from longtail.optim.cpu import build as cpp


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if not any(cpp._compilers()):
        pytest.skip("no C++ compiler")
    assert cpp.library() is not None, "there is a compiler, and it does not take the source"


def test_the_default_on_the_cpu_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("a compiler was asked for")

    monkeypatch.setattr("longtail.optim.cpu.launch.library", refuse)
    params = parameters((2,))
    train(ContinualAdam(params), params, range(3), boundary_after=[1])


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpp, "_compilers", lambda: iter(()))
    cpp.library.cache_clear()
    yield
    monkeypatch.undo()
    cpp.library.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_it_warns_once_and_uses_the_for_loop() -> None:
    a = parameters((3,), (2, 2))
    b = twins(a)
    fused, plain = ContinualAdam(a, fused=True), ContinualAdam(b, foreach=False)
    with pytest.warns(RuntimeWarning, match=r"needs a C\+\+ compiler") as caught:
        train(fused, a, range(4), boundary_after=[2])
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = parameters((3,))
        train(ContinualAdam(other, fused=True), other, range(2))
    train(plain, b, range(4), boundary_after=[2])
    assert_same(a, b)


@pytest.mark.slow
def test_flags_a_compiler_does_not_know_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = next(cpp._compilers())
    fussy = tmp_path / "fussy"
    fussy.write_text(
        f'#!/bin/sh\ncase "$*" in *-fopenmp*|*-march*) exit 1;; esac\nexec {real} "$@"\n'
    )
    fussy.chmod(0o755)
    monkeypatch.setenv("CXX", str(fussy))
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    cpp.library.cache_clear()
    try:
        assert cpp.library() is not None
        params = parameters((3,))
        train(ContinualAdam(params, fused=True), params, range(2))
    finally:
        cpp.library.cache_clear()
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 1  # no drafts left behind


@pytest.mark.slow
def test_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    # The file alone: importing torch twice would take longer than the compiler.
    code = (
        "import importlib.util as u; "
        f"spec = u.spec_from_file_location('cpp', {cpp.__file__!r}); "
        "cpp = u.module_from_spec(spec); spec.loader.exec_module(cpp); "
        "assert cpp.library() is not None; print(cpp.cache_folder())"
    )
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LONGTAIL_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [p.communicate(timeout=600)[0].strip() for p in both] == [str(tmp_path / "kernels")] * 2
    assert [p.returncode for p in both] == [0, 0]
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_the_cache_is_in_the_home_folder_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGTAIL_CACHE", "~/cache")
    assert cpp.cache_folder() == tmp_path / "home" / "cache" / "kernels"

    def homeless(path: str) -> str:  # as os.path answers a container's user without a home
        return path

    monkeypatch.setattr("os.path.expanduser", homeless)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / prefix))
    cpp._own_folder.cache_clear()
    assert cpp.cache_folder() == tmp_path / "longtail-"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_the_folder_of_libraries_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir(mode=0o777)
    (tmp_path / "kernels").chmod(0o777)
    assert cpp.cache_folder() == tmp_path / "kernels"
    assert (tmp_path / "kernels").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_a_link_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kernels").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    assert cpp.cache_folder() != tmp_path / "kernels"


def test_a_library_that_is_not_as_it_was_compiled_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGTAIL_CACHE", ".")  # also where the name is no path
    cpp.load(next(cpp._compilers()), ("-O0",))
    folder = cpp.cache_folder()
    assert folder.is_absolute()
    (built,) = folder.glob("*.so")
    built.rename(tmp_path / "built")
    compiler = tmp_path / "quick"  # gives out what the real one has made
    copying = f'for last; do :; done; cp "{tmp_path}/built" "$last"'
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{copying}\n')
    compiler.chmod(0o755)

    def load() -> None:
        cpp.load(str(compiler), ())

    load()
    (path,) = folder.glob("*.so")
    whole = path.read_bytes()
    os.utime(path, ns=(0, 0))
    load()
    assert path.stat().st_mtime_ns == 0, "one that is as it was compiled stays"
    mine, anybodys = 0o600, 0o666
    for content, mode in (
        (whole[: len(whole) // 2], mine),
        (b"planted" + whole, mine),
        (b"", mine),
        (whole, anybodys),
    ):
        path.unlink()  # what is loaded stays as it is
        path.write_bytes(content)
        path.chmod(mode)
        os.utime(path, ns=(0, 0))
        load()
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (whole, mine)
        assert path.stat().st_mtime_ns > 0
    ctypes.CDLL(str(shutil.copy(path, tmp_path / "under_a_name_not_loaded_yet.so")))


@pytest.mark.parametrize("works", [True, False])
def test_what_a_killed_compilation_left_is_removed_a_day_later(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "quick"  # leaves the empty file that it is given
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exit {int(not works)}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    folder = cpp.cache_folder()
    drafts = {"tmpabc12345.so": 25, "tmp_being_written.so": 23}  # hours ago
    others = {"fused_cpu-0123.so": 999, "tmp_notes.txt": 999}
    for name, hours in {**drafts, **others}.items():
        (folder / name).write_bytes(b"")
        then = time.time() - 3600 * hours
        os.utime(folder / name, (then, then))
    (folder / "tmp_folder.so").mkdir()
    (folder / "tmp_link.so").symlink_to(tmp_path / "quick")
    before = {path.name for path in folder.iterdir()}
    if not works:
        with pytest.raises(subprocess.CalledProcessError):
            cpp._compiled(str(compiler), ())
        assert {path.name for path in folder.iterdir()} == before
        return
    made = cpp._compiled(str(compiler), ())
    left = {path.name for path in folder.iterdir()}
    assert left == before - {"tmpabc12345.so"} | {made.name}
    assert compiler.exists()
