"""CUDA graphs and mixed precision on a real device."""

import time

import pytest
import torch
from torch import Tensor, nn

from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.tasks import (
    CLASSIFICATION,
    REGRESSION,
    Segments,
    StackedExamples,
    TableSequence,
    from_tensors,
)
from longtail.training import POLICIES, Run, TrainSettings, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZES = [30, 3, 64, 17, 1, 50, 64, 5, 33, 64]


def make_sequence():
    generator = torch.Generator().manual_seed(0)

    def part(n: int):
        x = torch.randn(n, 6, generator=generator)
        return x, torch.randint(3, (n,), generator=generator)

    tasks = [(f"{i}", part(n), part(4)) for i, n in enumerate(SIZES)]
    return from_tensors(tasks, CLASSIFICATION).to("cuda")


def make_model(_seed: int = 0) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def make_run(method: str, seed, policies=("continual",), **settings) -> Run:
    sequence = make_sequence()
    model = build_model(make_model, seed, len(policies)).cuda()
    stacked = torch.tensor(seed) if isinstance(seed, list) else seed
    made = METHODS[method](model, CLASSIFICATION, seed=stacked)
    defaults = {"batch_size": 16, "epochs": 2, "lr": 1e-2}
    chosen = [POLICIES[name] for name in policies]
    return Run(sequence, model, made, chosen, TrainSettings(**{**defaults, **settings}), stacked)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ["finetune", "ewc", "ewcpp"])
def test_replayed_steps_equal_eager_ones(name: str, stacked: bool, schedule: str) -> None:
    seed, policies = ([3, 4], ("continual", "reset")) if stacked else (3, ("continual",))
    eager = make_run(name, seed, policies, schedule=schedule, clip=1.0)
    graph = make_run(name, seed, policies, schedule=schedule, clip=1.0, cuda_graph=True)
    train(eager)
    train(graph)
    assert all(shape.graph is not None for shape in graph.take_step.shapes.values())
    for a, b in zip(weights(eager.model), weights(graph.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
def test_mixed_precision_trains_every_method(name: str, autocast: str) -> None:
    run = make_run(name, 3, autocast=autocast)
    train(run)
    assert all(w.isfinite().all() for w in weights(run.model))


@pytest.mark.parametrize("name", METHODS)
def test_the_device_gives_what_the_cpu_gives(name: str) -> None:
    run = make_run(name, [3, 4], ("continual", "reset"))
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


def test_thousands_of_linear_models_take_microseconds_a_step() -> None:
    replicas, policies, steps = 300, 10, 1100
    sequence = synthetic_stack(replicas, steps)

    def linear(_seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(100, 1), nn.Flatten(-2))

    seeds = list(range(replicas))
    model = build_model(linear, seeds, policies).cuda()
    stacked = torch.tensor(seeds)
    method = METHODS["finetune"](model, REGRESSION, seed=stacked)
    settings = TrainSettings(batch_size=64, lr=0.1, cuda_graph=True)
    chosen = [POLICIES["continual"], POLICIES["reset"]] * (policies // 2)
    run = Run(sequence, model, method, chosen, settings, stacked, evaluate=False)
    times: list[float] = []

    def on_step(run: Run) -> None:
        if run.position.task in (5, len(sequence) - 1) and run.position.step == 1:
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    train(run, on_step=on_step)
    per_step = (times[1] - times[0]) / ((len(sequence) - 6) * 11)
    print(f"{1e6 * per_step:.0f} us per step of {replicas * policies} linear models")
    assert per_step < 300e-6
