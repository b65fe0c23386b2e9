"""CUDA graphs and mixed precision on a real device."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from helpers import small_tasks
from helpers.small_tasks import make_model, weights
from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.support.eval_mode import evaluation_mode
from longtail.support.modules import import_object
from longtail.tasks import (
    CLASSIFICATION,
    REGRESSION,
    Ragged,
    Rows,
    Segments,
    StackedExamples,
    TableSequence,
)
from longtail.tasks.task_models import TaskModel
from longtail.training import POLICIES, Run, TrainSettings, train
from longtail.training.boundary import policy_for
from longtail.training.cuda_graphs import GraphForward
from longtail.training.optimizer_class import find_optimizer
from longtail_bench.rivals.mofo import largest

pytestmark = pytest.mark.gpu
SIZES = [30, 3, 64, 17, 1, 50, 64, 5, 33, 64]


def make_sequence() -> TableSequence:
    return small_tasks.make_sequence(SIZES).to("cuda")


def make_run(method: str, seed, policies=("continual",), **settings) -> Run:
    settings = {"batch_size": 16, **settings}
    return small_tasks.make_run(make_sequence(), method, seed, policies, device="cuda", **settings)


def assert_close(a: Run, b: Run, atol: float = 1e-4) -> None:
    for x, y in zip(weights(a.model), weights(b.model), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=atol)


def captured(run: Run) -> list[bool]:
    """For each captured step whether it replays stored examples."""
    return [
        key[0] > 0 for key, shape in run.take_step.graphs.shapes.items() if shape.graph is not None
    ]


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_replayed_steps_equal_eager_ones(name: str, stacked: bool, schedule: str) -> None:
    seed, policies = ([3, 4], ("continual", "new")) if stacked else (3, ("continual",))
    eager = make_run(name, seed, policies, schedule=schedule, clip=1.0)
    graph = make_run(name, seed, policies, schedule=schedule, clip=1.0, cuda_graph=True)
    train(eager)
    train(graph)
    replays = name.startswith(("reservoir", "derpp", "agem"))  # joined and routed ones too
    assert captured(graph).count(replays) >= 2  # full batches and smaller ones
    assert_close(eager, graph, 1e-3 if replays else 1e-4)
    if replays:  # the same examples were kept, and the same ones were drawn
        one, other = eager.method.buffer.state_dict(), graph.method.buffer.state_dict()
        assert one["draws"] == other["draws"]
        assert torch.equal(one["fields"][1], other["fields"][1])


class Bag(nn.Module):
    """The mean of the embeddings of a row's tokens, whatever it is padded to."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.table, self.hidden = nn.Embedding(30, width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, inputs: Ragged) -> Tensor:
        found = self.table(inputs.padded) * inputs.mask()[..., None]
        mean = found.sum(-2) / inputs.lengths[..., None]
        return self.head(self.norm(torch.relu(self.hidden(mean))))


