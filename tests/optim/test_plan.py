"""The plan of a fused step: used again while it is true, made anew whatever has changed."""

import copy
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from helpers import optimizers
from helpers.optimizers import assert_same, parameters, set_gradients, states, train
from longtail import ContinualAdam, ContinualAdamW
from longtail.optim import _torch

LOOP = {"foreach": False, "fused": False}
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
# With capturable the scalars of the for-loop are float32 tensors, as torch's are.
CAPTURABLE_LOOP = {"rtol": 1e-6, "atol": 1e-7}
SHAPES = ((4, 4), (33,), (), (130, 5), (6,), (2,))
GROUPS: list[dict[str, Any]] = [
    {"first_moment": "task", "second_moment": "task", "beta3": 0.0},
    {"second_moment": "reset", "lr": 0.3, "betas": (0.8, 0.9), "weight_decay": 0.0},
    {"first_moment": "ema", "second_moment": "ema", "maximize": True},
]


@pytest.fixture(params=optimizers.FUSED_WAYS)
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    device, arguments = request.param
    monkeypatch.setattr(optimizers, "device", device)
    return arguments


def moved_weights(optimizer: Any, params: list[Parameter]) -> None:
    params[1].data = params[1].data.clone()


def transposed_weights(optimizer: Any, params: list[Parameter]) -> None:
    params[0].grad = None
    params[0].data = params[0].data.t()  # at the same address


def a_replaced_state_tensor(optimizer: Any, params: list[Parameter]) -> None:
    state = optimizer.state[params[3]]
    state["exp_avg"] = state["exp_avg"] + 1


def a_state_tensor_with_other_memory(optimizer: Any, params: list[Parameter]) -> None:
    past = optimizer.state[params[2]]["past_exp_avg_sq"]  # neither the first nor the last
    past.data = past.data + 1


def a_transposed_state_tensor(optimizer: Any, params: list[Parameter]) -> None:
    state = optimizer.state[params[0]]
    state["exp_avg"] = state["exp_avg"].t()  # another tensor at the same address


def a_count_with_other_memory(optimizer: Any, params: list[Parameter]) -> None:
    steps = optimizer.state[params[3]]["past_steps"]
    steps.data = steps.data + 5


def a_count_as_a_number(optimizer: Any, params: list[Parameter]) -> None:
    state = optimizer.state[params[0]]
    state["step"] = float(state["step"])


def a_replaced_state_dict(optimizer: Any, params: list[Parameter]) -> None:
    old = optimizer.state[params[0]]
    optimizer.state[params[0]] = {key: value + 1 for key, value in old.items()}


def states_that_changed_places(optimizer: Any, params: list[Parameter]) -> None:
    for p in params[1], params[4]:
        p.grad = None
        p.data = p.data[:6].clone()
    state = optimizer.state
    long = state[params[1]]
    state[params[1]] = state[params[4]]
    state[params[4]] = {key: x[:6].clone() if x.dim() else x for key, x in long.items()}


