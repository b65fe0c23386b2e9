"""The compiled CPU step: when it is used, when it gives way, and that it is never fooled."""

import copy
import ctypes
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from helpers.optimizers import assert_same, parameters, set_gradients, states, train, twins
from longtail import ContinualAdam, ContinualAdamW
from longtail.optim.cpu import build as cpp

TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if not any(cpp._compilers()):
        pytest.skip("no C++ compiler")
    assert cpp.library() is not None, "there is a compiler, and it does not take the source"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The outcome of every attempt at the short way."""
    return outcomes_of(CpuKernel, "step_again", monkeypatch)


def outcomes_of(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What a method returns from now on, call by call."""
    outcomes: list[bool] = []
    original = getattr(kind, name)

    def counting(*args: Any) -> bool:
        outcomes.append(original(*args))
        return outcomes[-1]

    monkeypatch.setattr(kind, name, counting)
    return outcomes


def test_steps_after_the_first_take_the_short_way(counted: list[bool]) -> None:
    params = parameters((3,), (2, 2))
    train(ContinualAdam(params, fused=True), params, range(6), boundary_after=[3])
    assert counted == [True] * 5


def disturb_data(optimizer: Any, params: list[Parameter]) -> None:
    params[0].data = params[0].data.clone()


def disturb_state_tensor(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"] + 1


def disturb_state_memory(optimizer: Any, params: list[Parameter]) -> None:
    state = optimizer.state[params[0]]
    state["past_exp_avg_sq"].data = state["past_exp_avg_sq"].data + 1


def disturb_state_dict(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state[params[0]] = {k: v + 1 for k, v in optimizer.state[params[0]].items()}


def clear_state(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state.clear()


def load(optimizer: Any, params: list[Parameter]) -> None:
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["exp_avg"] += 1
    optimizer.load_state_dict(saved)


def freeze(optimizer: Any, params: list[Parameter]) -> None:
    params[1].requires_grad_(False)


def change_settings(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.param_groups[0].update(lr=0.5, maximize=True, first_moment="task", betas=(0.5, 0.5))


def switch_off(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.param_groups[0]["fused"] = False


def add_group(optimizer: Any, params: list[Parameter]) -> None:
    params.extend(parameters((3,), (2,), (5,))[2:])
    optimizer.add_param_group({"params": params[2:]})


@pytest.mark.parametrize(
    "disturb",
    [
        disturb_data,
        disturb_state_tensor,
        disturb_state_memory,
        disturb_state_dict,
        clear_state,
        load,
        freeze,
        change_settings,
        switch_off,
        add_group,
    ],
)
def test_whatever_changes_between_steps_is_noticed(disturb: Any) -> None:
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        params = parameters((3,), (2, 2))
        optimizer = ContinualAdam(params, **kwargs)
        train(optimizer, params, range(4), boundary_after=[1])
        disturb(optimizer, params)
        for seed in range(4, 9):
            set_gradients(seed, params)
            for p in params:
                p.grad = p.grad if p.requires_grad else None
            optimizer.step()
            if seed == 6:
                optimizer.end_task()
        results.append([*params, *states(optimizer, params)])
    assert_same(results[0], results[1], **TOLERANCE)


POLICIES = [
    {"first_moment": "task", "second_moment": "task", "beta3": 0.0},
    {"second_moment": "reset", "lr": 0.3, "betas": (0.8, 0.9)},
    {"first_moment": "ema", "second_moment": "ema", "weight_decay": 0.1, "maximize": True},
]


def grouped(params: list[Parameter], **kwargs: Any) -> ContinualAdam:
    groups = [{"params": params[i::3], **policy} for i, policy in enumerate(POLICIES)]
    return ContinualAdam(groups, **kwargs)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The outcome of every attempt to step all groups in one call."""
    return outcomes_of(CpuTogether, "step", monkeypatch)


def test_groups_are_stepped_in_one_call_each_by_its_own_settings(together: list[bool]) -> None:
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        params = parameters((3,), (2, 2), (5,), (4,), (1,), (6,), (2,))
        optimizer = grouped(params, **kwargs)
        train(optimizer, params, range(8), boundary_after=[2, 3])
        results.append([*params, *states(optimizer, params)])
        assert [int(group["tasks_seen"]) for group in optimizer.param_groups] == [2, 2, 2]
    assert_same(results[0], results[1], **TOLERANCE)
    assert together == [True] * 7


@pytest.mark.parametrize(
    "disturb", [disturb_data, disturb_state_tensor, disturb_state_memory, clear_state, load, freeze]
)
def test_whatever_changes_between_steps_of_several_groups_is_noticed(disturb: Any) -> None:
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        params = parameters((3,), (2, 2), (5,), (4,))
        optimizer = grouped(params, **kwargs)
        train(optimizer, params, range(4), boundary_after=[1])
        disturb(optimizer, params)
        for seed in range(4, 9):
            set_gradients(seed, params)
            for p in params:
                p.grad = p.grad if p.requires_grad else None
            optimizer.step()
            if seed == 6:
                optimizer.end_task()
        results.append([*params, *states(optimizer, params)])
    assert_same(results[0], results[1], **TOLERANCE)


def test_groups_that_do_not_fit_one_call_are_stepped_one_by_one(together: list[bool]) -> None:
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        params = [*parameters((3,), (2, 2)), Parameter(torch.ones(4).float())]
        optimizer = grouped(params, **kwargs)
        train(optimizer, params, range(10), boundary_after=[2])
        results.append(params)
    assert_same(results[0][:2], results[1][:2], **TOLERANCE)
    assert_same(results[0][2:], results[1][2:], rtol=1e-5, atol=1e-6)
    assert not any(together)


def odd_layouts() -> list[Parameter]:
    base = torch.arange(48, dtype=torch.float64).sin()
    return [
        Parameter(base.reshape(1, 2, 4, 6).clone().contiguous(memory_format=torch.channels_last)),
        Parameter(base.reshape(6, 8).t().clone(memory_format=torch.preserve_format)),
        Parameter(base.reshape(6, 8).clone()[:, ::2]),  # gaps: the for-loop's
        Parameter(base[:1].clone().reshape(())),
        Parameter(base[:0].clone()),
        Parameter(base.float().clone()),  # another dtype in the same group
        Parameter(base.bfloat16().clone()),
        Parameter(torch.complex(base[:4], base[4:8])),
    ]


def test_odd_layouts_and_mixed_dtypes_match_the_for_loop() -> None:
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        params = odd_layouts()
        optimizer = ContinualAdamW(params, lr=0.1, first_moment="task", **kwargs)
        for seed in range(6):
            generator = torch.Generator().manual_seed(seed)
            for p in params:  # contiguous gradients, unlike some of the parameters
                p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            optimizer.step()
            if seed in (2, 3):
                optimizer.end_task()
        results.append(params)
    assert results[0][2].stride() == (8, 2)
    for i, tolerance in enumerate([TOLERANCE] * 5 + [{"rtol": 1e-5, "atol": 1e-6}] * 2):
        assert_same([results[0][i]], [results[1][i]], **tolerance)
    assert_same([results[0][7]], [results[1][7]], **TOLERANCE)


@pytest.mark.parametrize("odd", [torch._neg_view, torch.Tensor.bfloat16], ids=["negated", "half"])
def test_gradients_whose_memory_is_not_their_value_are_copied(odd: Any) -> None:
    if odd is torch.Tensor.bfloat16 and not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("before torch 2.10 a gradient has the parameter's dtype")
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        p = Parameter(torch.ones(4))
        optimizer = ContinualAdam([p], lr=0.1, **kwargs)
        for i in range(6):
            grad = torch.full((4,), 1.0 + i)
            p.grad = None
            p.grad_dtype = None  # any
            p.grad = odd(grad) if i % 3 == 0 else grad  # the long way first, then the short one
            optimizer.step()
        results.append([p, *states(optimizer, [p])])
    assert_same(results[0], results[1], rtol=1e-5, atol=1e-6)


class Labelled(torch.Tensor):
    pass


def test_tensor_subclasses_take_the_for_loop() -> None:
    value = torch.randn(5, dtype=torch.float64)
    results = []
    for kwargs in ({"fused": True}, {"foreach": False}):
        p = Parameter(value.clone().as_subclass(Labelled))
        assert type(p) is not Parameter
        optimizer = ContinualAdam([p], **kwargs)
        train(optimizer, [p], range(3), boundary_after=[1])
        results.append([p.detach().as_subclass(torch.Tensor)])
    assert_same(*results)


def test_threads_share_the_work_and_agree() -> None:
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            params = parameters((300, 301), (7,), (50_001,), dtype=torch.float32)
            optimizer = ContinualAdamW(params, fused=True)
            train(optimizer, params, range(3), boundary_after=[1])
            results.append([*params, *states(optimizer, params)])
    finally:
        torch.set_num_threads(threads)
    assert_same(*results)


def test_autograd_notices_a_step_between_forward_and_backward() -> None:
    p = Parameter(torch.ones(3))
    optimizer = ContinualAdam([p], fused=True)
    for _ in range(3):  # the long way and the short way
        loss = p.square().sum()
        p.grad = torch.ones(3)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_infinite_parameters_stay_what_they_are() -> None:
    """A mask of -inf kept as a parameter must not turn into NaN."""
    p = Parameter(torch.tensor([float("-inf"), 1.0]))
    optimizer = ContinualAdam([p], fused=True)
    p.grad = torch.zeros(2)
    optimizer.step()
    optimizer.step()
    assert p.tolist() == [float("-inf"), 1.0]


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
