"""The parts of the CUDA step that need no GPU: layouts, scalars, launches."""

import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from longtail import ContinualAdam
from longtail.optim.cuda import launch
from longtail.optim.cuda.launch import Launcher, free_for_dead_graphs, keep_for_graph
from longtail.optim.cuda.plan import (
    end_policy,
    end_rules,
    fits,
    flat,
    same_layout,
    step_floats,
    step_policy,
    write_back,
)
from longtail.optim.cuda.step import CudaKernel
from longtail.optim.state import Row


def of(param: Tensor) -> Row:
    moments = [torch.zeros_like(param) for _ in range(3)]
    return Row(param, *moments, None, torch.zeros(()), torch.zeros(()))


def test_same_layout() -> None:
    square = torch.zeros(4, 4)
    image = torch.zeros(2, 3, 4, 4)
    assert same_layout(square, torch.zeros(4, 4))
    assert not same_layout(square, square.t())
    assert same_layout(square.t(), torch.ones(4, 4).t())
    last = image.to(memory_format=torch.channels_last)
    assert same_layout(last, last.clone(memory_format=torch.preserve_format))
    assert not same_layout(last, image)
    one = torch.zeros(5, 3, 1, 1)
    assert same_layout(one, one.to(memory_format=torch.channels_last))
    assert not same_layout(square[:, :2], square[:, :2])  # gaps
    assert not same_layout(torch.zeros(1).expand(4), torch.zeros(1).expand(4))  # overlaps


def test_what_fits_is_taken_as_it_is() -> None:
    tensors = of(torch.randn(3, 4))
    used, grad = flat(tensors, given := torch.randn(3, 4))
    assert used is tensors
    assert grad is given


@pytest.mark.parametrize(
    "tensors",
    [
        of(torch.randn(4, 6)[:, 1:3]),
        of(torch.randn(5))._replace(exp_avg_sq=torch.zeros(5, dtype=torch.float16)),
    ],
    ids=["a slice", "mixed state"],
)
def test_what_does_not_fit_is_copied_and_written_back(tensors: Row) -> None:
    assert not fits(tensors)
    used, grad = flat(
        tensors, torch.randn_like(tensors.exp_avg, dtype=torch.float32).expand_as(tensors.exp_avg)
    )
    assert fits(used)
    assert same_layout(used.exp_avg, grad)
    assert used.param is not None
    assert tensors.param is not None
    with torch.no_grad():
        used.param.fill_(2.0)
    used.exp_avg.fill_(3.0)
    used.step.fill_(4.0)
    write_back(tensors, used)
    assert (tensors.param == 2.0).all()
    assert (tensors.exp_avg == 3.0).all()
    assert tensors.step == 4.0


def test_a_gradient_of_another_layout_is_copied() -> None:
    _, grad = flat(of(torch.zeros(3, 3)), given := torch.randn(3, 3).t())
    assert grad.is_contiguous()
    assert torch.equal(grad, given)


def test_floats_are_good_for_float64() -> None:
    floats = step_floats(1e-3, 0.1, 1e-8, (0.9, 0.999), 0.0)
    assert all(x == torch.tensor(x, dtype=torch.float32).item() for x in floats[::2])
    sums = [a + b for a, b in zip(floats[::2], floats[1::2], strict=True)]
    wanted = [1e-3, 0.1, 1e-8, 0.9, 1 - 0.9, 0.999, 1 - 0.999, math.log2(0.9), math.log2(0.999)]
    assert sums[:-1] == pytest.approx(wanted, rel=1e-15)
    assert 2.0 ** sums[-1] == 0.0


def test_policies() -> None:
    assert step_policy("reset", "task", 0.1, True, False) == (False, True, False, False, 2, False)
    assert step_policy("task", "ema", 0.1, False, True) == (True, False, False, True, 1, True)
    assert step_policy("ema", "reset", 0.0, True, False) == (False, False, False, False, 0, False)
    assert step_policy("reset", "task_seen", 0.0, True, False) == (
        False,
        True,
        True,
        False,
        0,
        False,
    )
    assert end_policy("reset", "task_seen") == end_policy("reset", "task")
    assert end_policy("reset", "task") == (False, True, True, True)
    assert end_policy("ema", "ema") == (False, False, False, False)
    assert end_rules("reset", "task_seen") == end_rules("reset", "task") == (1.0, 2.0)
    assert end_rules("task", "ema") == (2.0, 0.0)


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


def test_the_second_launch_goes_to_the_compiled_kernel() -> None:
    seen = []
    kernel = FakeKernel(compiled(lambda *arguments: seen.append(arguments)))
    launch = Launcher(7, 4, stream=5)
    x = torch.zeros(3)
    assert launch(kernel, "v", [x, None], [1.0], [True]) is None
    again = launch(kernel, "v", [x, None], [1.0], [True])
    assert again is not None
    again.call(*again.arguments)
    assert kernel.public == 1
    assert seen[0] == seen[1]
    assert seen[0][:4] == (7, 1, 1, 5)
    assert seen[0][-4:] == (x.data_ptr(), None, 1.0, True)


def test_another_variant_is_compiled_first() -> None:
    kernel = FakeKernel(compiled(lambda *_: None))
    launch = Launcher(7, 4, stream=5)
    assert launch(kernel, "v", [], [], []) is None
    assert launch(kernel, "w", [], [], []) is None
    assert kernel.public == 2


def refuse(*_: Any) -> None:
    raise TypeError("function takes exactly 3 arguments")


@pytest.mark.parametrize("what", [compiled(refuse), SimpleNamespace()])
def test_an_unknown_triton_is_launched_the_public_way(what: Any) -> None:
    kernel = FakeKernel(what)
    launch = Launcher(7, 4, stream=5)
    for _ in range(3):
        launch(kernel, "v", [torch.zeros(1)], [1.0], [])
    assert kernel.public == 3


def test_a_resized_parameter_is_noticed_before_a_kernel_is_planned_for_it() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = ContinualAdam([p])
    p.grad = torch.ones(3)
    optimizer.step()
    p.grad = None
    p.data = torch.ones(5)
    p.grad = torch.ones(5)
    with pytest.raises(ValueError, match=r"of shape \(3,\) for a parameter of shape \(5,\)"):
        CudaKernel().step_again(optimizer, optimizer.param_groups[0])


def test_what_a_graph_reads_is_freed_when_cuda_says_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(launch, "_reads", {})
    monkeypatch.setattr(launch, "_post_with_graph", lambda *told: ends.append(told))
    kept = []
    for _ in range(3):
        keep_for_graph([table := torch.zeros(3), None])
        kept.append(weakref.ref(table))
        del table
    free_for_dead_graphs()
    assert all(table() is not None for table in kept)
    gone, post = ends[1]
    post(gone)
    free_for_dead_graphs()
    assert [table() is None for table in kept] == [False, True, False]
