"""The parts of the CUDA step that need no GPU: what it takes, its tables, scalars and launches."""

import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.optimizers import parameters, set_gradients
from longtail import ContinualAdamW
from longtail.optim import plan
from longtail.optim.cuda import launch
from longtail.optim.past import Draw
from longtail.optim.plan import Member
from longtail.optim.state import Row

BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
import torch
from longtail import ContinualAdamW
from longtail.optim.cuda import launch
p = torch.nn.Parameter(torch.ones(3))
opt = ContinualAdamW([p])
p.grad = torch.ones(3)
opt.step()
opt.end_task()
assert not launch.triton_works()
assert "triton" not in sys.modules
"""


def test_it_imports_and_stays_out_of_the_way_without_triton() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Tables are on the CPU, and launches are noted: kernel, floats, flags."""
    seen: list[tuple[str, Any, Any]] = []

    def note(self: Any, name: str, pointers: Any, floats: Any, dtypes: Any, flags: Any) -> None:
        seen.append((name, floats, flags))

    monkeypatch.setattr(launch._Tables, "launch", note)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 5, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return seen


def launch_of(groups: list[dict[str, Any]], captured: Any = None) -> launch.CudaLaunch:
    """One for the parameters of groups, as if they were on a GPU."""
    optimizer = ContinualAdamW(groups)
    members = []
    for number, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            p.grad = torch.ones_like(p)
        optimizer._init_group(group, *([] for _ in range(8)))
        for p in group["params"]:
            members.append(Member(Row.of(p, optimizer.state[p], group), number, Draw(7, 3)))
    kind = launch.Kind(torch.device("cpu"), *[torch.float32] * 3)
    captured = [] if captured is None else captured
    return launch.CudaLaunch(kind, members, optimizer.param_groups, captured)


def settings(**own: Any) -> dict[str, Any]:
    return {**ContinualAdamW([torch.zeros(1)]).defaults, **own}


def test_a_row_has_addresses_size_random_bits_and_group() -> None:
    a, b = parameters((3,), (2, 2), dtype=torch.float32)
    made = launch_of([{"params": [a], "first_moment": "task"}, {"params": [b]}])
    rows = made._rows.tolist()
    assert [row[0] for row in rows] == [a.data_ptr(), b.data_ptr()]
    assert rows[0][4] != 0 == rows[1][4]  # an average of first moments
    assert [row[7:] for row in rows] == [[3, 7, 3, 0], [4, 7, 3, 1]]


def test_every_element_has_a_program() -> None:
    chunks = launch._chunks([0, 1, 1024, 1025], 512).tolist()
    assert chunks == [[0, 0], [1, 0], [2, 0], [2, 1], [3, 0], [3, 1], [3, 2]]


def test_flags_say_what_any_group_needs(no_gpu_needed: list[Any]) -> None:
    params = parameters((3,), (3,), dtype=torch.float32)
    groups = [{"params": [p]} for p in params]
    grads = [torch.ones_like(p) for p in params]

    def flags(first: dict[str, Any], second: dict[str, Any], decoupled: bool = True) -> Any:
        own = [settings(**first), settings(**second)]
        made = launch_of([{**g, **o} for g, o in zip(groups, (first, second), strict=True)])
        made.step(grads, own, decoupled, None, None)
        return no_gpu_needed[-1][2][:6]

    assert flags({"weight_decay": 0.0}, {"weight_decay": 0.0}) == (
        *(False, True, False, False, 0, 0),
    )
    decayed = {"weight_decay": 0.1, "maximize": True}
    assert flags(decayed, {"weight_decay": 0.0}) == (False, True, False, False, 2, 2)
    assert flags(decayed, decayed, decoupled=False) == (False, True, False, False, 1, 1)
    odd = {"first_moment": "task", "second_moment": "task_seen"}
    assert flags(odd, {"second_moment": "ema"})[:4] == (True, True, True, True)


def test_scalars_of_one_group_are_arguments_and_of_several_a_table(
    no_gpu_needed: list[Any],
) -> None:
    params = parameters((3,), (3,), dtype=torch.float32)
    grads = [torch.ones_like(p) for p in params]
    one = launch_of([{"params": params}])
    one.step(grads, [settings(lr=0.5)], True, None, None)
    assert no_gpu_needed[-1][1][0] == 0.5
    two = launch_of([{"params": [p]} for p in params])
    two.step(grads, [settings(lr=0.5), settings(lr=0.25, maximize=True)], True, None, None)
    assert not any(no_gpu_needed[-1][1])
    (tables,) = two._tables.values()
    rows = tables._changing["settings"][1]
    assert rows.shape == (2, 25)
    assert rows[:, 0].tolist() == [0.5, 0.25]
    assert rows[:, 20:].tolist() == [[0, 1, 0, 0, 0], [0, 1, 0, 0, 1]]
    two.end_task([settings(), settings(first_moment="ema")])
    assert tables._changing["ends"][1].shape == (2, 8)


