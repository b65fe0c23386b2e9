"""Saving, loading, copying: the state comes back as it was, whatever carried it."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from helpers.optimizers import (
    PAIRS,
    assert_same,
    parameters,
    states,
    train,
    twins,
)
from longtail import ContinualAdam, ContinualAdamW


def saved_and_loaded(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_round_trip_through_a_file_goes_on_bit_for_bit(implementation: dict[str, Any]) -> None:
    a = parameters((3, 2), (4,))
    first = ContinualAdamW(a, lr=0.1, first_moment="task", **implementation)
    train(first, a, range(10), boundary_after=[3, 7])
    b = twins(a)
    second = ContinualAdamW(b, **implementation)
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    assert "tasks seen: 2\n" in repr(second)
    train(first, a, range(10, 16), boundary_after=[12])
    train(second, b, range(10, 16), boundary_after=[12])
    assert_same(a, b)
    assert_same(states(first, a), states(second, b))


@pytest.mark.filterwarnings("ignore:.*capturable")  # of copies torch's own optimizers warn, too
@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_go_on_alone(how: str, implementation: dict[str, Any]) -> None:
    a = parameters((3, 2))
    first = ContinualAdam(a, **implementation)
    train(first, a, range(6), boundary_after=[3])
    pair = {"params": a, "optimizer": first}
    other = pickle.loads(pickle.dumps(pair)) if how == "pickle" else copy.deepcopy(pair)
    b, second = other["params"], other["optimizer"]
    second.param_groups[0]["params"] = b if how == "deepcopy" else second.param_groups[0]["params"]
    b = second.param_groups[0]["params"]
    train(first, a, range(6, 12), boundary_after=[8])
    before = [x.clone() for x in a]
    train(second, b, range(6, 12), boundary_after=[8])
    assert_same(a, before)
    assert_same(a, b)
    assert "tasks seen: 2\n" in repr(second)
    assert isinstance(second, ContinualAdam)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_plain_adam_checkpoint_goes_on(
    ours: Any, theirs: Any, implementation: dict[str, Any]
) -> None:
    a = parameters((3, 2), (4,))
    plain = theirs(a, lr=0.01, weight_decay=0.1, **implementation)
    train(plain, a, range(5))
    b = twins(a)
    continual = ours(b, beta3=0.0, **implementation)
    continual.load_state_dict(saved_and_loaded(plain.state_dict()))
    group = continual.param_groups[0]
    assert group["lr"] == 0.01
    assert "amsgrad" not in group
    assert "decoupled_weight_decay" not in group
    assert group["second_moment"] == "task"
    train(plain, a, range(5, 9))
    train(continual, b, range(5, 9))
    # With capturable the scalars of a step are float32 tensors, also of torch's, in another order.
    near = 1e-7 if implementation.get("capturable") else 1e-12
    assert_same(a, b, rtol=near, atol=near)
    continual.end_task()
    assert continual.state[b[0]]["past_steps"].item() == 9
    train(continual, b, range(9, 12), boundary_after=[11])
    assert all(x.isfinite().all() for x in b)


def test_a_plain_checkpoint_from_before_steps_were_tensors_goes_on() -> None:
    a = parameters((3, 2))
    plain = torch.optim.AdamW(a)
    train(plain, a, range(5))
    saved = copy.deepcopy(plain.state_dict())
    saved["state"][0]["step"] = 5
    for act in ("step", "boundary"):
        b = twins(a)
        continual = ContinualAdamW(b)
        continual.load_state_dict(copy.deepcopy(saved))
        train(continual, b, range(1) if act == "step" else ())
        continual.end_task()
        assert continual.state[b[0]]["past_steps"].item() == (6 if act == "step" else 5)


def test_a_boundary_right_after_loading_a_plain_checkpoint_keeps_it() -> None:
    a = parameters((3, 2))
    plain = torch.optim.AdamW(a)
    train(plain, a, range(5))
    continual = ContinualAdamW(twins(a))
    continual.load_state_dict(copy.deepcopy(plain.state_dict()))
    continual.end_task()
    (state,) = continual.state.values()
    assert state["past_steps"].item() == 5
    assert state["past_exp_avg_sq"].all()


def test_an_amsgrad_checkpoint_is_refused_and_nothing_changes() -> None:
    a = parameters((3,))
    plain = torch.optim.AdamW(a, amsgrad=True)
    train(plain, a, range(2))
    continual = ContinualAdamW(a)
    with pytest.raises(ValueError, match="amsgrad=True"):
        continual.load_state_dict(plain.state_dict())
    assert not continual.state
    assert not continual._optimizer_load_state_dict_pre_hooks
    assert not continual._optimizer_load_state_dict_post_hooks


@pytest.mark.parametrize("name", ["first_moment", "second_moment"])
def test_a_checkpoint_with_an_unknown_policy_is_refused(name: str) -> None:
    """Its steps would take it for "reset", without a word."""
    params = parameters((3,))
    optimizer = ContinualAdam(params)
    train(optimizer, params, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0][name] = "of the future"
    with pytest.raises(ValueError, match=f"Invalid {name} value: 'of the future'"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["second_moment"] == "task"


def test_old_groups_get_every_key() -> None:
    params = parameters((3,))
    optimizer = ContinualAdam(params, beta3=0.5)
    train(optimizer, params, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for key in set(saved["param_groups"][0]) - {"params", "lr", "betas", "eps", "weight_decay"}:
        del saved["param_groups"][0][key]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0].keys() == optimizer.defaults.keys() | {"params"}
    assert optimizer.param_groups[0]["beta3"] == 0.5
    train(optimizer, params, range(2), boundary_after=[1])


def test_a_loading_hook_sees_the_restored_state() -> None:
    a = parameters((3,), dtype=torch.bfloat16)
    first = ContinualAdam(a)
    train(first, a, range(3))
    second = ContinualAdam(twins(a))
    seen: list[torch.dtype] = []
    second.register_load_state_dict_post_hook(
        lambda o: seen.extend(x["exp_avg"].dtype for x in o.state.values())
    )
    second.register_load_state_dict_pre_hook(lambda o, s: {**s, "state": dict(s["state"])})
    second.load_state_dict(first.state_dict())
    assert seen == [torch.float32]


def test_named_parameters_and_their_names_are_kept() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = ContinualAdam(model.named_parameters())
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


def named(params: list[Parameter], names: str = "abc") -> list[tuple[str, Parameter]]:
    return list(zip(names, params, strict=False))


def test_parameters_in_another_order_are_loaded_by_name(implementation: dict[str, Any]) -> None:
    """Of equal shapes, they were swapped without a word."""
    a = parameters((3,), (3,), (3,))
    first = ContinualAdamW(named(a), lr=0.1, **implementation)
    train(first, a, range(6), boundary_after=[3])
    b = twins(a)
    second = ContinualAdamW(named(b)[::-1], **implementation)
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    assert second.param_groups[0]["param_names"] == ["c", "b", "a"]
    assert second.param_groups[0]["lr"] == 0.1
    assert_same(states(second, b), states(first, a))
    train(first, a, range(6, 9))
    train(second, b, range(6, 9))
    assert_same(b, a)


def test_groups_in_another_order_keep_their_settings() -> None:
    a = parameters((3,), (3,), (3,))
    first = ContinualAdamW([{"params": named(a)[:1], "lr": 0.5}, {"params": named(a)[1:]}])
    train(first, a, range(3))
    b = twins(a)
    second = ContinualAdamW(
        [{"params": named(b)[2:]}, {"params": named(b)[1::-1][:1]}, {"params": named(b)[:1]}]
    )
    second.load_state_dict(first.state_dict())
    assert [group["lr"] for group in second.param_groups] == [1e-3, 1e-3, 0.5]
    assert_same(states(second, b), states(first, a))
    mixed = ContinualAdamW([{"params": named(b)}])
    with pytest.raises(ValueError, match="of one group were saved in 2 groups"):
        mixed.load_state_dict(first.state_dict())


def test_other_names_are_refused_and_wrappers_prefixes_are_not() -> None:
    a = parameters((3,), (3,))
    first = ContinualAdamW(named(a))
    train(first, a, range(3), boundary_after=[2])
    second = ContinualAdamW(named(a, "ax"))
    with pytest.raises(ValueError, match="it lacks x, the optimizer lacks b; load_memory"):
        second.load_state_dict(first.state_dict())
    assert not second.state
    wrapped = ContinualAdamW([(f"module._orig_mod.{name}", p) for name, p in named(a)[::-1]])
    wrapped.load_state_dict(first.state_dict())
    assert_same(states(wrapped, a), states(first, a))
    by_order = ContinualAdamW(a)  # one side without names: as ever
    by_order.load_state_dict(first.state_dict())
    assert_same(states(by_order, a), states(first, a))
