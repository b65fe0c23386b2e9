"""ContinualAdam(W) on a CUDA device: the implementation chosen, graphs, loading, no waiting."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch.nn import Parameter

from longtail import ContinualAdam, ContinualAdamW

pytestmark = pytest.mark.gpu

SHAPES = ((33, 17), (300,), (), (5, 1, 3))
IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable for-loop": {"foreach": False, "capturable": True},
    "capturable foreach": {"foreach": True, "capturable": True},
    "capturable fused": {"fused": True, "capturable": True},
}


@pytest.fixture(params=IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def implementation(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def make(device: str = "cuda", dtype: torch.dtype = torch.float32) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(s, generator=generator) for s in SHAPES]
    return [Parameter(x.to(device, dtype)) for x in values]


LATE = 9  # the first seed whose gradients reach the first row of every parameter


def fill(params: list[Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        grad = torch.randn(p.shape, generator=generator).to(p)
        if seed < LATE and grad.dim():
            grad[0] = 0.0  # such as the embedding of a word that comes up late
        if p.grad is None:
            p.grad = grad
        else:
            p.grad.copy_(grad)


def train(
    optimizer: Any,
    params: list[Parameter],
    seeds: range,
    ends: tuple[int, ...] = (),
    step: Callable[[], Any] | None = None,
) -> None:
    for seed in seeds:
        fill(params, seed)
        (step or optimizer.step)()
        if seed in ends:
            optimizer.end_task()


def assert_close(a: list[Parameter], b: list[Parameter]) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.detach().cpu(), y.detach().cpu(), rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore:.*capturable")
@pytest.mark.parametrize(
    "policy", [("reset", "task"), ("reset", "task_seen"), ("task", "ema"), ("ema", "reset")]
)
def test_the_device_gives_what_the_cpu_gives(
    implementation: dict[str, Any], policy: tuple[str, str]
) -> None:
    kinds = {"first_moment": policy[0], "second_moment": policy[1]}
    cpu, cuda = make("cpu"), make()
    expected = ContinualAdamW(cpu, lr=0.01, **kinds)
    optimizer = ContinualAdamW(cuda, lr=0.01, **kinds, **implementation)
    train(expected, cpu, range(12), ends=(3, 8))
    train(optimizer, cuda, range(12), ends=(3, 8))
    assert_close(cuda, cpu)
    for p, q in zip(cuda, cpu, strict=True):
        state = optimizer.state[p]
        assert state["past_steps"].item() == expected.state[q]["past_steps"].item() == 9
        assert state["past_exp_avg_sq"].is_cuda
    assert "tasks seen: 2\n" in repr(optimizer)


@pytest.mark.filterwarnings("ignore:.*capturable")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_boundary_does_not_wait_for_the_device(implementation: dict[str, Any]) -> None:
    params = make()
    optimizer = ContinualAdamW(params, **implementation)
    train(optimizer, params, range(3), ends=(1,))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.end_task()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert "tasks seen: 2\n" in repr(optimizer)


def test_fused_is_the_default_and_puts_the_counts_on_the_device() -> None:
    params = make()
    optimizer = ContinualAdam(params)
    train(optimizer, params, range(2))
    assert optimizer.state[params[0]]["step"].is_cuda
    complex_one = Parameter(torch.ones(3, dtype=torch.complex64, device="cuda"))
    mixed = ContinualAdam([complex_one, *make()])
    complex_one.grad = torch.ones_like(complex_one)
    train(mixed, mixed.param_groups[0]["params"][1:], range(2))
    assert not mixed.state[complex_one]["step"].is_cuda


@pytest.mark.filterwarnings("ignore:.*capturable")
@pytest.mark.parametrize("second_moment", ["task", "task_seen"])
@pytest.mark.parametrize("kwargs", [{"foreach": True}, {"foreach": False}, {"fused": True}, {}])
def test_a_captured_step_replays_across_tasks(kwargs: dict[str, Any], second_moment: str) -> None:
    params, cpu = make(), make("cpu")
    kwargs = {"lr": 0.01, "second_moment": second_moment, **kwargs}
    optimizer = ContinualAdamW(params, capturable=True, **kwargs)
    fill(params, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    train(optimizer, params, range(1, 12), ends=(3, 8), step=graph.replay)
    expected = ContinualAdamW(cpu, lr=0.01, second_moment=second_moment)
    train(expected, cpu, range(12), ends=(3, 8))
    assert_close(params, cpu)


@pytest.mark.parametrize("plain", [{}, {"fused": True}, {"capturable": True}])
@pytest.mark.filterwarnings("ignore:.*capturable")
def test_a_plain_adamw_checkpoint_goes_on(plain: dict[str, Any]) -> None:
    a = make()
    theirs = torch.optim.AdamW(a, lr=0.01, **plain)
    train(theirs, a, range(4))
    b = [Parameter(p.detach().clone()) for p in a]
    ours = ContinualAdamW(b, beta3=0.0)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    train(theirs, a, range(4, 8))
    train(ours, b, range(4, 8))
    assert_close(b, a)
    ours.end_task()
    assert ours.state[b[0]]["past_steps"].item() == 8


@pytest.mark.filterwarnings("ignore:.*capturable")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_state_comes_back_exactly(
    dtype: torch.dtype, implementation: dict[str, Any]
) -> None:
    a = make(dtype=dtype)
    first = ContinualAdam(a, lr=0.01, **implementation)
    train(first, a, range(300), ends=(270,))
    b = [Parameter(p.detach().clone()) for p in a]
    second = ContinualAdam(b, **implementation)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for p, q in zip(a, b, strict=True):
        for key, value in first.state[p].items():
            assert second.state[q][key].dtype == torch.float32
            assert torch.equal(value, second.state[q][key]), key
            assert value.device == second.state[q][key].device, key
    train(first, a, range(300, 303))
    train(second, b, range(300, 303))
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("kwargs", [{}, {"foreach": True}, {"fused": True}])
def test_grad_scaler(kwargs: dict[str, Any]) -> None:
    a, b = make(), make()
    scaled, plain = ContinualAdam(a, **kwargs), ContinualAdam(b, **kwargs)
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0)
    for seed in range(5):
        fill(a, seed)
        fill(b, seed)
        plain.step()
        scaler.scale(torch.zeros((), device="cuda"))
        for p in a:
            p.grad.mul_(16.0)  # type: ignore[union-attr]
        scaler.step(scaled)
        scaler.update()
        if seed == 2:
            plain.end_task()
            scaled.end_task()
    assert_close(a, b)
    a[0].grad.fill_(float("inf"))  # type: ignore[union-attr]
    scaler.step(scaled)
    scaler.update()
    assert_close(a, b)
    assert scaled.state[a[0]]["step"].item() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs", [{}, {"foreach": True}, {"fused": True}, {"second_moment": "task_seen"}]
)
def test_compiled_step_compiles_once_for_all_tasks(kwargs: dict[str, Any]) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    params, expected = make(), make("cpu")
    optimizer = ContinualAdamW(params, lr=0.01, **kwargs)
    step = torch.compile(optimizer.step, backend=counter)
    train(optimizer, params, range(3), step=step)
    before = counter.frame_count
    train(optimizer, params, range(3, 12), ends=(3, 8), step=step)
    assert counter.frame_count == before > 0
    second_moment = kwargs.get("second_moment", "task")
    plain = ContinualAdamW(expected, lr=0.01, second_moment=second_moment)
    train(plain, expected, range(12), ends=(3, 8))
    for x, y in zip(params, expected, strict=True):
        torch.testing.assert_close(x.detach().cpu(), y.detach(), rtol=1e-3, atol=1e-5)
