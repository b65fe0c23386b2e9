"""``second_moment="task_seen"``: what no earlier task has moved takes the steps of plain Adam."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from helpers import optimizers
from helpers.optimizers import assert_same, states
from longtail import ContinualAdam
from longtail.names import POLICIES
from longtail.replicas import Replicas
from longtail.training.optimizer import build_optimizer
from longtail.training.settings import TrainSettings

NEW = slice(0, 3)  # the coordinates that the first tasks leave alone
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}


pytestmark = pytest.mark.filterwarnings("ignore:.*capturable")


def make() -> list[Parameter]:
    return [Parameter(torch.linspace(-1, 1, 8, dtype=torch.float64, device=optimizers.device))]


def train(
    optimizer: Any, params: Iterable[Tensor], tasks: Iterable[tuple[int, bool]], seed: int = 0
) -> None:
    """Tasks of so many steps, which move the new coordinates or do not."""
    generator = torch.Generator().manual_seed(seed)
    for steps, moves_new in tasks:
        for _ in range(steps):
            grad = torch.randn(8, generator=generator, dtype=torch.float64)
            grad[NEW] *= moves_new
            for p in params:
                p.grad = grad.to(p).expand(p.shape).contiguous()
            optimizer.step()
        optimizer.end_task()


OLD_TASKS = [(5, False), (4, False)]


def test_new_coordinates_step_as_in_adam_and_the_others_as_in_the_paper() -> None:
    seen, task = make(), make()
    ours = ContinualAdam(seen, second_moment="task_seen", beta3=0.0)
    papers = ContinualAdam(task, second_moment="task", beta3=0.0)
    for optimizer, params in ((ours, seen), (papers, task)):
        train(optimizer, params, OLD_TASKS)
    assert_same(seen, task)
    plain = make()
    adam = torch.optim.Adam(plain)
    generator = torch.Generator().manual_seed(1)
    for t in range(1, 4):
        grad = torch.randn(8, generator=generator, dtype=torch.float64)
        before = [x[0].detach().clone() for x in (seen, task, plain)]
        for optimizer, params in ((ours, seen), (papers, task), (adam, plain)):
            params[0].grad = grad.to(params[0])
            optimizer.step()
        moved, moved_papers, moved_adam = (
            x[0].detach() - y for x, y in zip((seen, task, plain), before, strict=True)
        )
        assert_same([moved[NEW]], [moved_adam[NEW]], rtol=1e-10, atol=0.0)
        assert_same([moved[3:]], [moved_papers[3:]], **TOLERANCE)
        # what the policy is for: c = 9 steps before, and eps is small beside the gradients
        factor = math.sqrt((t + 9) / t)
        assert_same([moved_papers[NEW]], [factor * moved[NEW]], rtol=1e-5, atol=0.0)


def test_the_average_is_that_of_task_and_counts_the_steps_before_the_first_move() -> None:
    results = []
    for kind in ("task", "task_seen"):
        params = make()
        optimizer = ContinualAdam(params, second_moment=kind)
        train(optimizer, params, OLD_TASKS)
        assert not optimizer.state[params[0]]["past_exp_avg_sq"][NEW].any()
        for _ in range(3):
            params[0].grad = torch.full_like(params[0], 2.0)
            optimizer.step()
        optimizer.end_task()
        results.append(states(optimizer, params))
        # a constant gradient of 2 has v^ = 4, over three of twelve steps
        past = optimizer.state[params[0]]["past_exp_avg_sq"]
        assert past[NEW].tolist() == pytest.approx([3 * 4 / 12] * 3, rel=1e-12)
    assert_same(*results)


def test_a_coordinate_is_averaged_from_its_second_task_on() -> None:
    params = make()
    optimizer = ContinualAdam(params, beta3=0.0, second_moment="task_seen")
    train(optimizer, params, OLD_TASKS)
    grad = torch.full_like(params[0], 2.0)
    for _ in range(3):
        params[0].grad = grad.clone()
        optimizer.step()
    optimizer.end_task()
    before = params[0].detach().clone()
    params[0].grad = grad.clone()
    optimizer.step()
    moved = before - params[0].detach()
    # three of the twelve steps before had a gradient, the same as now: v' = 4 (1 + 3) / (1 + 12)
    assert moved[NEW].tolist() == pytest.approx([1e-3 * math.sqrt(13 / 4)] * 3, rel=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_a_stack_has_policies_end_to_end(fused: bool) -> None:
    names = ("continual", "continual_seen", "new")
    torch.manual_seed(0)
    models = [torch.nn.Linear(8, 1, bias=False) for _ in range(2)]

    def trained(*chosen: str) -> list[Tensor]:
        stack = Replicas(models, policies=len(chosen))
        settings = TrainSettings(lr=0.1, fused=fused)
        optimizer = build_optimizer(stack, [POLICIES[name] for name in chosen], settings)
        train(optimizer, list(stack.parameters()), [*OLD_TASKS, (3, True)])
        return list(stack.parameters())

    stacked = trained(*names)
    assert len(stacked) == 3
    for weight, name in zip(stacked, names, strict=True):
        assert_same([weight], trained(name), rtol=1e-6, atol=1e-7)


def test_autograd_runs_through_a_step_of_old_and_new_coordinates() -> None:
    def after_a_step(value: Tensor, gradient: Tensor) -> Tensor:
        p = value.clone()
        p.grad = gradient
        optimizer = ContinualAdam([p], lr=0.1, differentiable=True, second_moment="task_seen")
        past = torch.tensor([0.0, 0.3, 0.0, 0.2], dtype=torch.float64)
        counts = {"step": torch.tensor(2.0), "past_steps": torch.tensor(7.0)}
        optimizer.state[p].update({"past_exp_avg_sq": past, **counts})
        optimizer.step()
        return p

    inputs = [torch.rand(4, dtype=torch.float64) + 0.1 for _ in range(2)]
    assert torch.autograd.gradcheck(after_a_step, [x.requires_grad_() for x in inputs])


def test_a_broken_past_is_not_taken_for_an_empty_one(implementation: dict[str, Any]) -> None:
    params = make()
    optimizer = ContinualAdam(params, second_moment="task_seen", **implementation)
    train(optimizer, params, OLD_TASKS)
    optimizer.state[params[0]]["past_exp_avg_sq"][5] = math.nan
    train(optimizer, params, [(1, True)])
    assert params[0].isnan().tolist() == [i == 5 for i in range(8)]


def test_it_is_a_policy_of_the_second_moment_only() -> None:
    with pytest.raises(ValueError, match="Invalid first_moment value: 'task_seen'"):
        ContinualAdam(make(), first_moment="task_seen")
