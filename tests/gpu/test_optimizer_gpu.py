"""What only a GPU can show of the optimizer: graphs, streams, memory, waiting, very large tensors.

The numbers of its steps are held by the table in ``tests/optim/cases.py`` and by all other tests in
``tests/optim`` that run in every way, on CUDA too.
"""

import copy
import gc
import itertools
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch.nn import Parameter

from helpers.optimizers import assert_same
from longtail import ContinualAdam, ContinualAdamW
from longtail.optim.cuda import launch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*capturable")]

SHAPES = ((64, 20), (64,), (), (130, 64), (10, 130), (2051,))
LOOP: dict[str, Any] = {"foreach": False, "fused": False}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
CAPTURED = [{"foreach": True}, {"foreach": False}, {"fused": True}, {}]


def make(device: str = "cuda", dtype: torch.dtype = torch.float32) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(s, generator=generator) for s in SHAPES]
    return [Parameter(x.to(device, dtype)) for x in values]


def fill(params: list[Parameter], seed: int) -> None:
    """Gradients into the tensors that are there, as a graph needs them."""
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        grad = torch.randn(p.shape, generator=generator).to(p)
        if seed < 9 and grad.dim():
            grad[0] = 0.0  # such as the embedding of a word that comes up late
        if p.grad is None:
            p.grad = grad
        else:
            p.grad.copy_(grad)


def train(
    optimizer: ContinualAdam,
    params: list[Parameter],
    seeds: range,
    ends: tuple[int, ...] = (),
    step: Any = None,
) -> None:
    for seed in seeds:
        fill(params, seed)
        (step or optimizer.step)()
        if seed in ends:
            optimizer.end_task()


