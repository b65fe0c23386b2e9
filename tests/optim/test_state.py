"""What is remembered of a parameter: made at its first step, folded in place at a boundary."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from helpers import optimizers
from helpers.optimizers import (
    FIRST_MOMENTS,
    IMPLEMENTATIONS,
    assert_same,
    parameters,
    set_gradients,
    states,
    train,
    twins,
)
from longtail import ContinualAdam, ContinualAdamW

pytestmark = pytest.mark.filterwarnings("ignore:.*capturable")


def test_boundary_folds_by_number_of_steps(implementation: dict[str, Any]) -> None:
    p = Parameter(torch.zeros(1, dtype=torch.float64, device=optimizers.device))
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


@pytest.mark.parametrize("missing", ["past_exp_avg_sq", "past_steps", "exp_avg", "step"])
def test_missing_entries_are_filled_one_by_one(
    missing: str, implementation: dict[str, Any]
) -> None:
    params = parameters((3,))
    optimizer = ContinualAdam(params, **implementation)
    train(optimizer, params, range(2))
    kept = optimizer.state[params[0]]["exp_avg_sq"]
    del optimizer.state[params[0]][missing]
    optimizer.end_task() if missing.startswith("past") else None
    train(optimizer, params, range(2))
    assert missing in optimizer.state[params[0]]
    assert optimizer.state[params[0]]["exp_avg_sq"] is kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_state_of_half_precision_parameters_is_float32_and_stays_so(
    dtype: torch.dtype, implementation: dict[str, Any]
) -> None:
    a = parameters((30,), dtype=dtype)
    first = ContinualAdam(a, lr=0.01, **implementation)
    train(first, a, range(300), boundary_after=[270])
    assert all(x.dtype == torch.float32 for x in states(first, a))
    exact = first.state[a[0]]["past_exp_avg_sq"]
    assert (exact.to(dtype).float() != exact).any()  # rounding would show
    assert first.state[a[0]]["past_steps"].item() == 271  # not a bf16 number
    b = twins(a)
    second = ContinualAdam(b, **implementation)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert_same(states(first, a), states(second, b))
    train(first, a, range(300, 304))
    train(second, b, range(300, 304))
    assert_same(a, b)


def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    results = []
    for kwargs in IMPLEMENTATIONS.values():
        a = parameters((50,), dtype=torch.bfloat16)
        train(ContinualAdamW(a, lr=0.1, **kwargs), a, range(1))
        results.append(a)
    full = [Parameter(p.detach().float()) for p in parameters((50,), dtype=torch.bfloat16)]
    set_gradients(0, a := parameters((50,), dtype=torch.bfloat16))
    full[0].grad = a[0].grad.float()
    ContinualAdamW(full, lr=0.1).step()
    for result in results:
        assert_same(result, [full[0].bfloat16()])


def test_repr_shows_tasks_seen_and_policy() -> None:
    optimizer = ContinualAdamW(parameters((2,)), second_moment="ema")
    text = repr(optimizer)
    assert text.startswith("ContinualAdamW (\ntasks seen: 0\n")
    assert "    first_moment: reset\n" in text
    assert "    second_moment: ema\n" in text


def grown(params: list[Parameter]) -> None:
    """As by a user who gives an embedding more words."""
    params[0].data = torch.cat([params[0].data, params[0].data])


def shrunk(params: list[Parameter]) -> None:
    params[0].data = params[0].data[:2]  # at the same address


@pytest.mark.parametrize("resize", [grown, shrunk])
def test_a_parameter_resized_in_place_is_noticed_at_the_next_step(
    resize: Any, implementation: dict[str, Any]
) -> None:
    params = parameters((4, 3), (2,))
    optimizer = ContinualAdam(params, **implementation)
    train(optimizer, params, range(4), boundary_after=[1])
    for p in params:
        p.grad = None
    resize(params)
    with pytest.raises(ValueError, match=rf"\(4, 3\) for .* \({len(params[0])}, 3\)"):
        train(optimizer, params, range(1))
    del optimizer.state[params[0]]
    train(optimizer, params, range(3), boundary_after=[1])


def test_the_state_of_a_model_of_other_shapes_is_refused(implementation: dict[str, Any]) -> None:
    """Kernels would walk past the end of it."""
    a = parameters((100, 8))
    first = ContinualAdam(a, **implementation)
    train(first, a, range(2))
    b = parameters((120, 8))
    second = ContinualAdam(b, **implementation)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with pytest.raises(ValueError, match=r"Invalid exp_avg: of shape \(100, 8\)"):
        train(second, b, range(1))
    with pytest.raises(ValueError, match=r"Invalid exp_avg: of shape \(100, 8\)"):
        second.end_task()


def test_print_shows_what_is_remembered() -> None:
    a = parameters((3,), (2,))
    optimizer = ContinualAdamW(a)
    assert "tasks seen: 0\nsteps remembered: 0\n" in repr(optimizer)
    train(optimizer, a, range(7), boundary_after=[1, 4])
    assert "tasks seen: 2\nsteps remembered: 5\n" in repr(optimizer)


def test_fused_refuses_a_meta_parameter_as_torch_does() -> None:
    meta = Parameter(torch.ones(3, device="meta"))
    meta.grad = torch.ones(3, device="meta")
    for kind in (torch.optim.AdamW, ContinualAdam):
        optimizer = kind([meta], fused=True)
        with pytest.raises(RuntimeError, match=r"`fused=True` requires .* torch.float32 and meta"):
            optimizer.step()
