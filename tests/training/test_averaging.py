"""The average of the weights in THE loop: scored beside them, stacked, and resumed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import small_tasks
from helpers.small_tasks import make_model
from longtail.metrics import summary
from longtail.tasks import Evaluator
from longtail.tasks.task_models import TaskModel
from longtail.training import Interrupted, Run, TrainSettings, train

SIZES = (9, 4, 0, 6, 5)
SEQUENCE = small_tasks.make_sequence(SIZES, tests=8)


def make_run(average: str, seed: Any = 3, policies: int = 1, **settings: Any) -> Run:
    given = {"lr": 3e-2, "average": average, "average_decay": 0.8, "evaluate_every": 1, **settings}
    return small_tasks.make_run(
        SEQUENCE, "finetune", seed, ("continual", "new")[:policies], **given
    )


@pytest.mark.parametrize("average", ["task", "ema"])
def test_training_is_as_without_and_the_average_is_that_of_the_weights_seen(average: str) -> None:
    plain, run = make_run("none"), make_run(average)
    seen: list[list[Tensor]] = []
    ends: list[list[Tensor]] = []

    def look(run: Run) -> None:
        weights = [p.detach().clone() for p in run.model.parameters()]
        if run.position.step:
            seen.append(weights)
        elif SIZES[run.position.task - 1]:
            ends.append(weights)

    train(plain)
    train(run, on_step=look)
    for a, b in zip(plain.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert plain.matrix.last.tolist() == run.matrix.last.tolist()
    with run.average.applied():  # pyright: ignore[reportOptionalMemberAccess]
        found = [p.detach().clone() for p in run.model.parameters()]
    for i, value in enumerate(found):
        if average == "task":
            wanted = torch.stack([weights[i] for weights in ends]).mean(0)
        else:
            wanted = seen[0][i]
            for weights in seen[1:]:
                wanted = 0.8 * wanted + 0.2 * weights[i]
        torch.testing.assert_close(value, wanted)


@pytest.mark.parametrize("average", ["task", "ema"])
def test_its_scores_are_those_of_the_model_with_the_average(average: str) -> None:
    run = make_run(average)
    train(run)
    own, averaged = run.matrix, run.matrices["average"]
    assert summary(own) != summary(averaged)
    with run.average.applied():  # pyright: ignore[reportOptionalMemberAccess]
        scores = [
            (run.model(x).argmax(1) == y).double().mean().item()
            for x, y in (SEQUENCE.test(i)[torch.arange(8)] for i in range(len(SIZES)))
        ]
    np.testing.assert_allclose(averaged.last, scores)


@pytest.mark.parametrize("average", ["task", "ema"])
def test_a_stack_has_the_averages_of_its_runs(average: str) -> None:
    stack = make_run(average, [3, 5], policies=2)
    train(stack)
    assert stack.matrices["average"].last.shape == (2, 2, len(SIZES))
    alone = make_run(average, 5)
    train(alone)
    with stack.average.applied(), alone.average.applied():  # pyright: ignore
        replica = stack.model.replica(0, 1)  # pyright: ignore
        pairs = zip(replica.parameters(), alone.model.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("average", ["task", "ema"])
@pytest.mark.parametrize("stop", [4, 7, 9])
def test_a_saved_state_goes_on_bit_for_bit(average: str, stop: int, tmp_path: Path) -> None:
    whole = make_run(average)
    train(whole)
    calls = 0

    def interrupt(run: Run) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise Interrupted

    first = make_run(average)
    with contextlib.suppress(Interrupted):
        train(first, on_step=interrupt)
    torch.save(first.state_dict(), tmp_path / "state")
    again = make_run(average, model=make_model())
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    train(again)
    for run in (whole, again):
        run.average.applied().__enter__()  # pyright: ignore[reportOptionalMemberAccess]
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert whole.matrices["average"].last.tolist() == again.matrices["average"].last.tolist()


class Heads(TaskModel):
    """A trunk, and one head a task in a table; the present one is a parameter."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 4)
        self.head = nn.Parameter(torch.zeros(3, 4))
        self.register_buffer("table", torch.zeros(len(SIZES), 3, 4))
        self.current = 0

    def begin_task(self, task: int) -> None:
        with torch.no_grad():
            self.table[self.current] = self.head
            self.current = task
            self.head.copy_(self.table[task])

    def task_parameters(self) -> list[nn.Parameter]:
        return [self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x).relu() @ self.head.T


@pytest.mark.parametrize("average", ["task", "ema"])
def test_heads_of_single_tasks_are_not_averaged(average: str) -> None:
    torch.manual_seed(0)
    model = Heads()
    run = make_run(average, model=model)
    train(run)
    head, trunk = model.head.detach().clone(), model.trunk.weight.detach().clone()
    table = model.table.clone()
    with run.average.applied():  # pyright: ignore[reportOptionalMemberAccess]
        assert torch.equal(model.head, head)
        assert torch.equal(model.table, table)
        assert not torch.equal(model.trunk.weight, trunk)


class Remembering(Evaluator):
    """Looks at the weights once and tells the same ever after, as where all tasks are one."""

    known: float | None = None

    def __call__(self, model: nn.Module, sequence: Any, tasks: range) -> Any:
        if self.known is None:
            self.known = next(model.parameters()).sum().item()
        return np.full(len(tasks), self.known)


def test_an_evaluator_that_remembers_does_not_mix_weights_and_average() -> None:
    plain = make_run("none", evaluate=Remembering())
    run = make_run("ema", evaluate=Remembering())
    train(plain)
    train(run)
    assert run.matrix.last.tolist() == plain.matrix.last.tolist()
    assert run.matrices["average"].last.tolist() != run.matrix.last.tolist()


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid average: 'mean'"):
        TrainSettings(average="mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"Invalid average_decay: 1\.0"):
        TrainSettings(average_decay=1.0)
