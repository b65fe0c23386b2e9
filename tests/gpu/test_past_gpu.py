"""v_c in one or two bytes on a CUDA device: the bytes that a CPU would keep."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from longtail import ContinualAdamW, load_memory, save_memory
from longtail.optim.past import read_past

pytestmark = pytest.mark.gpu

SHAPES = ((33, 17), (3000,), (), (5, 1, 3), (4, 1024))
CODED = ("uint8",)
IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable for-loop": {"foreach": False, "capturable": True},
    "capturable foreach": {"foreach": True, "capturable": True},
    "capturable fused": {"fused": True, "capturable": True},
}


def make(device: str, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=generator).to(device, dtype)) for s in SHAPES]


def fill(params: list[Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        grad = torch.randn(p.shape, generator=generator).to(p)
        if p.grad is None:
            p.grad = grad
        else:
            p.grad.copy_(grad)


def train(
    optimizer: ContinualAdamW,
    params: list[Parameter],
    seeds: range,
    step: Callable[[], Any] | None = None,
) -> None:
    """A boundary after every other step."""
    for seed in seeds:
        fill(params, seed)
        (step or optimizer.step)()
        if seed % 2:
            optimizer.end_task()


def same_moments(target: ContinualAdamW, source: ContinualAdamW) -> None:
    """The last digit of v may differ between devices, and now and then change a byte."""
    pairs = zip(target.state.values(), source.state.values(), strict=True)
    for mine, theirs in pairs:
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(mine[key].cpu(), theirs[key].cpu(), rtol=1e-4, atol=1e-6)
            mine[key].copy_(theirs[key])


def bytes_of(optimizer: ContinualAdamW) -> list[Tensor]:
    return [state["past_exp_avg_sq"].cpu() for state in optimizer.state.values()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", IMPLEMENTATIONS)
@pytest.mark.parametrize("past_dtype", CODED)
def test_the_bytes_are_those_of_the_cpu(past_dtype: str, kind: str, dtype: torch.dtype) -> None:
    theirs, ours = make("cpu", dtype), make("cuda", dtype)
    cpu = ContinualAdamW(theirs, lr=0.01, past_dtype=past_dtype, foreach=False)
    gpu = ContinualAdamW(ours, lr=0.01, past_dtype=past_dtype, **IMPLEMENTATIONS[kind])
    for seed in range(8):
        for params, optimizer in ((theirs, cpu), (ours, gpu)):
            fill(params, seed)
            optimizer.step()
        same_moments(gpu, cpu)
        if seed % 2:
            for optimizer in (cpu, gpu):
                optimizer.end_task()
            assert equal(bytes_of(cpu), bytes_of(gpu))
    rough = 0.02 if dtype == torch.bfloat16 else 1e-4
    for p, q in zip(theirs, ours, strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=rough, atol=rough)


@pytest.mark.parametrize("second_moment", ["task", "task_seen"])
@pytest.mark.parametrize("past_dtype", CODED)
def test_a_step_takes_what_the_bytes_say(past_dtype: str, second_moment: str) -> None:
    params = make("cuda")
    optimizer = ContinualAdamW(params, past_dtype=past_dtype, second_moment=second_moment)
    train(optimizer, params, range(4))
    others = [Parameter(p.detach().clone()) for p in params]
    plain = ContinualAdamW(others, second_moment=second_moment)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, range(4, 5))
    train(plain, others, range(4, 5))
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("past_dtype", CODED)
def test_copies_in_a_stack_have_the_bytes_they_would_have_alone(past_dtype: str) -> None:
    torch.manual_seed(0)
    alone = [[Parameter(torch.randn(s, device="cuda")) for s in ((3, 5), (700,))] for _ in "abcd"]
    stacked = [Parameter(torch.stack([ps[i].detach() for ps in alone])) for i in range(2)]
    singles = [ContinualAdamW(ps, past_dtype=past_dtype) for ps in alone]
    stack = ContinualAdamW([{"params": stacked, "past_copies": 4}], past_dtype=past_dtype)
    for step in range(6):
        for seed, ps in enumerate(alone):
            fill(ps, 10 * seed + step)
        for i, p in enumerate(stacked):
            p.grad = torch.stack([ps[i].grad for ps in alone])  # type: ignore[misc]
        for optimizer in (*singles, stack):
            optimizer.step()
            if step % 2:
                optimizer.end_task()
    for i, single in enumerate(singles):
        assert equal([x[i] for x in bytes_of(stack)], bytes_of(single))


def test_groups_in_one_launch_have_the_bytes_of_groups_alone() -> None:
    kinds = ("float32", "uint8", "float32", "uint8")
    ours = [make("cuda") for _ in kinds]
    theirs = [make("cuda") for _ in kinds]
    groups = [{"params": ps, "past_dtype": kind} for ps, kind in zip(ours, kinds, strict=True)]
    together = ContinualAdamW(groups, lr=0.01)
    apart = [
        ContinualAdamW(ps, lr=0.01, past_dtype=kind) for ps, kind in zip(theirs, kinds, strict=True)
    ]
    for seed in range(8):
        for params in (*ours, *theirs):
            fill(params, seed)
        for optimizer in (together, *apart):
            optimizer.step()
            if seed % 2:
                optimizer.end_task()
    flat = [x for optimizer in apart for x in bytes_of(optimizer)]
    assert equal(bytes_of(together), flat)
    for ps, qs in zip(ours, theirs, strict=True):
        torch.testing.assert_close(ps, qs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["capturable foreach", "capturable fused"])
@pytest.mark.parametrize("past_dtype", CODED)
def test_a_captured_step_reads_the_bytes_that_a_boundary_left(past_dtype: str, kind: str) -> None:
    ours, theirs = make("cuda"), make("cuda")
    settings = {"lr": 0.01, "past_dtype": past_dtype}
    captured = ContinualAdamW(ours, **settings, **IMPLEMENTATIONS[kind])
    eager = ContinualAdamW(theirs, **settings, fused=True)
    train(eager, theirs, range(10))
    fill(ours, 0)
    captured.step()  # the state is there before the graph
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        captured.step()
    torch.cuda.current_stream().wait_stream(stream)
    train(captured, ours, range(1, 10), step=graph.replay)
    assert equal(bytes_of(captured), bytes_of(eager))
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_a_step_takes_no_memory_and_the_past_has_one_byte() -> None:
    params = [Parameter(torch.randn(1 << 20, device="cuda")) for _ in range(4)]
    optimizer = ContinualAdamW(params, past_dtype="uint8")
    for p in params:
        p.grad = torch.randn_like(p)
    for _ in range(3):
        optimizer.step()
        optimizer.end_task()
    state = [x for entry in optimizer.state.values() for x in entry.values()]
    assert sum(x.numel() * x.element_size() for x in state) == 9 * (4 << 20) + 8 * 4
    optimizer.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before


def test_checkpoints_and_memories_cross_devices(tmp_path: Any) -> None:
    model, other = torch.nn.Linear(40, 30).cuda(), torch.nn.Linear(40, 30)
    params = list(model.parameters())
    gpu = ContinualAdamW(params, past_dtype="uint8")
    train(gpu, params, range(4))
    cpu = ContinualAdamW(other.parameters(), past_dtype="uint8")
    cpu.load_state_dict(copy.deepcopy(gpu.state_dict()))
    assert equal(bytes_of(cpu), bytes_of(gpu))
    save_memory(gpu, tmp_path, model)
    later = ContinualAdamW(model.parameters(), past_dtype="uint8")
    load_memory(later, tmp_path, model, quiet=True)
    assert equal(bytes_of(later), bytes_of(gpu))


@pytest.mark.parametrize("past_dtype", CODED)
def test_the_mean_follows_the_average(past_dtype: str) -> None:
    p = Parameter(torch.zeros(1 << 16, device="cuda"))
    optimizer = ContinualAdamW([p], past_dtype=past_dtype, lr=0.0, betas=(0.9, 0.0))
    p.grad = torch.ones_like(p)
    for task in range(2000):
        if task == 1000:
            p.grad.mul_(2.0**0.5)
        optimizer.step()
        optimizer.end_task()
    (kept,) = bytes_of(optimizer)
    assert abs(read_past(kept, torch.float64).mean().item() / 1.5 - 1) < 0.02
