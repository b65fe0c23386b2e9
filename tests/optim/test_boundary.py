"""``end_task``: what it does to the state, and how it is found inside wrappers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import longtail
from helpers.optimizers import (
    FIRST_MOMENTS,
    IMPLEMENTATIONS,
    assert_same,
    parameters,
    set_gradients,
    states,
    train,
)
from longtail import ContinualAdam, ContinualAdamW, end_task
from longtail.optim import reset


@pytest.fixture(params=IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def implementation(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_boundary_folds_by_number_of_steps(implementation: dict[str, Any]) -> None:
    p = Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = ContinualAdam([p], **implementation)
    for gradient, steps in ((1.0, 3), (2.0, 1)):
        for _ in range(steps):
            p.grad = torch.full_like(p, gradient)
            optimizer.step()
        optimizer.end_task()
    state = optimizer.state[p]
    # a constant gradient g has v^ = g^2
    assert state["past_exp_avg_sq"].item() == pytest.approx((3 * 1 + 1 * 4) / 4, rel=1e-12)
    assert state["past_steps"].item() == 4
    assert state["step"].item() == 0
    assert state["exp_avg"].item() == 0
    assert state["exp_avg_sq"].item() == 0


@pytest.mark.parametrize("first_moment", FIRST_MOMENTS)
def test_state_is_complete_after_the_first_step_and_changed_in_place(
    implementation: dict[str, Any], first_moment: str
) -> None:
    params = parameters((3, 2), (4,))
    optimizer = ContinualAdam(params, first_moment=first_moment, **implementation)
    train(optimizer, params, [0])
    keys = {"step", "exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_steps"}
    keys |= {"past_exp_avg"} if first_moment == "task" else set()
    for p in params:
        assert optimizer.state[p].keys() == keys
        assert all(isinstance(x, torch.Tensor) for x in optimizer.state[p].values())
        for key in ("past_exp_avg_sq", "past_steps"):  # DCP's dry step must leave no past
            assert not optimizer.state[p][key].any()
    before = [(id(x), x.data_ptr()) for x in states(optimizer, params)]
    optimizer.end_task()
    train(optimizer, params, [1])
    optimizer.end_task()
    assert [(id(x), x.data_ptr()) for x in states(optimizer, params)] == before


def test_boundary_without_a_step_changes_nothing(implementation: dict[str, Any]) -> None:
    params = parameters((3,), (2,))
    optimizer = ContinualAdam(params, **implementation)
    optimizer.end_task()
    assert not optimizer.state
    train(optimizer, params, range(3), boundary_after=[2])
    before = [x.clone() for x in states(optimizer, params)]
    optimizer.end_task()
    assert_same(states(optimizer, params), before)
    assert "tasks seen: 1\n" in repr(optimizer)


def test_parameter_that_sat_out_a_task_keeps_its_past(implementation: dict[str, Any]) -> None:
    trunk, head = parameters((3,), (2,))
    optimizer = ContinualAdam([trunk, head], first_moment="task", **implementation)
    train(optimizer, [trunk, head], range(3), boundary_after=[2])
    kept = [x.clone() for x in states(optimizer, [head])]
    head.grad = None
    for seed in range(5, 9):
        set_gradients(seed, [trunk])
        optimizer.step()
    optimizer.end_task()
    assert_same(states(optimizer, [head]), kept)
    assert optimizer.state[trunk]["past_steps"].item() == 7
    assert optimizer.state[head]["past_steps"].item() == 3


def test_large_past_gradients_make_later_steps_small() -> None:
    p = Parameter(torch.zeros(2))
    optimizer = ContinualAdam([p], lr=0.1, beta3=0.0)
    for _ in range(100):
        p.grad = torch.tensor([10.0, 0.01])
        optimizer.step()
    optimizer.end_task()
    before = p.detach().clone()
    p.grad = torch.tensor([0.1, 0.1])
    optimizer.step()
    moved = (p.detach() - before).abs()
    assert moved[0] < 0.02 * moved[1]


def test_policies_differ_between_groups() -> None:
    a, b = parameters((2,), (2,))
    optimizer = ContinualAdam([{"params": [a]}, {"params": [b], "second_moment": "ema"}])
    train(optimizer, [a, b], range(3), boundary_after=[2])
    assert not optimizer.state[a]["exp_avg_sq"].any()
    assert optimizer.state[b]["exp_avg_sq"].all()
    assert optimizer.state[b]["past_steps"].item() == 3


def test_step_counts_survive_a_change_of_first_moment_policy(
    implementation: dict[str, Any],
) -> None:
    params = parameters((2,))
    optimizer = ContinualAdam(params, **implementation)
    train(optimizer, params, range(3), boundary_after=[2])
    optimizer.param_groups[0]["first_moment"] = "task"
    train(optimizer, params, range(3), boundary_after=[2])
    assert optimizer.state[params[0]]["past_exp_avg"].any()


@pytest.mark.parametrize("name", ["first_moment", "second_moment"])
def test_a_change_to_an_unknown_policy_is_refused_and_the_past_is_kept(
    implementation: dict[str, Any], name: str
) -> None:
    params = parameters((2,))
    optimizer = ContinualAdam(params, **implementation)
    train(optimizer, params, range(4), boundary_after=[1])
    optimizer.param_groups[0][name] = "tasks"
    before = [x.clone() for x in states(optimizer, params)]
    for act in (optimizer.step, optimizer.end_task):
        with pytest.raises(ValueError, match=f"Invalid {name} value: 'tasks', must be one of"):
            act()
    assert_same(states(optimizer, params), before)


class Wrapper:
    """Forwards what it knows and nothing else, as Accelerate's does."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_end_task_reaches_through_wrappers(depth: int) -> None:
    params = parameters((2,))
    optimizer = ContinualAdamW(params)
    outer: Any = optimizer
    for _ in range(depth):
        outer = Wrapper(outer)
    train(optimizer, params, range(2), step=outer.step)
    end_task(outer)
    assert optimizer.state[params[0]]["past_steps"].item() == 2


