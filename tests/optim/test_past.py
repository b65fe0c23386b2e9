"""v_c in one byte: the same bits everywhere, and an average that does not stand still."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from helpers import optimizers
from helpers.optimizers import assert_same, parameters, set_gradients, train, twins
from longtail import ContinualAdam, ContinualAdamW, load_memory, prime, save_memory
from longtail.optim import codes, past

pytestmark = pytest.mark.filterwarnings("ignore:.*capturable")

SHAPES = [(3, 5), (7,), (), (33, 70)]
LOOP: dict[str, Any] = {"foreach": False, "fused": False}


def made(params: list[Parameter], past_dtype: str = "uint8", **settings: Any) -> ContinualAdamW:
    return ContinualAdamW(params, lr=0.01, past_dtype=past_dtype, **settings)


def bytes_of(optimizer: ContinualAdam) -> list[Tensor]:
    return [state["past_exp_avg_sq"].cpu() for state in optimizer.state.values()]


def values_of(optimizer: ContinualAdam) -> list[Tensor]:
    return [past.read_past(x, torch.float64) for x in bytes_of(optimizer)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("second_moment", ["task", "task_seen"])
def test_all_implementations_keep_the_same_bytes(
    second_moment: str, dtype: torch.dtype, implementation: dict[str, Any]
) -> None:
    ours, theirs = parameters(*SHAPES, dtype=dtype), parameters(*SHAPES, dtype=dtype)
    theirs = [Parameter(p.detach().cpu()) for p in theirs]
    optimizer = made(ours, second_moment=second_moment, **implementation)
    loop = made(theirs, second_moment=second_moment, **LOOP)
    for seed in range(12):
        set_gradients(seed, ours, theirs)
        optimizer.step()
        loop.step()
        same_moments(optimizer, loop)
        if seed % 2:
            optimizer.end_task()
            loop.end_task()
            assert {x.dtype for x in bytes_of(optimizer)} == {torch.uint8}
            assert_same(bytes_of(optimizer), bytes_of(loop))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    assert_same([p.cpu() for p in ours], theirs, rtol=tolerance, atol=tolerance)


def same_moments(target: ContinualAdamW, source: ContinualAdamW) -> None:
    """The last digit of v may differ between devices, and now and then change a byte."""
    for mine, other in zip(target.state.values(), source.state.values(), strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(mine[key].cpu(), other[key], rtol=1e-3, atol=1e-5)
            mine[key].copy_(other[key])


@pytest.mark.parametrize("second_moment", ["task", "task_seen"])
def test_a_step_takes_what_the_bytes_say(
    second_moment: str, implementation: dict[str, Any]
) -> None:
    """As float32's step from the values that the bytes stand for."""
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(params, second_moment=second_moment, **implementation)
    train(optimizer, params, range(4), boundary_after=(1, 3))
    others = twins(params)
    plain = made(others, "float32", second_moment=second_moment, **implementation)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {x.dtype for x in bytes_of(plain)} == {torch.float32}
    train(optimizer, params, (4, 5, 6))
    train(plain, others, (4, 5, 6))
    assert_same(params, others, rtol=1e-6, atol=1e-7)


def test_many_tensors_and_sizes_agree_between_loop_and_kernel() -> None:
    """Sizes that no vector divides, and more than one chunk."""
    lists = [parameters((7001,), (265003,), (1,), dtype=torch.float32) for _ in range(2)]
    both = [made(lists[0], **LOOP), made(lists[1], fused=True)]
    for seed in range(2):
        set_gradients(seed, *lists)
        for optimizer in both:
            optimizer.step()
        same_moments(both[1], both[0])
        for optimizer in both:
            optimizer.end_task()
        assert_same(bytes_of(both[0]), bytes_of(both[1]))


def test_a_channels_last_parameter_has_the_same_bytes(implementation: dict[str, Any]) -> None:
    found = []
    (value,) = parameters((2, 3, 4, 5), dtype=torch.float32)
    for settings in (LOOP, implementation):
        p = Parameter(value.detach().clone(memory_format=torch.channels_last))
        optimizer = made([p], **settings)
        for seed in range(3):
            set_gradients(seed, [p])
            p.grad = p.grad.to(memory_format=torch.channels_last)  # type: ignore[union-attr]
            optimizer.step()
            optimizer.end_task()
        found += bytes_of(optimizer)
    assert_same(found[:1], found[1:])


