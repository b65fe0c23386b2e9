"""Boundaries for optimizers that are not ours: what is kept is kept, what is reset is as new."""

from typing import Any

import pytest
import torch
from torch import nn

from longtail.optim.other_optimizers import KNOWN, end_task_of_other, reset_other

TORCH = {
    name.removeprefix("torch."): moments for name, moments in KNOWN.items() if "torch." in name
}


def make(name: str) -> tuple[nn.Parameter, Any]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 6))
    settings: dict[str, dict[str, Any]] = {
        "SGD": {"momentum": 0.9},
        "RMSprop": {"momentum": 0.9, "centered": True},
        "Adagrad": {"initial_accumulator_value": 0.5},
        "Adam": {"amsgrad": True},
    }
    return weight, getattr(torch.optim, name)([weight], lr=1e-3, **settings.get(name, {}))


def steps(weight: nn.Parameter, optimizer: Any, count: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        weight.grad = torch.randn(weight.shape, generator=generator)
        if "SparseAdam" in type(optimizer).__name__:
            weight.grad = weight.grad.to_sparse()
        optimizer.step()


def copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in state.items()}


@pytest.mark.parametrize("name", TORCH)
def test_every_optimizer_of_torch_in_the_table(name: str) -> None:
    moments = TORCH[name]
    weight, optimizer = make(name)
    steps(weight, optimizer, 5)
    before = copied(optimizer.state[weight])
    edit = end_task_of_other(optimizer, "reset", "keep")
    state = optimizer.state[weight]
    for key, value in before.items():
        if key in moments.first:
            assert key in edit.reset
            assert float(state[key].float().abs().max()) == (1.0 if key == "mu_product" else 0.0)
        else:
            assert key in edit.kept
            torch.testing.assert_close(state[key], value, rtol=0, atol=0)
    steps(weight, optimizer, 2, seed=1)

    weight, optimizer = make(name)
    begun = weight.detach().clone()
    steps(weight, optimizer, 5)
    end_task_of_other(optimizer, "reset", "reset")
    with torch.no_grad():
        weight.copy_(begun)
    steps(weight, optimizer, 3, seed=2)
    fresh, new = make(name)
    steps(fresh, new, 3, seed=2)
    torch.testing.assert_close(weight, fresh, rtol=0, atol=0)


@pytest.mark.parametrize("name", TORCH)
def test_reset_is_a_new_optimizer(name: str) -> None:
    weight, optimizer = make(name)
    begun = weight.detach().clone()
    steps(weight, optimizer, 5)
    edit = reset_other(optimizer)
    assert edit.parameters == 1
    assert not edit.kept
    with torch.no_grad():
        weight.copy_(begun)
    steps(weight, optimizer, 3, seed=2)
    fresh, new = make(name)
    steps(fresh, new, 3, seed=2)
    torch.testing.assert_close(weight, fresh, rtol=0, atol=0)


def test_the_step_after_a_boundary_is_not_blown_up() -> None:
    """The count stays with v: as 1 it would divide v by 1 - beta2."""
    weight, optimizer = make("AdamW")
    steps(weight, optimizer, 2000)
    end_task_of_other(optimizer, "reset", "keep")
    before = weight.detach().clone()
    steps(weight, optimizer, 1, seed=3)
    moved = (weight.detach() - before).abs().max()
    assert 0 < moved < 1e-3  # of lr 1e-3, of which m from zero leaves a tenth
    assert str(end_task_of_other(optimizer, "reset", "keep")) == (
        "AdamW, 1 parameters: reset exp_avg; kept step, exp_avg_sq"
    )


def test_what_is_refused() -> None:
    weight, optimizer = make("Adam")
    steps(weight, optimizer, 1)
    with pytest.raises(ValueError, match="Invalid second: 'task', must be 'reset' or 'keep'"):
        end_task_of_other(optimizer, "reset", "task")
    with pytest.raises(ValueError, match="Adam counts steps for both moments"):
        end_task_of_other(optimizer, "keep", "reset")
    optimizer.state[weight]["secret"] = 1
    with pytest.raises(TypeError, match="does not know the state secret of Adam"):
        end_task_of_other(optimizer, "reset", "keep")
    for unknown in (torch.optim.LBFGS([weight]), torch.optim.Rprop([weight]), object()):
        with pytest.raises(TypeError, match=r"does not know the state of .*; it knows Continual"):
            end_task_of_other(unknown, "reset", "keep")

    class Mine(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([weight], {})

    with pytest.raises(TypeError, match=r"Mine; it knows Continual Adam and torch.Adam"):
        reset_other(Mine())


def test_schedule_free() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3))
    optimizer = schedulefree.AdamWScheduleFree([weight], lr=0.1)
    optimizer.train()
    steps(weight, optimizer, 20)
    optimizer.eval()
    average = weight.detach().clone()
    optimizer.train()
    v = optimizer.state[weight]["exp_avg_sq"].clone()
    edit = end_task_of_other(optimizer, "reset", "keep")
    assert edit.reset == ("z",)
    assert torch.equal(optimizer.state[weight]["exp_avg_sq"], v)
    torch.testing.assert_close(optimizer.state[weight]["z"], average)
    torch.testing.assert_close(weight.detach(), average)
    assert optimizer.param_groups[0]["k"] == 20
    assert optimizer.param_groups[0]["train_mode"]
    steps(weight, optimizer, 1)
    optimizer.eval()
    # the new average has one term, the first iterate
    torch.testing.assert_close(weight.detach(), optimizer.state[weight]["z"])
    optimizer.train()
    reset_other(optimizer)
    assert not optimizer.state
    assert optimizer.param_groups[0]["k"] == 0


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "_AdamW"])
@pytest.mark.filterwarnings("ignore")
def test_torchao(name: str) -> None:
    torchao = pytest.importorskip("torchao.optim")
    kind = getattr(torchao, name, None)
    if kind is None:
        pytest.skip(f"this torchao has no {name}")
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 128))
    optimizer = kind([weight], lr=1e-3)
    optimizer.state[weight].update(
        step=torch.tensor(5.0),
        exp_avg=optimizer._new_buffer(weight, True),
        exp_avg_sq=optimizer._new_buffer(weight, False),
    )
    for key in ("exp_avg", "exp_avg_sq"):
        optimizer.state[weight][key].copy_(torch.rand(64, 128))

    def value(key: str) -> torch.Tensor:
        found = optimizer.state[weight][key]
        return found.dequantize() if hasattr(found, "dequantize") else found

    before = value("exp_avg_sq").clone()
    edit = end_task_of_other(optimizer, "reset", "keep")
    assert edit.reset == ("exp_avg",)
    assert not value("exp_avg").any()
    assert torch.equal(value("exp_avg_sq"), before)
    assert before.any()


@pytest.mark.filterwarnings("ignore")
def test_bitsandbytes() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 128))
    optimizer = bitsandbytes.optim.AdamW8bit([weight], lr=1e-3)
    try:
        steps(weight, optimizer, 5)
    except Exception as error:
        pytest.skip(f"bitsandbytes takes no step here: {error}")
    state = optimizer.state[weight]
    kept = state["state2"].clone(), state["absmax2"].clone()
    edit = end_task_of_other(optimizer, "reset", "keep")
    assert {"state1", "absmax1"} <= set(edit.reset)
    assert not state["absmax1"].any()
    assert torch.equal(state["state2"], kept[0])
    assert torch.equal(state["absmax2"], kept[1])
    assert state["step"] == 5
    before = weight.detach().clone()
    steps(weight, optimizer, 1, seed=3)
    assert 0 < (weight.detach() - before).abs().max() < 1e-3
