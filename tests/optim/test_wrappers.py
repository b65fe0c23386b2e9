"""``end_task`` and ``reset`` reach the optimizer inside wrappers, and know those of others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import longtail
from helpers.optimizers import (
    assert_same,
    parameters,
    train,
)
from longtail import ContinualAdam, ContinualAdamW, end_task
from longtail.optim import reset


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
