"""``second_moment="task_seen"``: what no earlier task has moved takes the steps of plain Adam."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from helpers.optimizers import IMPLEMENTATIONS, assert_same, states
from longtail import ContinualAdam, ContinualAdamW
from longtail.names import POLICIES
from longtail.replicas import Replicas
from longtail.training.optimizer import build_optimizer
from longtail.training.settings import TrainSettings

SUPPORTED = "longtail.optim.loops._get_capturable_supported_devices"
NEW = slice(0, 3)  # the coordinates that the first tasks leave alone
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}


@pytest.fixture(params=IMPLEMENTATIONS.values(), ids=list(IMPLEMENTATIONS))
def implementation(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def make(*kinds: str, dtype: torch.dtype = torch.float64) -> list[Parameter]:
    return [Parameter(torch.linspace(-1, 1, 8, dtype=dtype)) for _ in kinds or ("",)]


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
                p.grad = grad.to(p.dtype).expand(p.shape).contiguous()
            optimizer.step()
        optimizer.end_task()


OLD_TASKS = [(5, False), (4, False)]


def test_new_coordinates_step_as_in_adam_and_the_others_as_in_the_paper(
    implementation: dict[str, Any],
) -> None:
    seen, task = make(), make()
    ours = ContinualAdam(seen, second_moment="task_seen", beta3=0.0, **implementation)
    papers = ContinualAdam(task, second_moment="task", beta3=0.0, **implementation)
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
            params[0].grad = grad.clone()
            optimizer.step()
        moved, moved_papers, moved_adam = (
            x[0].detach() - y for x, y in zip((seen, task, plain), before, strict=True)
        )
        assert_same([moved[NEW]], [moved_adam[NEW]], rtol=1e-10, atol=0.0)
        assert_same([moved[3:]], [moved_papers[3:]], **TOLERANCE)
        # what the policy is for: c = 9 steps before, and eps is small beside the gradients
        factor = math.sqrt((t + 9) / t)
        assert_same([moved_papers[NEW]], [factor * moved[NEW]], rtol=1e-5, atol=0.0)


def test_the_average_is_that_of_task_and_counts_the_steps_before_the_first_move(
    implementation: dict[str, Any],
) -> None:
    results = []
    for kind in ("task", "task_seen"):
        params = make()
        optimizer = ContinualAdam(params, second_moment=kind, **implementation)
        train(optimizer, params, OLD_TASKS)
        assert not optimizer.state[params[0]]["past_exp_avg_sq"][NEW].any()
        for _ in range(3):
            params[0].grad = torch.full((8,), 2.0, dtype=torch.float64)
            optimizer.step()
        optimizer.end_task()
        results.append(states(optimizer, params))
        # a constant gradient of 2 has v^ = 4, over three of twelve steps
        past = optimizer.state[params[0]]["past_exp_avg_sq"]
        assert past[NEW].tolist() == pytest.approx([3 * 4 / 12] * 3, rel=1e-12)
    assert_same(*results)


def test_a_coordinate_is_averaged_from_its_second_task_on(implementation: dict[str, Any]) -> None:
    params = make()
    optimizer = ContinualAdam(params, beta3=0.0, second_moment="task_seen", **implementation)
    train(optimizer, params, OLD_TASKS)
    grad = torch.full((8,), 2.0, dtype=torch.float64)
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


def test_policies_side_by_side_are_what_they_are_alone(implementation: dict[str, Any]) -> None:
    kinds = ("task", "task_seen", "reset", "ema")
    tasks = [*OLD_TASKS, (3, True), (2, True)]
    together = make(*kinds)
    groups = [{"params": [p], "second_moment": k} for p, k in zip(together, kinds, strict=True)]
    optimizer = ContinualAdamW(groups, lr=0.1, **implementation)
    train(optimizer, together, tasks)
    for p, kind in zip(together, kinds, strict=True):
        alone = make()
        single = ContinualAdamW(alone, lr=0.1, second_moment=kind, **implementation)
        train(single, alone, tasks)
        assert_same([p, *states(optimizer, [p])], [*alone, *states(single, alone)], **TOLERANCE)
    assert not torch.allclose(together[0][NEW], together[1][NEW], rtol=1e-3)


@pytest.mark.parametrize("fused", [False, True])
def test_a_stack_has_policies_end_to_end(fused: bool) -> None:
    names = ("continual", "continual_seen", "reset")
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


def test_it_survives_a_state_dict_and_a_change_of_policy(implementation: dict[str, Any]) -> None:
    a = make()
    first = ContinualAdamW(a, second_moment="task_seen", first_moment="task", **implementation)
    train(first, a, OLD_TASKS)
    b = make()
    b[0].data.copy_(a[0].data)
    second = ContinualAdamW(b, **implementation)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.param_groups[0]["second_moment"] == "task_seen"
    c = make()
    third = ContinualAdamW(c, first_moment="task", **implementation)  # from "task" to "task_seen"
    train(third, c, OLD_TASKS)
    third.param_groups[0]["second_moment"] = "task_seen"
    for optimizer, params in ((first, a), (second, b), (third, c)):
        train(optimizer, params, [(3, True), (2, True)], seed=1)
    assert_same([*a, *states(first, a)], [*b, *states(second, b)])
    assert_same([*a, *states(first, a)], [*c, *states(third, c)], **TOLERANCE)


@pytest.mark.parametrize("foreach", [False, True])
def test_counts_in_tensors_give_the_same(foreach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch that CUDA graphs and compiled steps use."""
    monkeypatch.setattr(SUPPORTED, lambda: ["cpu"])
    results = []
    capturable: dict[str, Any] = {"capturable": True, "foreach": foreach}
    for kwargs in ({}, capturable):
        params = make(dtype=torch.float32)
        optimizer = ContinualAdamW(params, second_moment="task_seen", **kwargs)
        train(optimizer, params, [*OLD_TASKS, (3, True)])
        results.append(params)
    assert_same(*results, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_implementations_agree_in_lower_precision(dtype: torch.dtype) -> None:
    results = []
    for kwargs in IMPLEMENTATIONS.values():
        params = make(dtype=dtype)
        optimizer = ContinualAdamW(params, lr=0.01, second_moment="task_seen", **kwargs)
        train(optimizer, params, [*OLD_TASKS, (3, True)])
        results.append(params)
    assert_same(results[0], results[1], rtol=1e-6, atol=1e-7)
    assert_same(results[0], results[2], rtol=1e-5, atol=1e-6)


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
