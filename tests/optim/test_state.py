"""Saving, loading, copying: the state comes back as it was, whatever carried it."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from helpers.optimizers import (
    IMPLEMENTATIONS,
    PAIRS,
    assert_same,
    parameters,
    set_gradients,
    states,
    train,
    twins,
)
from longtail import ContinualAdam, ContinualAdamW


@pytest.fixture(params=IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def implementation(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


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
    assert_same(a, b, rtol=1e-12, atol=1e-12)
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
    second.load_state_dict(saved_and_loaded(first.state_dict()))
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


def test_repr_shows_tasks_seen_and_policy() -> None:
    optimizer = ContinualAdamW(parameters((2,)), second_moment="ema")
    text = repr(optimizer)
    assert text.startswith("ContinualAdamW (\ntasks seen: 0\n")
    assert "    first_moment: reset\n" in text
    assert "    second_moment: ema\n" in text


def test_named_parameters_and_their_names_are_kept() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = ContinualAdam(model.named_parameters())
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


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
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    with pytest.raises(ValueError, match=r"Invalid exp_avg: of shape \(100, 8\)"):
        train(second, b, range(1))
    with pytest.raises(ValueError, match=r"Invalid exp_avg: of shape \(100, 8\)"):
        second.end_task()


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


def test_print_shows_what_is_remembered() -> None:
    a = parameters((3,), (2,))
    optimizer = ContinualAdamW(a)
    assert "tasks seen: 0\nsteps remembered: 0\n" in repr(optimizer)
    train(optimizer, a, range(7), boundary_after=[1, 4])
    assert "tasks seen: 2\nsteps remembered: 5\n" in repr(optimizer)


def transposed(optimizer: Any, params: list[Parameter], keep_gradient: bool) -> None:
    """A square parameter is laid out the other way round, at the same address."""
    gradient = params[0].grad
    params[0].grad = None
    params[0].data = params[0].data.t()
    if keep_gradient:
        params[0].grad = gradient


@pytest.mark.parametrize("keep_gradient", [True, False])
def test_a_parameter_transposed_in_place_is_stepped_as_by_the_loop(
    keep_gradient: bool, implementation: dict[str, Any]
) -> None:
    found = []
    for how in (implementation, {"foreach": False, "fused": False}):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(4, 4)), Parameter(torch.randn(3))]
        optimizer = ContinualAdam(params, lr=0.1, **how)
        for p in params:
            p.grad = torch.randn_like(p)
        for _ in range(3):
            optimizer.step()
        transposed(optimizer, params, keep_gradient)
        if not keep_gradient:
            params[0].grad = torch.randn(4, 4)  # contiguous, as a user's own may be
        for _ in range(3):
            optimizer.step()
        found.append([p.detach().clone() for p in params])
    for ours, loop in zip(*found, strict=True):
        torch.testing.assert_close(ours, loop)


def test_fused_refuses_a_meta_parameter_as_torch_does() -> None:
    meta = Parameter(torch.ones(3, device="meta"))
    meta.grad = torch.ones(3, device="meta")
    for kind in (torch.optim.AdamW, ContinualAdam):
        optimizer = kind([meta], fused=True)
        with pytest.raises(RuntimeError, match=r"`fused=True` requires .* torch.float32 and meta"):
            optimizer.step()
