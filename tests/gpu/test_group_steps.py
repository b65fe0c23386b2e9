"""Several parameter groups in one launch: what a launch for each of them gives."""

import itertools

import pytest
import torch
from torch import nn

from longtail import ContinualAdam, ContinualAdamW
from longtail.optim.cuda import step as cuda_step
from longtail.optim.cuda.plan import Plan
from longtail.optim.cuda.step import CudaTogether

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MOMENTS = ("reset", "ema", "task")
SIZES = (3, 8, 520, 1100, 4096)


def make(kind=ContinualAdam, dtype=torch.float32, second=MOMENTS, on_device=False, **settings):
    generator = torch.Generator().manual_seed(0)
    rate = torch.tensor(0.01, device="cuda")
    groups = []
    for i, (first, then) in enumerate(itertools.product(MOMENTS, second)):
        params = [
            nn.Parameter(torch.randn(n, generator=generator, dtype=dtype).cuda()) for n in SIZES
        ]
        lr = rate if on_device else 0.01 * (i + 1)
        group = {"params": params, "first_moment": first, "second_moment": then, "lr": lr}
        groups.append({**group, "beta3": 0.9 * (i % 2)})
    return kind(groups, fused=True, capturable=on_device, **settings)


def drive(optimizer: ContinualAdam, tasks: tuple[int, ...] = (3, 2, 4)) -> None:
    generator = torch.Generator().manual_seed(5)
    for task, steps in enumerate(tasks):
        for step in range(steps):
            for i, group in enumerate(optimizer.param_groups):
                if not isinstance(group["lr"], torch.Tensor):
                    group["lr"] *= 0.9
                for j, p in enumerate(group["params"]):
                    grad = torch.randn(p.shape, generator=generator, dtype=p.dtype).cuda()
                    absent = (task == 1 and (i + j) % 5 == 0) or (task == 2 and i == 3)
                    p.grad = None if absent and step else grad
            optimizer.step()
        optimizer.end_task()


def everything(optimizer: ContinualAdam) -> dict[str, torch.Tensor]:
    found = {}
    for i, group in enumerate(optimizer.param_groups):
        found[f"{i} tasks_seen"] = group["tasks_seen"]
        for j, p in enumerate(group["params"]):
            found |= {f"{i} {j} {k}": x for k, x in optimizer.state[p].items()}
            found[f"{i} {j}"] = p.detach()
    return found


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    launch = Plan._launch

    def noted(self, kernel, *rest):
        seen.append(kernel)
        return launch(self, kernel, *rest)

    monkeypatch.setattr(Plan, "_launch", noted)
    return seen


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("step", "end_task"):
        monkeypatch.setattr(CudaTogether, name, lambda *_: False)


@pytest.mark.parametrize(
    ("kind", "dtype", "settings"),
    [
        (ContinualAdam, torch.float32, {}),
        (ContinualAdamW, torch.float32, {"weight_decay": 0.1}),
        (ContinualAdam, torch.float32, {"weight_decay": 0.1, "maximize": True}),
        (ContinualAdam, torch.float64, {}),
        (ContinualAdamW, torch.bfloat16, {"weight_decay": 0.1}),
    ],
)
def test_one_launch_gives_what_one_for_each_gives(
    kind, dtype, settings, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = make(kind, dtype, **settings)
    drive(together)
    assert launches.count("step_groups_kernel") == 8  # of nine: the first makes the state
    assert launches.count("end_groups_kernel") == 3
    one_by_one(monkeypatch)
    apart = make(kind, dtype, **settings)
    drive(apart)
    want, rtol = everything(apart), 1e-2 if dtype is torch.bfloat16 else 1e-6
    for name, x in everything(together).items():
        torch.testing.assert_close(x, want[name], rtol=rtol, atol=1e-7, msg=name)


def test_policies_that_one_kernel_cannot_take_have_their_own(launches: list[str]) -> None:
    drive(make(second=("task", "task_seen")))
    assert set(launches) == {"step_kernel", "end_task_kernel"}


def test_large_groups_have_a_kernel_for_each_policy(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_step, "FEW", 1000)
    drive(make())
    assert set(launches) == {"step_kernel", "end_task_kernel"}


def test_infinities_are_skipped_by_all_groups() -> None:
    optimizer = make()
    drive(optimizer)
    before = {name: x.clone() for name, x in everything(optimizer).items()}
    optimizer.found_inf = torch.ones((), device="cuda")
    optimizer.grad_scale = torch.full((), 2.0, device="cuda")
    optimizer.step()
    for name, x in everything(optimizer).items():
        assert torch.equal(x, before[name]), name


def test_a_captured_step_reads_the_rate_of_now() -> None:
    eager, captured = make(on_device=True), make(on_device=True)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    for optimizer in (eager, captured):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.full_like(p, 0.5)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            captured.step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        captured.step()
    for _ in range(3):
        eager.step()
    for task in range(3):
        rate = 0.02 * (task + 1)
        for optimizer in (eager, captured):
            optimizer.param_groups[0]["lr"].fill_(rate)
        for _ in range(4):
            eager.step()
            graph.replay()
        eager.end_task()
        captured.end_task()
    want = everything(eager)
    for name, x in everything(captured).items():
        torch.testing.assert_close(x, want[name], rtol=1e-6, atol=1e-7, msg=name)