@pytest.mark.parametrize("name", ["optimizer", "_optimizer", "optim"])
def test_end_task_knows_what_wrappers_call_the_optimizer(name: str) -> None:
    params = parameters((2,))
    optimizer = ContinualAdamW(params)
    train(optimizer, params, range(2))
    end_task(SimpleNamespace(**{name: optimizer}))
    assert optimizer.state[params[0]]["past_steps"].item() == 2


def test_end_task_prefers_the_innermost_when_a_wrapper_poses_as_the_class() -> None:
    """Fabric's wrapper subclasses the optimizer's class and copies its attributes once."""
    params = parameters((2,))
    optimizer = ContinualAdam(params)

    class Posing(ContinualAdam):
        def __init__(self, inner: ContinualAdam) -> None:
            self.__dict__.update(inner.__dict__)
            self._optimizer = inner

    posing = Posing(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())  # replaces optimizer.state
    train(optimizer, params, range(2))
    end_task(posing)
    assert optimizer.state[params[0]]["past_steps"].item() == 2


def test_end_task_says_what_it_was_given() -> None:
    with pytest.raises(TypeError, match=r"end_task\(\) does not know the state of .*Rprop"):
        end_task(Wrapper(torch.optim.Rprop(parameters((2,)))))
    with pytest.raises(TypeError, match="NoneType"):
        end_task(None)
    loop = SimpleNamespace()
    loop.optimizer = loop
    with pytest.raises(TypeError, match="SimpleNamespace"):
        end_task(loop)
    with pytest.raises(ValueError, match="ContinualAdam has first_moment and second_moment for"):
        end_task(ContinualAdam(parameters((2,))), first="reset")


def test_end_task_of_an_optimizer_that_is_not_ours() -> None:
    params = parameters((2,))
    optimizer = torch.optim.AdamW(params)
    train(optimizer, params, range(3))
    kept = optimizer.state[params[0]]["exp_avg_sq"].clone()
    edit = end_task(Wrapper(optimizer))
    assert str(edit) == "AdamW, 1 parameters: reset exp_avg; kept step, exp_avg_sq"
    assert not optimizer.state[params[0]]["exp_avg"].any()
    assert torch.equal(optimizer.state[params[0]]["exp_avg_sq"], kept)
    edit = end_task(optimizer, second="reset")
    assert optimizer.state[params[0]]["step"] == 0
    assert not optimizer.state[params[0]]["exp_avg_sq"].any()
    train(optimizer, params, range(3))
    longtail.reset(Wrapper(optimizer))
    assert not optimizer.state


def test_reset_forgets_all_tasks(implementation: dict[str, Any]) -> None:
    a, b = parameters((3,), (2,)), parameters((3,), (2,))
    optimizer = ContinualAdamW(a, first_moment="task", **implementation)
    begun = [p.detach().clone() for p in a]
    train(optimizer, a, range(6), boundary_after=[2, 4])
    edit = longtail.reset(Wrapper(optimizer))
    assert "past_exp_avg_sq" in edit.reset
    assert "tasks seen: 0\nsteps remembered: 0\n" in repr(optimizer)
    with torch.no_grad():
        for p, start in zip(a, begun, strict=True):
            p.copy_(start)
    new = ContinualAdamW(b, first_moment="task", **implementation)
    train(optimizer, a, range(6), boundary_after=[2])
    train(new, b, range(6), boundary_after=[2])
    assert_same(a, b)


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = torch.nn.Linear(2, 1)
    optimizer = ContinualAdam(model.parameters())
    model, prepared = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    prepared.step()
    end_task(prepared)
    assert "tasks seen: 1" in repr(optimizer)


def test_hugging_face_trainer(tmp_path: Path) -> None:
    """The recipe of the docs: `train()` twice with one optimizer, a boundary after each."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Regression(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            out = self.linear(x).squeeze(-1)
            return {"loss": (out - labels).square().mean(), "logits": out}

    class EndTask(transformers.TrainerCallback):
        def on_train_end(self, args, state, control, optimizer=None, **kwargs):
            end_task(optimizer)

    data = [{"x": torch.randn(3), "labels": torch.tensor(1.0)} for _ in range(8)]
    model = Regression()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[EndTask()]
    )
    trainer.train()
    trainer.train()
    state = optimizer.state[model.linear.weight]
    assert state["past_steps"] == 4
    assert state["step"] == 0
    assert optimizer.param_groups[0]["tasks_seen"] == 2


def test_an_old_checkpoint_whose_counts_are_numbers_can_be_reset() -> None:
    model = nn.Linear(3, 2)
    theirs = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    theirs.step()
    saved = theirs.state_dict()
    for state in saved["state"].values():
        state["step"] = int(state["step"])
    ours = ContinualAdamW(model.parameters())
    ours.load_state_dict(saved)
    assert reset(ours).parameters == 2
    ours.step()
    ours.end_task()
