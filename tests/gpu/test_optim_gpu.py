"""The optimizers on a GPU: whatever happens between steps, fused does what the for-loop does."""

import copy
import gc
import time
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from longtail import ContinualAdam, ContinualAdamW
from longtail.optim.cuda.launch import free_for_dead_graphs
from longtail.optim.cuda.step import CudaKernel

pytestmark = pytest.mark.gpu

SIZES = [(64, 20), (64,), (), (130, 64), (10, 130), (10,)]
LOOP = {"foreach": False, "fused": False}


def params(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size).to("cuda", dtype)) for size in SIZES]


def give_gradients(groups: list[list[nn.Parameter]], seed: int) -> None:
    """The same fresh gradients to each list, a small tensor in between to move their addresses."""
    generator = torch.Generator().manual_seed(seed)
    for position in range(len(groups[0])):
        grad = torch.randn(groups[0][position].shape, generator=generator)
        if seed < 8 and grad.dim():
            grad[0] = 0.0  # such as the embedding of a word that comes up late
        for group in groups:
            p = group[position]
            p.grad = grad.to("cuda", p.dtype)


def same(a: list[nn.Parameter], b: list[nn.Parameter], tolerance: float = 3e-6) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def run_both(
    between: Callable[
        [torch.optim.Optimizer, list[nn.Parameter], int], torch.optim.Optimizer | None
    ],
    steps: int = 12,
    **settings,
) -> tuple[ContinualAdamW, ContinualAdamW]:
    """Step the fused optimizer and the for-loop side by side, doing something between steps."""
    ours, loop = params(), params()
    fused = ContinualAdamW(ours, lr=1e-2, **settings)
    slow = ContinualAdamW(loop, lr=1e-2, **settings, **LOOP)
    for i in range(steps):
        give_gradients([ours, loop], i)
        fused.step()
        slow.step()
        fused = between(fused, ours, i) or fused
        slow = between(slow, loop, i) or slow
        same(ours, loop)
    return fused, slow


def boundary(optimizer: torch.optim.Optimizer, _: list[nn.Parameter], i: int) -> None:
    if i % 4 == 3:
        optimizer.end_task()


@pytest.mark.parametrize("first", ["reset", "ema", "task"])
@pytest.mark.parametrize("second", ["reset", "ema", "task", "task_seen"])
def test_default_is_fused_and_equals_the_loop(first: str, second: str) -> None:
    fused, slow = run_both(boundary, first_moment=first, second_moment=second)
    assert fused.state[fused.param_groups[0]["params"][0]]["step"].is_cuda
    assert int(fused.param_groups[0]["tasks_seen"]) == int(slow.param_groups[0]["tasks_seen"]) == 3


def test_groups_of_different_policies_side_by_side() -> None:
    ours, loop = params(), params()
    kinds = ("task", "task_seen", "reset", "ema", "task", "task_seen")

    def grouped(mine: list[nn.Parameter], **settings) -> ContinualAdamW:
        groups = [{"params": [p], "second_moment": k} for p, k in zip(mine, kinds, strict=True)]
        return ContinualAdamW(groups, lr=1e-2, **settings)

    fused, slow = grouped(ours), grouped(loop, **LOOP)
    for i in range(12):
        give_gradients([ours, loop], i)
        for optimizer in (fused, slow):
            optimizer.step()
            boundary(optimizer, [], i)
        same(ours, loop)


def test_steps_after_the_second_make_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    ordinary = CudaKernel.step
    monkeypatch.setattr(CudaKernel, "step", lambda *args: calls.append(1) or ordinary(*args))
    run_both(boundary)
    assert len(calls) == 1


def move_state_away_and_back(optimizer: torch.optim.Optimizer, _: object, i: int) -> None:
    if not optimizer.param_groups[0]["fused"] and optimizer.param_groups[0]["foreach"] is False:
        return
    for state in optimizer.state.values():
        for key, value in list(state.items()):
            state[key] = value.to("cpu")
    torch.full((1_000_000,), 7.0, device="cuda")  # would show up if the old memory were used
    for state in optimizer.state.values():
        for key, value in list(state.items()):
            state[key] = value.to("cuda")