def a_forgotten_state(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state[params[0]] = {}


def a_cleared_state(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state.clear()


def another_state(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state = defaultdict(dict)


def a_state_moved_away_and_back(optimizer: Any, params: list[Parameter]) -> None:
    devices = {key: x.device for key, x in optimizer.state[params[0]].items()}
    for state in optimizer.state.values():
        for key, value in list(state.items()):
            state[key] = value.cpu().clone()
    torch.full((100_000,), 7.0, device=params[0].device)  # shows up if old memory were used
    for state in optimizer.state.values():
        for key, value in list(state.items()):
            state[key] = value.to(devices[key])


def a_loaded_checkpoint(optimizer: Any, params: list[Parameter]) -> None:
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["exp_avg"] += 1
    optimizer.load_state_dict(saved)


def a_frozen_parameter(optimizer: Any, params: list[Parameter]) -> None:
    params[1].requires_grad_(False)


def other_settings(optimizer: Any, params: list[Parameter]) -> None:
    for group in optimizer.param_groups:
        group.update(lr=0.5, maximize=True, betas=(0.5, 0.5), weight_decay=0.0)


def other_policies(optimizer: Any, params: list[Parameter]) -> None:
    for group in optimizer.param_groups:
        group.update(first_moment="task", second_moment="task_seen")


def a_switch_to_the_loop(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.param_groups[0].update(LOOP)


def a_group_that_is_another_dictionary(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.5}


def a_new_group(optimizer: Any, params: list[Parameter]) -> None:
    params += parameters(*SHAPES, (3,))[-1:]
    optimizer.add_param_group({"params": params[-1:], "lr": 0.2})


def a_group_taken_away(optimizer: Any, params: list[Parameter]) -> None:
    group = optimizer.param_groups.pop()
    optimizer.add_param_group({"params": group["params"], "lr": 0.2})


def a_parameter_cut_short(optimizer: Any, params: list[Parameter]) -> None:
    """What code that prunes a parameter does."""
    old = params[1]
    state = optimizer.state.pop(old)
    params[1] = Parameter(old.detach()[:9].clone())
    optimizer.state[params[1]] = {k: x[:9].clone() if x.dim() else x for k, x in state.items()}
    for group in optimizer.param_groups:
        group["params"] = [params[1] if p is old else p for p in group["params"]]


def a_parameter_made_anew_around_the_same_memory(optimizer: Any, params: list[Parameter]) -> None:
    old = params[-1]
    params[-1] = Parameter(old.data)
    for group in optimizer.param_groups:
        group["params"] = [params[-1] if p is old else p for p in group["params"]]


def a_state_given_to_another_parameter(optimizer: Any, params: list[Parameter]) -> None:
    optimizer.state[Parameter(torch.ones(2))] = optimizer.state.pop(params[-1])


CHANGES: list[Callable[[Any, list[Parameter]], None]] = [
    moved_weights,
    transposed_weights,
    a_replaced_state_tensor,
    a_state_tensor_with_other_memory,
    a_transposed_state_tensor,
    a_count_with_other_memory,
    a_count_as_a_number,
    a_replaced_state_dict,
    states_that_changed_places,
    a_forgotten_state,
    a_cleared_state,
    another_state,
    a_state_moved_away_and_back,
    a_loaded_checkpoint,
    a_frozen_parameter,
    other_settings,
    other_policies,
    a_switch_to_the_loop,
    a_group_that_is_another_dictionary,
    a_new_group,
    a_group_taken_away,
    a_parameter_cut_short,
    a_parameter_made_anew_around_the_same_memory,
    a_state_given_to_another_parameter,
]


@pytest.mark.filterwarnings("ignore:.*capturable")
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_between_steps_is_noticed(
    change: Any, groups: int, fused: dict[str, Any]
) -> None:
    results = []
    for arguments in (fused, LOOP):
        params = parameters(*SHAPES)
        chosen = [{"params": params[i::groups], **GROUPS[i]} for i in range(groups)]
        optimizer = ContinualAdamW(chosen, weight_decay=0.1, **arguments)
        for seed in range(12):
            set_gradients(seed, params)
            for p in params:
                p.grad = p.grad if p.requires_grad else None
            optimizer.step()
            if seed in (1, 6, 9):
                optimizer.end_task()
            if seed in (3, 7):
                change(optimizer, params)
        results.append([*params, *(x.cpu() for x in states(optimizer, params))])
    in_float32 = change is a_switch_to_the_loop and fused.get("capturable")
    assert_same(results[0], results[1], **(CAPTURABLE_LOOP if in_float32 else TOLERANCE))


@pytest.mark.parametrize("private", [True, False])
def test_tensors_are_alike_with_and_without_what_torch_keeps_to_itself(
    private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not private:
        monkeypatch.setattr(_torch, "_guards", None)
    x, y = torch.ones(2, 2), torch.ones(3)
    alike = _torch.alike([x, y])
    assert alike(torch.zeros(2, 2), torch.zeros(3))
    transposed = torch.ones(2, 2).as_strided((2, 2), (1, 2))
    for other in (transposed, x.double(), Parameter(x), x.to_sparse(), torch.ones(4), None):
        assert not alike(other, y)


def test_steps_and_boundaries_go_by_one_plan() -> None:
    params = parameters((3,), (2, 2))
    optimizer = ContinualAdam([{"params": [p]} for p in params], fused=True)
    train(optimizer, params, range(2))
    plan = optimizer.__dict__["_plan"]
    for seed in range(2, 8):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        train(optimizer, params, [seed], boundary_after=[3, 5])
    assert optimizer.__dict__["_plan"] is plan


def test_a_plan_keeps_no_state_alive(fused: dict[str, Any]) -> None:
    params = parameters((3,), (2, 2))
    optimizer = ContinualAdam(params, **fused)
    train(optimizer, params, range(3), boundary_after=[1])
    refs = [weakref.ref(x) for x in states(optimizer, params)]
    optimizer.state.clear()
    assert not any(ref() is not None for ref in refs)


def test_missing_gradients_leave_weights_and_their_version_alone(fused: dict[str, Any]) -> None:
    a, b = parameters((3,), (2,))
    optimizer = ContinualAdam([a, b], **fused)
    train(optimizer, [a, b], range(2))
    for _ in range(2):
        loss = (b * b).sum()
        a.grad, b.grad = torch.ones_like(a), None
        optimizer.step()
        loss.backward()  # would fail if b counted as changed


def test_autograd_notices_a_step_between_forward_and_backward(fused: dict[str, Any]) -> None:
    (p,) = parameters((3,))
    optimizer = ContinualAdam([p], **fused)
    for _ in range(3):
        loss = p.square().sum()
        p.grad = torch.ones_like(p)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_sparse_gradient_is_refused_before_any_weight_moves(fused: dict[str, Any]) -> None:
    half, whole = parameters((3, 2), dtype=torch.float32), parameters((3, 2))
    params = [*half, *whole]
    optimizer = ContinualAdamW(params, **fused)
    train(optimizer, params, range(2))
    before = [x.detach().clone() for x in params]
    set_gradients(3, params)
    params[1].grad = params[1].grad.to_sparse()  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="ContinualAdamW does not support sparse gradients"):
        optimizer.step()
    assert_same(params, before)


def test_gradients_of_another_precision_are_read_as_they_are(fused: dict[str, Any]) -> None:
    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("before torch 2.10 a gradient has the parameter's dtype")
    for own, other in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        results = []
        for arguments in (fused, LOOP):
            params = parameters((40,), (7, 3), dtype=own)
            optimizer = ContinualAdam(params, lr=0.1, **arguments)
            for seed in range(6):
                generator = torch.Generator().manual_seed(seed)
                for i, p in enumerate(params):
                    grad = torch.randn(p.shape, generator=generator).to(p.device)
                    p.grad = p.grad_dtype = None  # any
                    p.grad = grad.to(other if (seed + i) % 3 else own)
                optimizer.step()
            results.append(states(optimizer, params))
        assert_same(*[[x.cpu() for x in found] for found in results], rtol=1e-5, atol=1e-6)


class Labelled(torch.Tensor):
    pass


def test_tensor_subclasses_take_the_for_loop(fused: dict[str, Any]) -> None:
    (value,) = parameters((5,))
    results = []
    for arguments in (fused, LOOP):
        p = Parameter(value.detach().clone().as_subclass(Labelled))
        assert type(p) is not Parameter
        optimizer = ContinualAdam([p], **arguments)
        train(optimizer, [p], range(3), boundary_after=[1])
        results.append([p.detach().as_subclass(Tensor)])
    assert_same(*results, **TOLERANCE)


def test_infinite_parameters_stay_what_they_are(fused: dict[str, Any]) -> None:
    """A mask of -inf kept as a parameter must not turn into NaN, nor by another group's decay."""
    masks = [Parameter(torch.tensor([float("-inf"), 1.0], device=optimizers.device)) for _ in "ab"]
    groups = [{"params": masks[:1]}, {"params": masks[1:], "weight_decay": 0.1}]
    optimizer = ContinualAdam(groups, **fused)
    for _ in range(3):
        for p in masks:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert masks[0].tolist() == [float("-inf"), 1.0]


def test_devices_of_one_group_are_stepped_each_by_its_own() -> None:
    meta = Parameter(torch.ones(3, device="meta"))
    (p,) = parameters((3,))
    optimizer = ContinualAdam([p, meta], fused=True)  # of which only one is trained
    train(optimizer, [p], range(3), boundary_after=[1])
    assert optimizer.state[p]["past_steps"] == 2
    assert meta not in optimizer.state