def test_what_a_captured_graph_reads_is_the_optimizers(
    no_gpu_needed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(launch, "_upload", lambda x, device: x.clone())
    params = parameters((3,), (3,), dtype=torch.float32)
    grads = [torch.ones_like(p) for p in params]
    captured: list[torch.Tensor] = []
    made = launch_of([{"params": [p]} for p in params], captured)
    scale = torch.tensor(2.0)
    for _ in range(2):
        made.step(grads, [settings(), settings()], True, scale, None)
    (tables,) = made._tables.values()
    assert not tables._changing  # a graph's tables are never written again
    addresses = [g.data_ptr() for g in grads]
    own = [x for x in captured if x.tolist() == addresses]
    assert len({x.data_ptr() for x in own}) == 2
    assert any(x is scale for x in captured)
    assert all(any(x is table for x in captured) for table in tables.fixed)


def test_tables_belong_to_a_stream_and_only_a_few_are_kept(
    no_gpu_needed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (p,) = parameters((3,), dtype=torch.float32)
    made = launch_of([{"params": [p]}])
    for stream in range(9):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _, at=stream: at)
        made.step([torch.ones(3)], [settings()], True, None, None)
    assert list(made._tables) == [5, 6, 7, 8]


def test_floats_are_good_for_float64() -> None:
    floats = launch._step_floats(1e-3, 0.1, 1e-8, 0.9, 0.999, 0.0)
    assert all(x == torch.tensor(x, dtype=torch.float32).item() for x in floats[::2])
    sums = [a + b for a, b in zip(floats[::2], floats[1::2], strict=True)]
    wanted = [1e-3, 0.1, 1e-8, 0.9, 1 - 0.9, 0.999, 1 - 0.999, math.log2(0.9), math.log2(0.999)]
    assert sums[:-1] == pytest.approx(wanted, rel=1e-15)
    assert 2.0 ** sums[-1] == 0.0


def test_parameters_that_no_kernel_takes_are_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "triton_works", lambda: True)
    plain, odd = parameters((4, 6), (4, 6), dtype=torch.float32)
    gaps = torch.nn.Parameter(odd.detach()[:, ::2])
    for p, taken in ((plain, True), (gaps, False)):
        optimizer = ContinualAdamW([p])
        set_gradients(0, [p])
        optimizer.step()
        row = Row.of(p, optimizer.state[p], optimizer.param_groups[0])
        assert (launch.CudaLaunch.kind_of(row) is not None) is taken
        assert (plan.launch_for(row) is not None) is taken


class FakeKernel:
    """Stands for a Triton kernel: counts public launches, hands out what it "compiled"."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.public = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int) -> Any:
            self.public += 1
            return self.compiled

        return launch


def compiled(run: Any) -> Any:
    return SimpleNamespace(run=run, function=1, packed_metadata=(4, 1, 0))


@pytest.fixture
def tables(no_gpu_needed: list[Any]) -> launch._Tables:
    rows, chunks = torch.zeros(1, 11, dtype=torch.int64), torch.zeros(7, 2, dtype=torch.int32)
    return launch._Tables(rows, chunks, torch.device("cpu"), 5, 1)


def test_the_second_launch_goes_to_the_compiled_kernel(tables: launch._Tables) -> None:
    seen = []
    kernel = FakeKernel(compiled(lambda *arguments: seen.append(arguments)))
    x = torch.zeros(3)
    assert tables._launch(kernel, ("v",), [x, None], (1.0, True)) is None
    again = tables._launch(kernel, ("v",), [x, None], (1.0, True))
    assert again is not None
    again()
    assert kernel.public == 1
    assert seen[0] == seen[1]
    assert seen[0][:4] == (7, 1, 1, 5)
    assert seen[0][-4:] == (x.data_ptr(), None, 1.0, True)


def test_another_variant_is_compiled_first(tables: launch._Tables) -> None:
    kernel = FakeKernel(compiled(lambda *_: None))
    assert tables._launch(kernel, ("v",), [], ()) is None
    assert tables._launch(kernel, ("w",), [], ()) is None
    assert kernel.public == 2


def refuse(*_: Any) -> None:
    raise TypeError("function takes exactly 3 arguments")


@pytest.mark.parametrize("what", [compiled(refuse), SimpleNamespace()])
def test_an_unknown_triton_is_launched_the_public_way(what: Any, tables: launch._Tables) -> None:
    kernel = FakeKernel(what)
    for _ in range(3):
        assert tables._launch(kernel, ("v",), [torch.zeros(1)], (1.0,)) is None
    assert kernel.public == 3
