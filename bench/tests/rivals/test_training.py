"""The rivals that are optimizers, in runs: replicas are single runs, and resuming is exact."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail.methods import METHODS
from longtail.names import POLICIES, Policy
from longtail.replicas import build_model
from longtail.runs.config import resolve
from longtail.tasks import CLASSIFICATION, Segments, TableSequence, TensorExamples
from longtail.tasks.task_models import TaskModel
from longtail.training import Run, TrainSettings, train
from longtail.training import optimizer as run_optimizer
from longtail.training.boundary import policy_for
from longtail.training.cuda_graphs import GraphStep
from longtail.training.optimizer_class import find_optimizer

REL = "longtail_bench.rivals.adam_rel:restart_time"
RIVALS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mofo": ("longtail_bench.rivals.mofo:MoFO", "new", {"fraction": 0.3}),
    "mofo with mc": ("longtail_bench.rivals.mofo:MoFO", "continual", {"fraction": 0.3}),
    "adam-rel": ("adamw", REL, {}),
    "upgd": ("longtail_bench.rivals.upgd:UPGD", "kept", {"noise": 0.01}),
    "badam": ("longtail_bench.rivals.badam:BAdam", "kept", {"width": 0.05, "examples": 30.0}),
}
BOUNDS = [0, 20, 43, 60]


def make_model(_seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


class OwnHeads(TaskModel):
    """One head a task; works with any leading dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(5, 4), nn.Parameter(torch.zeros(3, 4))
        self.register_buffer("heads", torch.zeros(3, 3, 4))
        self.current = 0

    @torch.no_grad()
    def begin_task(self, task: int) -> None:
        self.heads[..., self.current, :, :] = self.head
        self.head.copy_(self.heads[..., task, :, :])
        self.current = task

    def task_parameters(self) -> list[nn.Parameter]:
        return [self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x).tanh() @ self.head.T


def make_run(
    rival: str, seed: int | list[int], rates=(1e-2,), model=make_model, policy=None, **more
) -> Run:
    optimizer, own, optim = RIVALS[rival]
    policy = policy or own
    torch.manual_seed(0)
    table = TensorExamples(torch.randn(60, 5), torch.randint(3, (60,)))
    parts = Segments(BOUNDS)
    sequence = TableSequence(table, parts, parts, CLASSIFICATION)
    chosen = policy_for(policy, find_optimizer(optimizer))
    policies: list[Policy] = [replace(chosen, lr_scale=rate / max(rates)) for rate in rates]
    built = build_model(model, seed, len(policies))
    numbers = torch.tensor(seed) if isinstance(seed, list) else seed
    method = METHODS["finetune"](built, CLASSIFICATION, seed=numbers)
    settings = TrainSettings(
        batch_size=8, epochs=2, lr=max(rates), weight_decay=0.1, optimizer=optimizer, **more
    )
    return Run(sequence, built, method, policies, settings, numbers, optim=optim)


@pytest.mark.parametrize("model", [make_model, lambda _seed: OwnHeads()], ids=["plain", "heads"])
@pytest.mark.parametrize("rival", RIVALS)
def test_each_replica_equals_the_single_run(rival: str, model) -> None:
    seeds, rates = [3, 4], (1e-2, 3e-3)
    stack = make_run(rival, seeds, rates, model)
    train(stack)
    for s, seed in enumerate(seeds):
        for p, rate in enumerate(rates):
            alone = make_run(rival, seed, (rate,), model)
            train(alone)
            replica = stack.model.replica(p, s)
            for a, b in zip(replica.parameters(), alone.model.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rival", RIVALS)
def test_resuming_after_any_step_continues_bit_for_bit(rival: str) -> None:
    whole, files = make_run(rival, 3), []

    def keep(run: Run) -> None:
        file = io.BytesIO()
        torch.save(run.state_dict(), file)
        file.seek(0)
        files.append(file)

    train(whole, on_step=keep)
    for file in files[::4]:
        again = make_run(rival, 3)
        again.load_state_dict(torch.load(file, weights_only=True))
        train(again)
        for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(a, b)
        assert whole.matrix.last.tolist() == again.matrix.last.tolist()


@pytest.mark.parametrize("rival", RIVALS)
def test_every_rival_has_a_form_for_a_graph(rival: str) -> None:
    optimizer, _, optim = RIVALS[rival]
    assert find_optimizer(optimizer).capture_options(optim) == {"capturable": True}


@pytest.mark.parametrize("model", [make_model, lambda _seed: OwnHeads()], ids=["plain", "heads"])
@pytest.mark.parametrize("policy", ["kept", "new"])
@pytest.mark.parametrize("rival", ["upgd", "badam"])
def test_steps_as_a_graph_takes_them_equal_plain_ones(
    rival: str, policy: str, model, monkeypatch
) -> None:
    """What a graph would replay, run as it is: padded, with counts and rates as tensors."""
    plain = make_run(rival, [3, 4], (1e-2, 3e-3), model, policy, schedule="linear")
    monkeypatch.setattr(run_optimizer, "captures", lambda *_: True)
    graph = make_run(rival, [3, 4], (1e-2, 3e-3), model, policy, schedule="linear")
    graph.take_step = GraphStep(graph, capture=False)
    addresses: set[tuple[int, ...]] = set()

    def look(run: Run) -> None:
        if run.position.task and len(run.optimizer.state) == len(run.parameters):
            states = run.optimizer.state.values()
            addresses.add(tuple(x.data_ptr() for state in states for x in state.values()))

    train(plain)
    train(graph, on_step=look)
    assert len(addresses) == 1  # a graph finds everything where it was
    for a, b in zip(plain.model.parameters(), graph.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_learns_and_leaves_other_policies_behind(rival: str) -> None:
    """Not one that does nothing: its weights are neither the start's nor plain AdamW's."""
    run, start = make_run(rival, 3), make_run(rival, 3)
    train(run)
    plain = make_run("adam-rel", 3)
    plain.policies[:] = [POLICIES["kept"]]
    train(plain)
    for other in (start, plain):
        weights = zip(run.model.parameters(), other.model.parameters(), strict=True)
        assert not all(torch.allclose(a, b, atol=1e-6) for a, b in weights)


def test_a_runs_settings_leave_replicas_to_the_run() -> None:
    named = {"optimizer": "longtail_bench.rivals.upgd:UPGD", "policy": "kept"}
    config = resolve("toy", flags={**named, "optim.noise": 0.1})
    assert dict(config.optim)["noise"] == 0.1
    assert not {"lead", "seed"} & set(dict(config.optim))