def test_a_copy_in_a_stack_has_the_bytes_it_would_have_alone(
    implementation: dict[str, Any],
) -> None:
    alone = [parameters((3, 5), (7,), dtype=torch.float32) for _ in range(4)]
    stacked = [Parameter(torch.stack([ps[i].detach() for ps in alone])) for i in range(2)]
    singles = [made(ps, **implementation) for ps in alone]
    groups = [{"params": stacked, "past_copies": 4}]
    stack = ContinualAdamW(groups, lr=0.01, past_dtype="uint8", **implementation)
    for step in range(6):
        for seed, ps in enumerate(alone):
            set_gradients(10 * seed + step, ps)
        for i, p in enumerate(stacked):
            p.grad = torch.stack([ps[i].grad for ps in alone])  # type: ignore[misc]
        for optimizer in (*singles, stack):
            optimizer.step()
            if step % 2:
                optimizer.end_task()
    for copy_, single in enumerate(singles):
        assert_same([x[copy_] for x in bytes_of(stack)], bytes_of(single))


def test_another_number_in_the_group_and_another_place_are_other_bits() -> None:
    def rounded(**settings: Any) -> list[Tensor]:
        params = [Parameter(torch.zeros(500)), Parameter(torch.zeros(500))]
        optimizer = ContinualAdam([{"params": params, **settings}], past_dtype="uint8")
        for p in params:
            p.grad = torch.full((500,), 1.1)
        optimizer.step()
        optimizer.end_task()
        return bytes_of(optimizer)

    (a, b), (c, d) = rounded(), rounded(past_seed=1)
    for x, y in ((a, b), (a, c), (b, d)):
        assert 0.2 < (x != y).float().mean() < 0.8
    assert_same((a, b), rounded())