class Staged:
    """Rows of tokens read in two halves; widths are 16, 32 or 48."""

    host_index = full_batches = True

    def __init__(self, n: int, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(0)
        self.host_lengths = torch.randint(1, 20, (n,), generator=generator)
        self.host_lengths[::9] += 20
        self.lengths = self.host_lengths.to(device)
        self.padded = torch.randint(30, (n, 48), generator=generator).to(device)
        self.targets = torch.randint(3, (n,), generator=generator).to(device)

    def __len__(self) -> int:
        return len(self.lengths)

    def stage(self, index: Tensor) -> tuple[int, Tensor]:
        assert index.device.type == "cpu"
        return -(-int(self.host_lengths[index].max()) // 16) * 16, index

    def assemble(self, shape: int, numbers: Tensor):
        rows = Ragged(self.padded[numbers][..., :shape], self.lengths[numbers])
        return rows, self.targets[numbers]

    def __getitem__(self, index):
        index = torch.arange(len(self))[index] if isinstance(index, slice) else index
        shape, numbers = self.stage(index)
        return self.assemble(shape, numbers.to(self.lengths.device))

    def narrow(self, start: int, stop: int) -> Rows:
        return Rows(self, torch.arange(start, stop))

    def to(self, device) -> "Staged":
        return Staged(len(self), device)


def ragged_run(name: str, stacked: bool, **settings) -> Run:
    bounds = [0, *torch.tensor(SIZES).cumsum(0).tolist()]
    table, segments = Staged(sum(SIZES)), Segments(bounds)
    sequence = TableSequence(table, segments, segments, CLASSIFICATION).to("cuda")
    seed, policies = ([3, 4], ("continual", "new")) if stacked else (3, ("continual",))
    model = build_model(lambda _: Bag(), seed, len(policies)).cuda()
    seed = torch.tensor(seed) if stacked else seed
    method = METHODS[name](model, CLASSIFICATION, seed=seed)
    chosen = [POLICIES[policy] for policy in policies]
    settings = {"batch_size": 12, "epochs": 3, "lr": 1e-2, **settings}
    return Run(sequence, model, method, chosen, TrainSettings(**settings), seed)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_ragged_batches_of_a_few_widths_are_captured(name: str, stacked: bool) -> None:
    eager, graph = ragged_run(name, stacked), ragged_run(name, stacked, cuda_graph=True)
    train(eager)
    train(graph)
    assert 2 <= len(captured(graph)) <= 6
    assert_close(eager, graph, 2e-3)


@pytest.mark.parametrize("name", ["finetune", "reservoir", "derpp", "agem"])
def test_batch_norm_is_captured_at_the_sizes_that_come_often(name: str) -> None:
    def build(**settings) -> Run:
        torch.manual_seed(0)
        parts = nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.Flatten()
        model = nn.Sequential(nn.Linear(6, 8), *parts, nn.Linear(8, 3)).cuda()
        method = METHODS[name](model, CLASSIFICATION, seed=3)
        given = TrainSettings(batch_size=16, epochs=2, lr=1e-2, **settings)
        return Run(make_sequence(), model, method, [POLICIES["continual"]], given, 3)

    eager, graph = build(), build(cuda_graph=True)
    train(eager)
    train(graph)
    assert captured(graph)
    assert_close(eager, graph, 1e-3)


@pytest.mark.parametrize("autocast", ["none", "bf16"])
@pytest.mark.parametrize("stacked", [False, True])
def test_captured_forward_passes_see_the_weights_of_now(stacked: bool, autocast: str) -> None:
    model = build_model(lambda _: Bag(), [3, 4] if stacked else 3, 2 if stacked else 1).cuda()
    forward, table = GraphForward(model), Staged(400, "cuda")
    precision = torch.autocast("cuda", torch.bfloat16, enabled=autocast == "bf16")
    for turn in range(20):
        with evaluation_mode(forward), torch.no_grad(), precision:
            for rows in (5, 12, 300):
                inputs, _ = table[torch.arange(turn, turn + rows)]
                if stacked:
                    inputs = Ragged(*(x.expand(2, *x.shape) for x in inputs))
                torch.testing.assert_close(forward(inputs), model(inputs), rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.1)
    assert sum(one.graph is not None for one in forward.graphs.shapes.values()) >= 2


@pytest.mark.parametrize("name", ["finetune", "derpp"])
def test_compiled_models_are_captured_too(name: str) -> None:
    eager = make_run(name, 3, autocast="bf16")
    graph = make_run(name, 3, autocast="bf16", compile=True, cuda_graph=True)
    train(eager)
    train(graph)
    assert captured(graph)
    assert_close(eager, graph, 5e-2)
    found = torch.tensor(graph.matrix.last - eager.matrix.last)
    assert found.abs().mean() < 0.1


def test_scores_of_single_tasks_wait_on_the_device() -> None:
    run, waited = make_run("finetune", 3, cuda_graph=True), []
    train(run, on_step=lambda run: waited.append(len(run.recorder._waiting)))
    assert max(waited) == len(SIZES) - 2  # all but the first and the last
    eager = make_run("finetune", 3)
    train(eager)
    assert abs(run.matrix.own - eager.matrix.own).max() <= 0.25 + 1e-9  # one of four examples


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
def test_mixed_precision_trains_every_method(name: str, autocast: str) -> None:
    run = make_run(name, 3, autocast=autocast)
    train(run)
    assert all(w.isfinite().all() for w in weights(run.model))


@pytest.mark.parametrize("name", METHODS)
def test_the_device_gives_what_the_cpu_gives(name: str) -> None:
    run = make_run(name, [3, 4], ("continual", "new"))
    train(run)
    sequence = make_sequence().to("cpu")
    model = build_model(make_model, [3, 4], 2)
    seeds = torch.tensor([3, 4])
    method = METHODS[name](model, CLASSIFICATION, seed=seeds)
    other = Run(sequence, model, method, run.policies, run.settings, seeds)
    train(other)
    for a, b in zip(weights(run.model), weights(other.model), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-2, atol=1e-3)


def test_a_loaded_state_is_captured_anew() -> None:
    run = make_run("finetune", 3, cuda_graph=True)
    train(run)
    final = weights(run.model)
    again = make_run("finetune", 3, cuda_graph=True)
    train(again)
    fresh = make_run("finetune", 3, cuda_graph=True)
    again.load_state_dict(fresh.state_dict())
    train(again)
    for a, b in zip(final, weights(again.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def synthetic_stack(replicas: int, steps: int, batch: int = 64):
    """Linear regression on data of each replica's own, `steps` batches in all."""
    sizes = [batch * 10 + 3] * (steps // 11)
    n = sum(sizes)
    x = torch.randn(replicas, n, 100, device="cuda")
    table = StackedExamples(x, x[..., 0] * 0.5)
    train_rows = Segments([0, *torch.tensor(sizes).cumsum(0).tolist()])
    return TableSequence(table, train_rows, train_rows, REGRESSION)


def seconds_per_step(replicas: int, policies: int, steps: int = 1100) -> float:
    """Of a stack of linear models in the loop, without the steps before its graphs are there."""
    sequence = synthetic_stack(replicas, steps)

    def linear(_seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(100, 1), nn.Flatten(-2))

    seeds = list(range(replicas))
    model = build_model(linear, seeds, policies).cuda()
    stacked = torch.tensor(seeds)
    method = METHODS["finetune"](model, REGRESSION, seed=stacked)
    settings = TrainSettings(batch_size=64, lr=0.1, cuda_graph=True)
    chosen = [POLICIES[("continual", "new")[i % 2]] for i in range(policies)]
    run = Run(sequence, model, method, chosen, settings, stacked, evaluate=False)
    times: list[float] = []

    def on_step(run: Run) -> None:
        if run.position.task in (5, len(sequence) - 1) and run.position.step == 1:
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    train(run, on_step=on_step)
    return (times[1] - times[0]) / ((len(sequence) - 6) * 11)


def test_thousands_of_linear_models_cost_little_more_than_one() -> None:
    """One after the other they would take three thousand times as long."""
    seconds_per_step(1, 1, steps=110)  # kernels compile, tables reach the device
    one, many = seconds_per_step(1, 1), seconds_per_step(300, 10)
    assert many < 20 * one


@pytest.mark.parametrize("average", ["task", "ema"])
@pytest.mark.parametrize("stacked", [False, True])
def test_the_average_of_replayed_steps_is_that_of_eager_ones(average: str, stacked: bool) -> None:
    seed, policies = ([3, 4], ("continual", "new")) if stacked else (3, ("continual",))
    settings = {"average": average, "average_decay": 0.9, "evaluate_every": 3}
    eager = make_run("finetune", seed, policies, **settings)
    graph = make_run("finetune", seed, policies, **settings, cuda_graph=True)
    train(eager)
    train(graph)
    assert len(captured(graph)) >= 2
    assert_close(eager, graph)
    own = weights(graph.model)
    with eager.average.applied(), graph.average.applied():
        assert_close(eager, graph)
        assert not all(torch.equal(a, b) for a, b in zip(own, weights(graph.model), strict=True))
    for name in ("accuracy", "average"):
        one, other = eager.matrices[name].last, graph.matrices[name].last
        assert abs(one - other).max() <= 0.25 + 1e-9  # one of four test examples at most
    assert abs(eager.matrices["average"].last - graph.matrices["average"].last).mean() < 0.05


@pytest.mark.parametrize("optimizer", ["sgd", "nadam", "rmsprop", "torch.optim:AdamW"])
@pytest.mark.parametrize("policy", ["kept", "new", "continual"])
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_steps_of_other_optimizers_are_captured_too(
    optimizer: str, policy: str, schedule: str
) -> None:
    def made(cuda_graph: bool) -> Run:
        model = build_model(make_model, 3).cuda()
        chosen = find_optimizer(optimizer)
        settings = TrainSettings(
            batch_size=16, epochs=2, lr=1e-2, optimizer=optimizer, schedule=schedule,
            cuda_graph=cuda_graph,
        )  # fmt: skip
        optim = {"momentum": 0.9} if optimizer in ("sgd", "rmsprop") else {}
        method = METHODS["finetune"](model, CLASSIFICATION)
        policies = [policy_for(policy, chosen)]
        return Run(make_sequence(), model, method, policies, settings, 3, optim=optim)

    eager, graph = made(False), made(True)
    train(eager)
    train(graph)
    assert len(captured(graph)) >= 2
    assert_close(eager, graph)


RIVALS = {
    "mofo": ("longtail_bench.rivals.mofo:MoFO", "kept", {"fraction": 0.3}),
    "mofo with mc": ("longtail_bench.rivals.mofo:MoFO", "continual", {"fraction": 0.3}),
    "adam-rel": ("adamw", "longtail_bench.rivals.adam_rel:restart_time", {}),
    "upgd": ("longtail_bench.rivals.upgd:UPGD", "kept", {"noise": 0.01}),
    "upgd by gradients": ("longtail_bench.rivals.upgd:UPGD", "kept", {"adaptive": False}),
    "upgd anew": ("longtail_bench.rivals.upgd:UPGD", "new", {"noise": 0.01}),
    "badam": ("longtail_bench.rivals.badam:BAdam", "kept", {"width": 0.05, "examples": 30.0}),
    "badam anew": ("longtail_bench.rivals.badam:BAdam", "new", {"width": 0.05, "examples": 30.0}),
}


class OwnHeads(TaskModel):
    """A trunk, and a head for each task that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(6, 8), nn.Parameter(torch.zeros(3, 8))

    @torch.no_grad()
    def begin_task(self, task: int) -> None:
        self.head.zero_()

    def task_parameters(self) -> list[nn.Parameter]:
        return [self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x).tanh() @ self.head.mT


def rival_run(rival: str, device: str, *, stacked: bool, heads: bool = False, **settings) -> Run:
    optimizer, policy, optim = RIVALS[rival]
    seed, rates = ([3, 4], (1.0, 0.3)) if stacked else (3, (1.0,))
    make = (lambda _seed: OwnHeads()) if heads else make_model
    model = build_model(make, seed, len(rates)).to(device)
    stack = torch.tensor(seed) if isinstance(seed, list) else seed
    method = METHODS["finetune"](model, CLASSIFICATION, seed=stack)
    chosen = policy_for(policy, find_optimizer(optimizer))
    policies = [replace(chosen, lr_scale=rate) for rate in rates]
    defaults = {"batch_size": 16, "epochs": 2, "lr": 1e-2, "optimizer": optimizer}
    given = TrainSettings(**{**defaults, **settings})
    return Run(make_sequence().to(device), model, method, policies, given, stack, optim=optim)


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("rival", RIVALS)
def test_replayed_steps_of_rivals_equal_eager_ones(
    rival: str, schedule: str, stacked: bool, heads: bool
) -> None:
    settings = {"stacked": stacked, "heads": heads, "schedule": schedule}
    eager = rival_run(rival, "cuda", **settings)
    graph = rival_run(rival, "cuda", **settings, cuda_graph=True)
    train(eager)
    train(graph)
    assert len(captured(graph)) >= 2  # full batches and smaller ones
    assert_close(eager, graph, 1e-3)


@pytest.mark.parametrize("rival", RIVALS)
def test_rivals_give_on_the_device_what_they_give_on_the_cpu(rival: str) -> None:
    here = rival_run(rival, "cpu", stacked=True)
    there = rival_run(rival, "cuda", stacked=True, cuda_graph=True)
    train(here)
    train(there)
    for a, b in zip(weights(here.model), weights(there.model), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("rival", ["upgd", "badam"])
def test_a_replayed_step_draws_anew(rival: str) -> None:
    """Where gradients are zero, noise alone moves the weights: never the same way twice."""
    kind = import_object(RIVALS[rival][0])
    p = nn.Parameter(torch.zeros(1000, device="cuda"))
    optimizer = kind([p], lr=0.1, capturable=True, seed=3)
    p.grad = torch.zeros_like(p)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    seen = [p.detach().clone()]
    for _ in range(3):
        graph.replay()
        seen.append(p.detach().clone())
    moves = [b - a for a, b in pairwise(seen)]
    for a, b in pairwise(moves):
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.6  # BAdam's share one draw
        assert not torch.equal(a, b)


@pytest.mark.parametrize("shape", [(7,), (3, 1000), (2, 300, 1000), (500, 40)])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 1.0])
def test_the_largest_momentum_is_the_same_on_both_devices(shape, fraction: float) -> None:
    torch.manual_seed(0)
    m = torch.randn(shape)
    m.flatten()[::3] = m.flatten()[0]  # ties
    lead = len(shape) > 1
    for tensor in (m, torch.zeros(shape)):
        assert torch.equal(
            largest(tensor, fraction, lead), largest(tensor.cuda(), fraction, lead).cpu()
        )


def test_an_optimizer_that_cannot_be_captured_runs_as_it_is() -> None:
    run = make_run("finetune", 3, ("kept",), optimizer="adafactor", cuda_graph=True)
    train(run)
    assert not hasattr(run.take_step, "steps")