def swap_data(optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], i: int) -> None:
    for p in mine:
        p.data = p.data.clone() if i % 2 else p.data


def reset_one_entry(optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], i: int) -> None:
    if i == 5:
        state = optimizer.state[mine[3]]
        state["exp_avg"] = torch.zeros_like(state["exp_avg"])
    if i == 7:
        state = optimizer.state[mine[1]]
        state["step"] = torch.zeros_like(state["step"])


def forget_everything(optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], i: int) -> None:
    if i == 3:
        optimizer.state.clear()
    if i == 6:
        optimizer.state = defaultdict(dict)
    if i == 9:
        optimizer.state[mine[0]] = {}


def reload(optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], i: int) -> None:
    if i % 3 == 2:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def new_object(
    optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], i: int
) -> torch.optim.Optimizer | None:
    if i != 5:
        return None
    fresh = ContinualAdamW(mine, lr=1e-2)
    if optimizer.param_groups[0]["foreach"] is False:
        fresh = ContinualAdamW(mine, lr=1e-2, **LOOP)
    fresh.load_state_dict(optimizer.state_dict())
    return fresh


def replace_parameter(optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], i: int) -> None:
    """What code that grows or prunes a parameter does."""
    if i in (4, 5, 8):
        old = mine[1]
        state = optimizer.state.pop(old)
        mine[1] = nn.Parameter(old.detach()[: len(old) - 8].clone())
        for key in ("exp_avg", "exp_avg_sq", "past_exp_avg_sq"):
            state[key] = state[key][: len(old) - 8].clone()
        optimizer.state[mine[1]] = state
        optimizer.param_groups[0]["params"][1] = mine[1]
        del old
        gc.collect()


def change_settings(optimizer: torch.optim.Optimizer, _: object, i: int) -> None:
    group = optimizer.param_groups[0]
    group["lr"] = 1e-2 / (i + 1)
    if i == 4:
        group["weight_decay"] = 0.0
    if i == 6:
        group["betas"] = (0.8, 0.9)
    if i == 8:
        group["maximize"] = True
    if i == 9:
        group["first_moment"] = "task"
    if i == 10:
        group["second_moment"] = "task_seen"


@pytest.mark.parametrize(
    "between",
    [
        move_state_away_and_back,
        swap_data,
        reset_one_entry,
        forget_everything,
        reload,
        new_object,
        replace_parameter,
        change_settings,
    ],
)
def test_what_happens_between_steps_is_noticed(between) -> None:
    run_both(between)


def test_moving_state_away_frees_its_memory() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    p = nn.Parameter(torch.zeros(10_000_000, device="cuda"))
    optimizer = ContinualAdamW([p])
    for _ in range(3):
        p.grad = torch.ones_like(p)
        optimizer.step()
    p.grad = None
    for state in optimizer.state.values():
        for key, value in list(state.items()):
            state[key] = value.to("cpu")
    del value, state
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before < 41_000_000


def test_missing_gradients_and_late_groups() -> None:
    ours, loop = params(), params()
    fused = ContinualAdam(ours[:4], lr=1e-2)
    slow = ContinualAdam(loop[:4], lr=1e-2, **LOOP)
    for i in range(16):
        give_gradients([ours, loop], i)
        for mine in (ours, loop):
            if i % 3 == 1:
                mine[1].grad = None
            if i < 6:
                mine[3].grad = None
        if i == 9:
            fused.add_param_group({"params": ours[4:], "lr": 1e-3})
            slow.add_param_group({"params": loop[4:], "lr": 1e-3})
        if i == 12:
            fused.zero_grad()
            slow.zero_grad()
        fused.step()
        slow.step()
        if i in (7, 8, 13):
            fused.end_task()
            slow.end_task()
        same(ours, loop)
    for a, b in zip(ours, loop, strict=True):
        assert fused.state[a]["past_steps"].item() == slow.state[b]["past_steps"].item()
        assert fused.state[a]["step"].item() == slow.state[b]["step"].item()