def test_round_trip_through_a_file_goes_on_bit_for_bit(implementation: dict[str, Any]) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(params, **implementation)
    optimizer.param_groups[0]["past_seed"] = 17
    train(optimizer, params, range(5), boundary_after=(1, 3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = twins(params)
    resumed = made(others, **implementation)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(optimizer)
    train(optimizer, params, range(5, 9), boundary_after=(5, 7))
    train(resumed, others, range(5, 9), boundary_after=(5, 7))
    train(copied, copied.param_groups[0]["params"], range(5, 9), boundary_after=(5, 7))
    for other in (resumed, copied):
        assert_same(bytes_of(optimizer), bytes_of(other))
        assert_same(params, other.param_groups[0]["params"])


@pytest.mark.parametrize("ours", past.PAST_DTYPES)
@pytest.mark.parametrize("saved", past.PAST_DTYPES)
def test_a_checkpoint_of_another_type_is_converted(saved: str, ours: str) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(params, saved)
    train(optimizer, params, range(4), boundary_after=(1, 3))
    others = twins(params)
    other = made(others, ours)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {x.dtype for x in bytes_of(other)} == {getattr(torch, ours)}
    assert_same(values_of(other), values_of(optimizer), rtol=0.13, atol=0)
    train(other, others, range(4, 6), boundary_after=(5,))
    assert other.param_groups[0]["past_dtype"] == ours


def test_an_older_checkpoint_has_no_such_setting_and_is_converted() -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(params, "float32")
    train(optimizer, params, range(2), boundary_after=(1,))
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        for key in ("past_dtype", "past_seed", "past_copies"):
            del group[key]
    other = made(twins(params))
    other.load_state_dict(saved)
    assert {x.dtype for x in bytes_of(other)} == {torch.uint8}
    assert_same(values_of(other), values_of(optimizer), rtol=0.13, atol=0)


def test_the_setting_may_change_between_steps(implementation: dict[str, Any]) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(params, "float32", **implementation)
    train(optimizer, params, range(4), boundary_after=(1, 3))
    before = values_of(optimizer)
    for i, kind in enumerate(("uint8", "float32", "uint8")):
        optimizer.param_groups[0]["past_dtype"] = kind
        train(optimizer, params, (4 + i,))
        assert {x.dtype for x in bytes_of(optimizer)} == {getattr(torch, kind)}
        assert_same(values_of(optimizer), before, rtol=0.15, atol=0)


def test_groups_may_differ(implementation: dict[str, Any]) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    kinds = ("float32", "uint8", "float32", "uint8")
    groups = [{"params": [p], "past_dtype": k} for p, k in zip(params, kinds, strict=True)]
    lists = [params, twins(params)]
    together = ContinualAdamW(groups, lr=0.01, **implementation)
    apart = [made([p], k, **implementation) for p, k in zip(lists[1], kinds, strict=True)]
    for step in range(6):
        set_gradients(step, *lists)
        for optimizer in (together, *apart):
            optimizer.step()
            if step % 2:
                optimizer.end_task()
    assert_same(*lists)
    assert_same(bytes_of(together), [x for optimizer in apart for x in bytes_of(optimizer)])


def test_a_parameter_that_sat_out_a_task_keeps_its_bytes() -> None:
    params = parameters((50,), (60,), dtype=torch.float32)
    optimizer = made(params)
    train(optimizer, params, range(2), boundary_after=(1,))
    kept = bytes_of(optimizer)[0].clone()
    for seed in range(5):
        set_gradients(seed, params)
        params[0].grad = None
        optimizer.step()
        optimizer.end_task()
    assert_same([bytes_of(optimizer)[0]], [kept])


def test_what_no_task_has_moved_stays_zero(implementation: dict[str, Any]) -> None:
    p = Parameter(torch.zeros(4, device=optimizers.device))
    optimizer = made([p], second_moment="task_seen", **implementation)
    for _ in range(50):
        p.grad = torch.tensor([0.0, 1e-15, 1.0, 1e12], device=p.device)
        optimizer.step()
        optimizer.end_task()
    (kept,) = bytes_of(optimizer)
    assert [kept[i].item() for i in (0, 1, 3)] == [0, 1, 255]
    assert 170 < kept[2] < 190


def test_what_is_no_number_has_the_largest_code(implementation: dict[str, Any]) -> None:
    p = Parameter(torch.zeros(2, device=optimizers.device))
    optimizer = made([p], **implementation)
    p.grad = torch.tensor([torch.nan, torch.inf], device=p.device)
    optimizer.step()
    optimizer.end_task()
    (kept,) = bytes_of(optimizer)
    assert kept.tolist() == [255, 255]


def averages(g2: Tensor, *, at_random: bool = True) -> Tensor:
    """The mean of v_c in each column after boundaries, of which the c-th has v = ``g2[c]``."""
    rows = 1024
    kept = torch.zeros(rows, 2, dtype=torch.uint8)
    draw = past.Draw(12345, 0)
    for c, v in enumerate(g2):
        now = v.expand(rows, 2)
        weights = [c / (c + 1)], [1 / (c + 1)]
        if at_random:
            past.fold_coded([kept], [now], *weights, [torch.tensor(float(c))], [draw])
        else:
            value = past.read_past(kept, torch.float32) * weights[0][0] + now * weights[1][0]
            kept = past.converted(value, torch.uint8)
    return past.read_past(kept, torch.float64).mean(0)


@pytest.mark.slow
def test_the_mean_follows_the_average_over_20399_boundaries() -> None:
    """A slow coordinate that drifts over tasks, and a fast one that changes with every task."""
    n, rows = 20399, 1024
    slow = 1e-6 * (1 + torch.arange(n) / 2000)
    generator = torch.Generator().manual_seed(0)
    fast = 1e-6 * torch.empty(n).exponential_(generator=generator)
    g2 = torch.stack((slow, fast), 1)
    p = Parameter(torch.zeros(2, rows))
    p.grad = torch.empty_like(p)
    optimizer = made([p], betas=(0.9, 0.0), fused=True)  # v is the square itself
    for gradient in g2.sqrt().unbind():
        p.grad.copy_(gradient[:, None].expand(2, rows))
        optimizer.step()
        optimizer.end_task()
    assert optimizer.state[p]["past_steps"] == n
    assert_same([values_of(optimizer)[0].mean(1)], [g2.double().mean(0)], rtol=0.02, atol=0)


def test_the_mean_follows_the_average_and_plain_rounding_freezes() -> None:
    """When gradients double later on, v_c, rounded to the nearest, never hears of it."""
    g2 = torch.ones(150, 2)
    g2[30:] = 2.0
    wanted = g2.double().mean(0)
    assert_same([averages(g2)], [wanted], rtol=0.02, atol=0)
    assert (averages(g2, at_random=False) < 0.8 * wanted).all()


def test_a_memory_file_has_these_bytes_and_gives_them_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(40, 30)
    optimizer = made(list(model.parameters()))
    train(optimizer, list(model.parameters()), range(4), boundary_after=(1, 3))
    path = save_memory(optimizer, tmp_path, model)
    size = 40 * 30 + 30
    assert size < path.stat().st_size < size + 1500
    later = made(list(model.parameters()))
    load_memory(later, tmp_path, model, quiet=True)
    assert_same(bytes_of(later), bytes_of(optimizer))
    save_memory(optimizer, tmp_path / "full", model, dtype="float32")
    full = made(list(model.parameters()), "float32")
    load_memory(full, tmp_path / "full", model, quiet=True)
    assert_same([x.double() for x in bytes_of(full)], values_of(optimizer))
    load_memory(later, tmp_path / "full", model, quiet=True)
    assert_same(bytes_of(later), bytes_of(optimizer))


def test_saving_within_a_task_writes_the_bytes_that_the_boundary_leaves(tmp_path: Path) -> None:
    model = torch.nn.Linear(40, 30)
    params = list(model.parameters())
    optimizer = made(params)
    train(optimizer, params, range(5), boundary_after=(1, 3))
    save_memory(optimizer, tmp_path, model)
    optimizer.end_task()
    later = made(params)
    load_memory(later, tmp_path, model, quiet=True)
    assert_same(bytes_of(later), bytes_of(optimizer))


def test_a_grown_model_keeps_the_bytes_that_it_shares(tmp_path: Path) -> None:
    model, larger = torch.nn.Linear(4, 6), torch.nn.Linear(4, 9)
    params = list(model.parameters())
    optimizer = made(params)
    train(optimizer, params, range(2), boundary_after=(1,))
    save_memory(optimizer, tmp_path, model)
    later = made(list(larger.parameters()))
    load_memory(later, tmp_path, larger, quiet=True)
    for new, old in zip(bytes_of(later), bytes_of(optimizer), strict=True):
        assert_same([new[:6]], [old])
        assert (new[6:] > 0).all()


def test_a_model_can_be_primed() -> None:
    model = torch.nn.Linear(4, 3)
    batches = [torch.randn(8, 4) for _ in range(5)]
    found = []
    for kind in ("float32", "uint8"):
        optimizer = made(list(model.parameters()), kind)
        for count in (10, 20):
            prime(model, batches, lambda m, x: m(x).square().mean(), optimizer, count=count)
        found.append(values_of(optimizer))
    assert_same(*found, rtol=0.27, atol=0)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"past_dtype": "bfloat16"}, ValueError, "Invalid past_dtype value: 'bfloat16'"),
        ({"past_dtype": None}, ValueError, "Invalid past_dtype value: None"),
        ({"past_dtype": "uint8", "differentiable": True}, RuntimeError, "`past_dtype='uint8'`"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ContinualAdam([Parameter(torch.zeros(1))], **settings)


@pytest.mark.parametrize(("name", "value"), [("past_seed", -1), ("past_copies", 0)])
def test_bad_numbers_in_a_group_are_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"Invalid {name} value: {value}"):
        ContinualAdam([{"params": [Parameter(torch.zeros(1))], name: value}])


def test_complex_parameters_are_refused() -> None:
    p = Parameter(torch.zeros(2, dtype=torch.complex64))
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="'uint8' for a complex parameter"):
        made([p]).step()


def test_a_change_to_an_unknown_type_is_refused_and_the_past_is_kept(
    implementation: dict[str, Any],
) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(params, **implementation)
    train(optimizer, params, range(2), boundary_after=(1,))
    kept = [x.clone() for x in bytes_of(optimizer)]
    optimizer.param_groups[0]["past_dtype"] = "int4"
    for call in (optimizer.step, optimizer.end_task):
        with pytest.raises(ValueError, match="Invalid past_dtype value: 'int4'"):
            call()
    assert_same(bytes_of(optimizer), kept)


def test_every_code_is_read_as_the_file_reads_it() -> None:
    every = torch.arange(256).to(torch.uint8)
    assert_same([codes.value_of(every)], [codes.decode(every)])