def captured(optimizer: ContinualAdam, warm_up: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of one step, after some on a stream beside the default one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph


def on_cpu(tensors: Any) -> list[Tensor]:
    return [x.detach().cpu() for x in tensors]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are launched from now on."""
    names: list[str] = []
    original = launch._Tables.launch

    def noted(self: Any, name: str, *rest: Any) -> None:
        names.append(name)
        original(self, name, *rest)

    monkeypatch.setattr(launch._Tables, "launch", noted)
    return names


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


def test_groups_of_all_policies_are_one_launch(launches: list[str]) -> None:
    params, loop = [], []
    groups, theirs = [], []
    for first, second in itertools.product(
        ("reset", "ema", "task"), ("reset", "ema", "task", "task_seen")
    ):
        mine, other = make(), make()
        own = {"first_moment": first, "second_moment": second, "weight_decay": len(groups) % 3}
        own |= {"maximize": len(groups) % 2 == 1, "lr": 0.01 / (len(groups) + 1)}
        groups.append({"params": mine, **own})
        theirs.append({"params": other, **own})
        params += mine
        loop += other
    optimizer, slow = ContinualAdamW(groups, fused=True), ContinualAdamW(theirs, **LOOP)
    train(optimizer, params, range(12), ends=(3, 8))
    train(slow, loop, range(12), ends=(3, 8))
    step, end = ["step_kernel"], ["end_task_kernel"]
    assert launches == 4 * step + end + 5 * step + end + 3 * step
    assert_same(params, loop, **CLOSE)
    assert {int(group["tasks_seen"]) for group in optimizer.param_groups} == {2}


@pytest.mark.parametrize("settings", [{}, {"past_dtype": "uint8"}, {"second_moment": "task_seen"}])
@pytest.mark.parametrize("kwargs", CAPTURED)
def test_a_captured_step_replays_across_tasks(
    kwargs: dict[str, Any], settings: dict[str, Any]
) -> None:
    params, eager = make(), make()
    optimizer = ContinualAdamW(params, lr=0.01, capturable=True, **settings, **kwargs)
    expected = ContinualAdamW(eager, lr=0.01, fused=True, **settings)
    fill(params, 0)
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    train(optimizer, params, range(1, 12), ends=(3, 8), step=graph.replay)
    train(expected, eager, range(12), ends=(3, 8))
    if "past_dtype" in settings:  # a last digit of v may change a byte, and that a step
        assert_same(params, eager, rtol=1e-2, atol=1e-3)
    else:
        assert_same(params, eager, **CLOSE)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("warm_up", [1, 3])
def test_a_graph_reads_the_rate_of_now_and_eager_steps_go_on_beside_it(
    several: bool, warm_up: int
) -> None:
    ours, loop = make(), make()
    rate = torch.tensor(1e-2, device="cuda")
    parts = [ours[:3], ours[3:]] if several else [ours]
    groups = [{"params": p, "weight_decay": 0.1 * i} for i, p in enumerate(parts)]
    fused = ContinualAdamW(groups, lr=rate, capturable=True)
    parts = [loop[:3], loop[3:]] if several else [loop]
    groups = [{"params": p, "weight_decay": 0.1 * i} for i, p in enumerate(parts)]
    slow = ContinualAdamW(groups, lr=1e-2, **LOOP)
    fill(ours, 0)
    fill(loop, 0)
    graph = captured(fused, warm_up)
    for _ in range(warm_up):
        slow.step()
    junk = [torch.full((1000,), 3.0, device="cuda") for _ in range(200)]
    del junk
    for i in range(10):
        if i == 5:
            rate.fill_(1e-3)
            for group in slow.param_groups:
                group["lr"] = 1e-3
        train(fused, ours, range(i, i + 1), ends=(3, 7), step=graph.replay)
        train(slow, loop, range(i, i + 1), ends=(3, 7))
    train(fused, ours, range(3))  # eager again, then the graph again
    train(slow, loop, range(3))
    train(fused, ours, range(1), step=graph.replay)
    train(slow, loop, range(1))
    assert_same(ours, loop, **CLOSE)


def test_what_a_graph_reads_outlives_the_plan_of_its_step() -> None:
    """And not the optimizer: a graph reads and writes its state, as one of torch's own does.

    So a graph that is replayed after its optimizer was collected cannot be tested: what it reads is
    free memory then, with any optimizer.
    """
    ours, loop = make(), make()
    fused, slow = ContinualAdamW(ours, capturable=True), ContinualAdamW(loop, **LOOP)
    fill(ours, 0)
    fill(loop, 0)
    graph = captured(fused)
    slow.step()
    for i in range(6):  # every time the last plan is gone
        late = Parameter(torch.ones(7, device="cuda"))
        late.grad = torch.ones_like(late)
        fused.add_param_group({"params": [late]})
        fused.step()
        slow.step()
        gc.collect()
        junk = [torch.full((64,), i, device="cuda") for _ in range(500)]
        graph.replay()
        slow.step()
        del junk
    assert_same(ours, loop, **CLOSE)


def test_more_captures_than_torch_has_streams() -> None:
    """torch hands out its streams in turn: one taken to work beside a capture may be in it."""
    p = Parameter(torch.ones(100, device="cuda"))
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
    ours, loop = make(), make()
    fused, slow = ContinualAdamW(ours, lr=1e-2), ContinualAdamW(loop, lr=1e-2, **LOOP)
    streams = [torch.cuda.Stream() for _ in range(6)]  # more than tables are kept for
    for i in range(24):
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[i % 6 if i % 2 else 0]):
            for params, optimizer in ((ours, fused), (loop, slow)):
                for p in params:
                    p.grad = None
                fill(params, i)
                optimizer.step()
                if i % 5 == 4:
                    optimizer.end_task()
    torch.cuda.synchronize()
    assert_same(ours, loop, **CLOSE)


def test_moving_state_away_frees_its_memory() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    p = Parameter(torch.zeros(10_000_000, device="cuda"))
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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("past_dtype", ["float32", "uint8"])
@pytest.mark.parametrize("odd", [False, True])
def test_a_warm_step_and_a_boundary_wait_for_nothing_and_a_step_takes_no_memory(
    past_dtype: str, odd: bool
) -> None:
    params = make()
    if odd:  # one with gaps in memory, for the for-loop
        params.append(Parameter(torch.randn(40, 2, device="cuda")[:, 0]))
    groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
    optimizer = ContinualAdamW(groups, past_dtype=past_dtype)
    fill(params, 0)
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
        assert odd or torch.cuda.max_memory_allocated() == before
        optimizer.end_task()
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kwargs", [{"foreach": True}, {"foreach": False}])
def test_a_boundary_in_torchs_operations_does_not_wait(kwargs: dict[str, Any]) -> None:
    params = make()
    optimizer = ContinualAdamW(params, capturable=True, **kwargs)
    train(optimizer, params, range(3), ends=(1,))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.end_task()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert "tasks seen: 2\n" in repr(optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learning_rate_on_the_device(dtype: torch.dtype) -> None:
    ours, loop = make(dtype=torch.float64), make(dtype=torch.float64)
    rate = torch.tensor(0.5, dtype=dtype, device="cuda")
    groups = [{"params": ours[:2], "lr": rate}, {"params": ours[2:], "lr": 0.125}]
    fused = ContinualAdamW(groups, fused=True)
    groups = [{"params": loop[:2], "lr": 0.5}, {"params": loop[2:], "lr": 0.125}]
    slow = ContinualAdamW(groups, **LOOP)
    for seed in range(4):
        fill(ours, seed)
        fill(loop, seed)
        fused.step()
        slow.step()
        rate.mul_(0.5)
        slow.param_groups[0]["lr"] *= 0.5
    assert_same(ours, loop, rtol=1e-11, atol=1e-12)


def test_infinities_are_skipped_by_all_groups() -> None:
    params = make()
    optimizer = ContinualAdamW([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}])
    train(optimizer, params, range(4), ends=(1,))
    values = [*params, *(x for s in optimizer.state.values() for x in s.values())]
    before = [x.detach().clone() for x in values]
    optimizer.found_inf = torch.ones((), device="cuda")  # type: ignore[attr-defined]
    optimizer.grad_scale = torch.full((), 2.0, device="cuda")  # type: ignore[attr-defined]
    optimizer.step()
    assert_same(values, before)


def test_many_steps_keep_the_bias_correction() -> None:
    """0.999**t from a float32 0.999 would be off by 1e-4 here."""
    for t in (1, 10, 300, 5000, 200_000, 16_000_000):
        results = []
        for kwargs in ({"fused": True}, LOOP):
            p = Parameter(torch.linspace(-1, 1, 64, device="cuda"))
            optimizer = ContinualAdamW([p], lr=0.1, **kwargs)
            p.grad = torch.zeros_like(p)
            optimizer.step()
            optimizer.state[p]["step"].fill_(t - 1)
            p.grad = torch.linspace(1, 2, 64, device="cuda")
            optimizer.step()
            results.append([p, optimizer.state[p]["exp_avg_sq"]])
        assert_same(*results, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("many", [False, True])
def test_neighbours_are_left_alone(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every alignment, around the sizes of blocks and chunks, with guards between the tensors."""
    monkeypatch.setattr(launch, "_ENOUGH", 0 if many else 2**40)
    block, chunk = launch.BLOCK, launch.BLOCK * launch.MANY
    sizes = [1, 2, 3, 4, 5, 8, 15, 16, block - 1, block, block + 8, chunk, chunk + 3, 2 * chunk + 8]
    buffer = torch.full((sum(sizes) + len(sizes) + 1,), 7.0, device="cuda")
    params, guards, at = [], [0], 1
    for size in sizes:
        params.append(Parameter(buffer[at : at + size].copy_(torch.randn(size))))
        at += size
        guards.append(at)
        at += 1
    twins = [Parameter(p.detach().clone()) for p in params]
    fused, slow = (
        ContinualAdamW(params, lr=0.01, fused=True),
        ContinualAdamW(twins, lr=0.01, **LOOP),
    )
    train(fused, params, range(9, 15), ends=(11, 12))
    train(slow, twins, range(9, 15), ends=(11, 12))
    assert_same(params, twins, **CLOSE)
    assert (buffer[guards] == 7.0).all()


def test_grad_scaler_in_a_training_loop() -> None:
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


@pytest.mark.parametrize("plain", [{}, {"fused": True}, {"capturable": True}])
def test_a_plain_adamw_checkpoint_goes_on(plain: dict[str, Any]) -> None:
    a = make()
    theirs = torch.optim.AdamW(a, lr=0.01, **plain)
    for seed in range(4):
        fill(a, seed)
        theirs.step()
    b = [Parameter(p.detach().clone()) for p in a]
    ours = ContinualAdamW(b, beta3=0.0)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for seed in range(4, 8):
        fill(a, seed)
        theirs.step()
    train(ours, b, range(4, 8))
    assert_same(b, a, **CLOSE)
    ours.end_task()
    assert ours.state[b[0]]["past_steps"].item() == 8


def test_checkpoints_cross_devices() -> None:
    params = make()
    gpu = ContinualAdamW(params, past_dtype="uint8")
    train(gpu, params, range(4), ends=(1, 3))
    cpu = ContinualAdamW(make("cpu"), past_dtype="uint8", fused=True)
    cpu.load_state_dict(copy.deepcopy(gpu.state_dict()))
    for mine, theirs in zip(cpu.state.values(), gpu.state.values(), strict=True):
        assert all(x.is_cpu for x in mine.values())
        assert_same(mine.values(), on_cpu(theirs.values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs", [{}, {"foreach": True}, {"fused": True}, {"second_moment": "task_seen"}]
)
def test_a_compiled_step_compiles_once_for_all_tasks(kwargs: dict[str, Any]) -> None:
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
    assert_same(on_cpu(params), expected, rtol=1e-3, atol=1e-5)


def test_more_than_two_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB")
    size = 2**31 + 4097
    p = Parameter(torch.zeros(size, device="cuda", dtype=torch.bfloat16))
    p.grad = torch.zeros_like(p)
    probes = torch.tensor([0, 5, 2**31 - 1, 2**31, 2**31 + 2048, size - 1], device="cuda")
    grads = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0], device="cuda", dtype=torch.bfloat16)
    p.grad[probes] = grads
    settings = {"lr": 0.5, "beta3": 0.0, "weight_decay": 0.0}
    optimizer = ContinualAdamW([p], **settings)
    small = Parameter(torch.zeros(6, device="cuda", dtype=torch.bfloat16))
    small.grad = grads
    slow = ContinualAdamW([small], **settings, **LOOP)
    for _ in range(2):
        for _ in range(2):
            optimizer.step()
            slow.step()
        optimizer.end_task()
        slow.end_task()
    assert_same([p.detach()[probes]], [small], rtol=1e-2, atol=1e-3)
    past = "past_exp_avg_sq"
    assert_same([optimizer.state[p][past][probes]], [slow.state[small][past]], **CLOSE)
    assert p.detach().count_nonzero().item() == 6
    assert optimizer.state[p]["past_steps"].item() == 4