def test_gradients_of_odd_layout_and_sparse_ones() -> None:
    ours, loop = params(), params()
    fused, slow = ContinualAdamW(ours), ContinualAdamW(loop, **LOOP)
    for i in range(6):
        give_gradients([ours, loop], i)
        if i % 2:
            for mine in (ours, loop):
                mine[0].grad = mine[0].grad.t().contiguous().t()
                mine[1].grad = torch.ones((), device="cuda").expand(64)
        fused.step()
        slow.step()
        same(ours, loop)
    ours[0].grad = None
    ours[0].grad = torch.zeros(64, 20, device="cuda").to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        fused.step()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_waiting_and_no_memory_in_a_warm_step() -> None:
    mine = params()
    optimizer = ContinualAdamW(mine)
    give_gradients([mine], 0)
    for _ in range(3):
        optimizer.step()
    optimizer.end_task()
    optimizer.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
        assert torch.cuda.max_memory_allocated() == before
        optimizer.end_task()
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("warm_up", [1, 3])
def test_cuda_graph(tensor_lr: bool, warm_up: int) -> None:
    ours, loop = params(), params()
    lr = torch.tensor(1e-2, device="cuda") if tensor_lr else 1e-2
    fused = ContinualAdamW(ours, lr=lr, capturable=True)
    slow = ContinualAdamW(loop, lr=1e-2, **LOOP)
    assert fused.param_groups[0]["fused"] is None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(warm_up):
            give_gradients([ours, loop], i)
            fused.step()
            slow.step()
    torch.cuda.current_stream().wait_stream(side)
    give_gradients([ours], 0)  # static gradients at new addresses
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused.step()
    static = [p.grad for p in ours]
    junk = [torch.full((1000,), 3.0, device="cuda") for _ in range(200)]
    del junk
    for i in range(10):
        give_gradients([loop], 100 + i)
        for s, p in zip(static, loop, strict=True):
            s.copy_(p.grad)
        if tensor_lr and i == 5:
            lr.fill_(1e-3)
            slow.param_groups[0]["lr"] = 1e-3
        graph.replay()
        slow.step()
        if i in (3, 7):
            fused.end_task()
            slow.end_task()
        same(ours, loop)
    for _ in range(3):  # eager again, then the graph again
        give_gradients([ours, loop], 7)
        fused.step()
        slow.step()
    for s, p in zip(static, loop, strict=True):
        s.copy_(p.grad)
    graph.replay()
    slow.step()
    same(ours, loop)


def test_what_a_graph_reads_is_freed_with_it() -> None:
    p = nn.Parameter(torch.ones(100, device="cuda"))
    p.grad = torch.ones_like(p)
    optimizer = ContinualAdamW([p], capturable=True)
    optimizer.step()

    def capture() -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
        graph.replay()
        torch.cuda.synchronize()
        return graph

    def steps() -> int:
        return int(optimizer.state[p]["step"].item())

    capture()
    kept = capture()
    gc.collect()
    free_for_dead_graphs()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        capture()
        gc.collect()
    for _ in range(100):  # CUDA tells in its own time
        free_for_dead_graphs()
        if torch.cuda.memory_allocated() <= before:
            break
        time.sleep(0.05)
    assert torch.cuda.memory_allocated() <= before
    assert steps() == 23
    kept.replay()  # whose tables are still there
    assert steps() == 24


def test_more_captures_than_torch_has_streams() -> None:
    """torch hands out its streams in turn: one taken to work beside a capture may be in it."""
    p = nn.Parameter(torch.ones(100, device="cuda"))
    optimizer = ContinualAdamW([p], capturable=True)
    graphs, grads = [], []
    for _ in range(40):
        p.grad = torch.ones_like(p)
        grads.append(p.grad)
        if not graphs:
            optimizer.step()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=torch.cuda.Stream()):
            optimizer.step()
    for graph in graphs:
        graph.replay()
    assert optimizer.state[p]["step"].item() == 41


