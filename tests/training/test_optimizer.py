"""Settings and policies as the optimizer gets them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from longtail.names import POLICIES
from longtail.optim.plan import uses_fused
from longtail.replicas import Replicas
from longtail.tasks.task_models import TaskModel
from longtail.training.optimizer import (
    begin_task,
    build_optimizer,
    load_optimizer,
    optimizer_state,
)
from longtail.training.optimizer_class import core
from longtail.training.settings import TrainSettings


@pytest.mark.parametrize("fused", [False, True])
def test_the_fused_kernel_is_used_if_and_only_if_asked_for(fused: bool) -> None:
    """Left open it would be used on a GPU, whatever the setting says."""
    settings = TrainSettings(fused=fused)
    optimizer = build_optimizer(torch.nn.Linear(2, 1), [POLICIES["continual"]], settings)
    (group,) = optimizer.param_groups
    assert group["fused"] is fused
    assert uses_fused(group) is fused


class OneHead(TaskModel):
    """A trunk of one number, a head of one number a task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Parameter(torch.zeros(1))
        self.begun: list[int] = []

    def begin_task(self, task: int) -> None:
        self.begun.append(task)

    def task_parameters(self) -> list[torch.nn.Parameter]:
        return [self.head]


@pytest.mark.parametrize("policy", POLICIES)
def test_parameters_of_one_task_have_plain_adam_and_begin_each_task_at_zero(policy: str) -> None:
    model = OneHead()
    optimizer = build_optimizer(model, [POLICIES[policy]], TrainSettings(lr=0.1))
    place = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    head, trunk = place[id(model.head)], place[id(model.trunk)]
    assert (head["first_moment"], head["second_moment"], head["beta3"]) == ("reset", "reset", 0.0)
    assert trunk["second_moment"] == POLICIES[policy].second_moment
    for task, gradient in enumerate((1.0, -3.0, 0.5)):
        begin_task(model, optimizer, task)
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        before = model.head.item()
        optimizer.step()
        # the first step of Adam is the learning rate, whatever the tasks before were like
        assert model.head.item() - before == pytest.approx(-0.1 if gradient > 0 else 0.1, rel=1e-4)
        if POLICIES[policy].boundary:
            optimizer.end_task()
    assert model.begun == [0, 1, 2]
    steps = float(optimizer.state[model.trunk]["step"])
    assert steps == (0 if POLICIES[policy].boundary else 3)  # the trunk's count is its own


def test_the_heads_of_all_policies_share_a_group() -> None:
    stack = Replicas([OneHead(), OneHead()], policies=2)
    policies = [POLICIES["continual"], POLICIES["continual_seen"]]
    groups = build_optimizer(stack, policies, TrainSettings()).param_groups
    assert sorted(len(group["params"]) for group in groups) == [1, 1, 2]


def test_a_replica_keeps_in_a_stack_the_bytes_that_it_keeps_alone() -> None:
    """Also under the second of two policies that are alike but for the data they learn on."""
    policy = replace(POLICIES["continual"], past_dtype="uint8")
    models = [torch.nn.Linear(5, 4) for _ in range(3)]
    stack = Replicas(models, policies=2)
    stacked = build_optimizer(stack, [policy, policy], TrainSettings())
    singles = [build_optimizer(model, [policy], TrainSettings()) for model in models]
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        for member in stack.members:
            for name, p in member.named_parameters():
                p.grad = torch.randn(p.shape, generator=generator)
                for model, grad in zip(models, p.grad, strict=True):
                    model.get_parameter(name).grad = grad.clone()
        for optimizer in (stacked, *singles):
            optimizer.step()
            optimizer.end_task()
    last = dict(stack.members[1].named_parameters())
    for i, (model, single) in enumerate(zip(models, singles, strict=True)):
        for name, p in model.named_parameters():
            alone = single.state[p]["past_exp_avg_sq"]
            assert alone.dtype == torch.uint8
            assert torch.equal(stacked.state[last[name]]["past_exp_avg_sq"][i], alone)


class Aside(torch.optim.SGD):
    """Keeps a count and a tensor to itself."""

    def __init__(self, params: Any, lr: float, kept: Any = None) -> None:
        super().__init__(params, lr)
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.steps, self.sums, self.kept = 0, [torch.zeros(2)], kept


def test_what_an_optimizer_keeps_beside_its_state_is_in_a_snapshot() -> None:
    model, cpu = torch.nn.Linear(2, 1), torch.device("cpu")
    optimizer = Aside(model.parameters(), 0.1)
    optimizer.steps = 7
    optimizer.sums[0] += 3
    state = optimizer_state(optimizer, model)
    fresh = Aside(model.parameters(), 0.1)
    load_optimizer(fresh, model, state, cpu)
    assert fresh.steps == 7
    assert fresh.sums[0].tolist() == [3, 3]
    assert state["beside"].keys() == {"steps", "sums", "kept"}
    with pytest.raises(ValueError, match=r"Aside\.kept is or holds a set, .* a state_dict\(\)"):
        optimizer_state(Aside(model.parameters(), 0.1, {1, 2}), model)


@pytest.mark.parametrize("name", core())
def test_known_optimizers_keep_nothing_beside_it(name: str) -> None:
    model = torch.nn.Linear(2, 1)
    settings = TrainSettings(optimizer=name)
    optimizer = build_optimizer(model, [POLICIES["kept"]], settings)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer_state(optimizer, model)["beside"] == {}