def test_other_streams() -> None:
    ours, loop = params(), params()
    fused, slow = ContinualAdamW(ours, lr=1e-2), ContinualAdamW(loop, lr=1e-2, **LOOP)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for i in range(8):
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[i % 2]):
            give_gradients([ours, loop], i)
            fused.step()
            slow.step()
    torch.cuda.synchronize()
    same(ours, loop)


def test_grad_scaler() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    twin = copy.deepcopy(model)
    fused = ContinualAdamW(model.parameters(), lr=1e-2, fused=True)
    slow = ContinualAdamW(twin.parameters(), lr=1e-2, **LOOP)
    scalers = [
        torch.amp.GradScaler("cuda", init_scale=2.0**14, growth_interval=3) for _ in range(2)
    ]
    for i in range(10):
        x = torch.randn(8, 16, device="cuda") * (1e6 if i == 4 else 1.0)
        for net, optimizer, scaler in zip((model, twin), (fused, slow), scalers, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = net(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert fused.state[a]["step"].item() == slow.state[b]["step"].item() < 10


def test_bf16_parameters_and_channels_last() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Conv2d(16, 4, 1)).cuda()
    net = net.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(net)
    fused = ContinualAdamW(net.parameters(), lr=1e-2)
    slow = ContinualAdamW(twin.parameters(), lr=1e-2, **LOOP)
    for i in range(8):
        x = torch.randn(2, 8, 9, 9, device="cuda").to(memory_format=torch.channels_last)
        for model, optimizer in ((net, fused), (twin, slow)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            boundary(optimizer, [], i)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    ours, loop = params(torch.bfloat16), params(torch.bfloat16)
    fused, slow = ContinualAdamW(ours, lr=1e-2), ContinualAdamW(loop, lr=1e-2, **LOOP)
    for i in range(8):
        give_gradients([ours, loop], i)
        fused.step()
        slow.step()
    same(ours, loop, 2e-2)
    assert fused.state[ours[0]]["exp_avg_sq"].dtype is torch.float32


def test_compiled_step() -> None:
    ours, loop = params(), params()
    compiled, slow = ContinualAdamW(ours, lr=1e-2), ContinualAdamW(loop, lr=1e-2, **LOOP)
    step = torch.compile(compiled.step)
    for i in range(6):
        give_gradients([ours, loop], i)
        step()
        slow.step()
        if i % 3 == 2:
            compiled.end_task()
            slow.end_task()
        same(ours, loop, 1e-5)


def test_more_than_two_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB")
    size = 2**31 + 4097
    p = nn.Parameter(torch.zeros(size, device="cuda", dtype=torch.bfloat16))
    p.grad = torch.zeros_like(p)
    probes = torch.tensor([0, 5, 2**31 - 1, 2**31, 2**31 + 2048, size - 1], device="cuda")
    grads = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0], device="cuda", dtype=torch.bfloat16)
    p.grad[probes] = grads
    optimizer = ContinualAdamW([p], lr=0.5, beta3=0.0, weight_decay=0.0)
    small = nn.Parameter(torch.zeros(6, device="cuda", dtype=torch.bfloat16))
    small.grad = grads
    slow = ContinualAdamW([small], lr=0.5, beta3=0.0, weight_decay=0.0, **LOOP)
    for _ in range(2):
        for _ in range(2):
            optimizer.step()
            slow.step()
        optimizer.end_task()
        slow.end_task()
    torch.testing.assert_close(p.detach()[probes], small.detach())
    state: dict[str, Tensor] = optimizer.state[p]
    torch.testing.assert_close(
        state["past_exp_avg_sq"][probes], slow.state[small]["past_exp_avg_sq"]
    )
    assert p.detach().count_nonzero().item() == 6
    assert state["past_steps"].item() == 4
