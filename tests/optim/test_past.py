"""v_c in one or two bytes: the same bits everywhere, and an average that does not stand still."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from helpers.optimizers import IMPLEMENTATIONS, assert_same, parameters, set_gradients, train, twins
from longtail import ContinualAdam, ContinualAdamW, load_memory, prime, save_memory
from longtail.optim import codes, past

CODED = ("bfloat16", "uint8")
SHAPES = [(3, 5), (7,), ()]
DTYPES = {"bfloat16": torch.bfloat16, "uint8": torch.uint8}


def made(past_dtype: str, params: list[Parameter], **settings: Any) -> ContinualAdamW:
    return ContinualAdamW(params, lr=0.01, past_dtype=past_dtype, **settings)


def bytes_of(optimizer: ContinualAdam) -> list[Tensor]:
    return [state["past_exp_avg_sq"] for state in optimizer.state.values()]


def values_of(optimizer: ContinualAdam) -> list[Tensor]:
    return [past.read_past(x, torch.float64) for x in bytes_of(optimizer)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("past_dtype", CODED)
def test_all_implementations_keep_the_same_bytes(past_dtype: str, dtype: torch.dtype) -> None:
    found = []
    for settings in IMPLEMENTATIONS.values():
        params = parameters(*SHAPES, dtype=dtype)
        optimizer = made(past_dtype, params, **settings)
        train(optimizer, params, range(12), boundary_after=range(1, 12, 2))
        found.append((params, bytes_of(optimizer)))
        assert {x.dtype for x in bytes_of(optimizer)} == {DTYPES[past_dtype]}
    for params, kept in found[1:]:
        assert_same(kept, found[0][1])
        tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
        assert_same(params, found[0][0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("second_moment", ["task", "task_seen"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
@pytest.mark.parametrize("past_dtype", CODED)
def test_a_step_takes_what_the_bytes_say(
    past_dtype: str, implementation: dict[str, Any], second_moment: str
) -> None:
    """As float32's step from the values that the bytes stand for."""
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(past_dtype, params, second_moment=second_moment, **implementation)
    train(optimizer, params, range(4), boundary_after=(1, 3))
    others = twins(params)
    plain = made("float32", others, second_moment=second_moment, **implementation)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {x.dtype for x in bytes_of(plain)} == {torch.float32}
    train(optimizer, params, (4, 5, 6))
    train(plain, others, (4, 5, 6))
    assert_same(params, others, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("past_dtype", CODED)
def test_many_tensors_and_sizes_agree_between_loop_and_kernel(past_dtype: str) -> None:
    """Sizes that no vector divides, and more than one chunk."""
    lists = [parameters((7001,), (265003,), (1,), dtype=torch.float32) for _ in range(2)]
    optimizers = [made(past_dtype, ps, **IMPLEMENTATIONS[name]) for ps, name in
                  zip(lists, ("for-loop", "fused"), strict=True)]  # fmt: skip
    for seed in range(2):
        set_gradients(seed, *lists)
        for optimizer in optimizers:
            optimizer.step()
        for ps, qs in zip(*lists, strict=True):  # a last digit of v may change a byte
            for key in ("exp_avg", "exp_avg_sq"):
                optimizers[1].state[qs][key].copy_(optimizers[0].state[ps][key])
        for optimizer in optimizers:
            optimizer.end_task()
        assert_same(bytes_of(optimizers[0]), bytes_of(optimizers[1]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_a_channels_last_parameter_has_the_same_bytes(implementation: dict[str, Any]) -> None:
    found = []
    for settings in (IMPLEMENTATIONS["for-loop"], implementation):
        p = Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
        optimizer = made("uint8", [p], **settings)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            grad = torch.randn(p.shape, generator=generator)
            p.grad = grad.to(memory_format=torch.channels_last)
            optimizer.step()
            optimizer.end_task()
        found += bytes_of(optimizer)
    assert_same(found[:1], found[1:])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
@pytest.mark.parametrize("past_dtype", CODED)
def test_a_copy_in_a_stack_has_the_bytes_it_would_have_alone(
    past_dtype: str, implementation: dict[str, Any]
) -> None:
    alone = [parameters((3, 5), (7,), dtype=torch.float32) for _ in range(4)]
    stacked = [Parameter(torch.stack([ps[i].detach() for ps in alone])) for i in range(2)]
    singles = [made(past_dtype, ps, **implementation) for ps in alone]
    groups = [{"params": stacked, "past_copies": 4}]
    stack = ContinualAdamW(groups, lr=0.01, past_dtype=past_dtype, **implementation)
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


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
@pytest.mark.parametrize("past_dtype", CODED)
def test_round_trip_through_a_file_goes_on_bit_for_bit(
    past_dtype: str, implementation: dict[str, Any]
) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(past_dtype, params, **implementation)
    optimizer.param_groups[0]["past_seed"] = 17
    train(optimizer, params, range(5), boundary_after=(1, 3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = twins(params)
    resumed = made(past_dtype, others, **implementation)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(optimizer)
    train(optimizer, params, range(5, 9), boundary_after=(5, 7))
    train(resumed, others, range(5, 9), boundary_after=(5, 7))
    train(copied, copied.param_groups[0]["params"], range(5, 9), boundary_after=(5, 7))
    for other in (resumed, copied):
        assert_same(bytes_of(optimizer), bytes_of(other))
        assert_same(params, other.param_groups[0]["params"])


@pytest.mark.parametrize("ours", ["float32", *CODED])
@pytest.mark.parametrize("saved", ["float32", *CODED])
def test_a_checkpoint_of_another_type_is_converted(saved: str, ours: str) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made(saved, params)
    train(optimizer, params, range(4), boundary_after=(1, 3))
    others = twins(params)
    other = made(ours, others)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {x.dtype for x in bytes_of(other)} == {past.PAST_DTYPES[ours]}
    within = 0.13 if "uint8" in (saved, ours) else 0.01
    assert_same(values_of(other), values_of(optimizer), rtol=within, atol=0)
    train(other, others, range(4, 6), boundary_after=(5,))
    assert other.param_groups[0]["past_dtype"] == ours


def test_an_older_checkpoint_has_no_such_setting_and_is_converted() -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made("float32", params)
    train(optimizer, params, range(2), boundary_after=(1,))
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        for key in ("past_dtype", "past_seed", "past_copies"):
            del group[key]
    other = made("uint8", twins(params))
    other.load_state_dict(saved)
    assert {x.dtype for x in bytes_of(other)} == {torch.uint8}
    assert_same(values_of(other), values_of(optimizer), rtol=0.13, atol=0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_the_setting_may_change_between_steps(implementation: dict[str, Any]) -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = made("float32", params, **implementation)
    train(optimizer, params, range(4), boundary_after=(1, 3))
    before = values_of(optimizer)
    for i, kind in enumerate(("uint8", "bfloat16", "float32")):
        optimizer.param_groups[0]["past_dtype"] = kind
        train(optimizer, params, (4 + i,))
        assert {x.dtype for x in bytes_of(optimizer)} == {past.PAST_DTYPES[kind]}
        assert_same(values_of(optimizer), before, rtol=0.15, atol=0)


def test_groups_may_differ() -> None:
    params = parameters(*SHAPES, dtype=torch.float32)
    groups = [
        {"params": [p], "past_dtype": kind}
        for p, kind in zip(params, ("float32", "bfloat16", "uint8"), strict=True)
    ]
    lists = [params, twins(params)]
    together = ContinualAdamW(groups, lr=0.01, fused=True)
    apart = [made(g["past_dtype"], [p], fused=True) for g, p in zip(groups, lists[1], strict=True)]
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
    optimizer = made("uint8", params)
    train(optimizer, params, range(2), boundary_after=(1,))
    kept = bytes_of(optimizer)[0].clone()
    for seed in range(5):
        set_gradients(seed, params)
        params[0].grad = None
        optimizer.step()
        optimizer.end_task()
    assert_same([bytes_of(optimizer)[0]], [kept])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
def test_what_no_task_has_moved_stays_zero(implementation: dict[str, Any]) -> None:
    p = Parameter(torch.zeros(4))
    optimizer = made("uint8", [p], second_moment="task_seen", **implementation)
    for _ in range(50):
        p.grad = torch.tensor([0.0, 1e-15, 1.0, 1e12])
        optimizer.step()
        optimizer.end_task()
    (kept,) = bytes_of(optimizer)
    assert [kept[i].item() for i in (0, 1, 3)] == [0, 1, 255]
    assert 170 < kept[2] < 190


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
@pytest.mark.parametrize("past_dtype", CODED)
def test_what_is_no_number_has_an_end_of_its_own(
    past_dtype: str, implementation: dict[str, Any]
) -> None:
    p = Parameter(torch.zeros(2))
    optimizer = made(past_dtype, [p], **implementation)
    p.grad = torch.tensor([torch.nan, torch.inf])
    optimizer.step()
    optimizer.end_task()
    (kept,) = bytes_of(optimizer)
    if past_dtype == "uint8":
        assert kept.tolist() == [255, 255]
    else:
        assert kept[0].isnan()
        assert kept[1].isinf()


def averages(past_dtype: str, g2: Tensor, boundaries: int, *, at_random: bool = True) -> Tensor:
    """The mean of v_c in each column after boundaries, of which the c-th has v = ``g2[c]``."""
    rows = 1024
    kept = torch.zeros(rows, 2, dtype=DTYPES[past_dtype])
    draw = past.Draw(12345, 0)
    for c in range(boundaries):
        now = g2[c].expand(rows, 2)
        weights = [c / (c + 1)], [1 / (c + 1)]
        if at_random:
            past.fold_coded([kept], [now], *weights, [torch.tensor(float(c))], [draw])
        else:
            value = past.read_past(kept, torch.float32) * weights[0][0] + now * weights[1][0]
            kept = past.converted(value, kept.dtype)
    return past.read_past(kept, torch.float64).mean(0)


@pytest.mark.slow
@pytest.mark.parametrize("past_dtype", CODED)
def test_the_mean_follows_the_average_over_20399_boundaries(past_dtype: str) -> None:
    """A slow coordinate that drifts over tasks, and a fast one that changes with every task."""
    n, rows = 20399, 1024
    slow = 1e-6 * (1 + torch.arange(n) / 2000)
    generator = torch.Generator().manual_seed(0)
    fast = 1e-6 * torch.empty(n).exponential_(generator=generator)
    g2 = torch.stack((slow, fast), 1)
    p = Parameter(torch.zeros(2, rows))
    p.grad = torch.empty_like(p)
    optimizer = made(past_dtype, [p], betas=(0.9, 0.0), fused=True)  # v is the square itself
    for gradient in g2.sqrt().unbind():
        p.grad.copy_(gradient[:, None].expand(2, rows))
        optimizer.step()
        optimizer.end_task()
    assert optimizer.state[p]["past_steps"] == n
    assert_same([values_of(optimizer)[0].mean(1)], [g2.double().mean(0)], rtol=0.02, atol=0)


@pytest.mark.parametrize("past_dtype", CODED)
def test_the_mean_follows_the_average_and_plain_rounding_freezes(past_dtype: str) -> None:
    """When gradients double later on, v_c, rounded to the nearest, never hears of it."""
    early, late = (30, 120) if past_dtype == "uint8" else (600, 600)
    g2 = torch.ones(early + late, 2)
    g2[early:] = 2.0
    wanted = g2.double().mean(0)
    assert_same([averages(past_dtype, g2, len(g2))], [wanted], rtol=0.02, atol=0)
    frozen = averages(past_dtype, g2, len(g2), at_random=False)
    assert (frozen < 0.8 * wanted).all()


@pytest.mark.parametrize("past_dtype", CODED)
def test_a_memory_file_has_these_bytes_and_gives_them_back(tmp_path: Path, past_dtype: str) -> None:
    model = torch.nn.Linear(40, 30)
    optimizer = made(past_dtype, list(model.parameters()))
    train(optimizer, list(model.parameters()), range(4), boundary_after=(1, 3))
    path = save_memory(optimizer, tmp_path, model)
    size = {"bfloat16": 2, "uint8": 1}[past_dtype] * (40 * 30 + 30)
    assert size < path.stat().st_size < size + 1500
    later = made(past_dtype, list(model.parameters()))
    load_memory(later, tmp_path, model, quiet=True)
    assert_same(bytes_of(later), bytes_of(optimizer))
    save_memory(optimizer, tmp_path / "full", model, dtype="float32")
    full = made("float32", list(model.parameters()))
    load_memory(full, tmp_path / "full", model, quiet=True)
    assert_same([x.double() for x in bytes_of(full)], values_of(optimizer))
    load_memory(later, tmp_path / "full", model, quiet=True)
    assert_same(bytes_of(later), bytes_of(optimizer))


def test_saving_within_a_task_writes_the_bytes_that_the_boundary_leaves(tmp_path: Path) -> None:
    model = torch.nn.Linear(40, 30)
    params = list(model.parameters())
    optimizer = made("uint8", params)
    train(optimizer, params, range(5), boundary_after=(1, 3))
    save_memory(optimizer, tmp_path, model)
    optimizer.end_task()
    later = made("uint8", params)
    load_memory(later, tmp_path, model, quiet=True)
    assert_same(bytes_of(later), bytes_of(optimizer))


def test_a_grown_model_keeps_the_bytes_that_it_shares(tmp_path: Path) -> None:
    model, larger = torch.nn.Linear(4, 6), torch.nn.Linear(4, 9)
    params = list(model.parameters())
    optimizer = made("uint8", params)
    train(optimizer, params, range(2), boundary_after=(1,))
    save_memory(optimizer, tmp_path, model)
    later = made("uint8", list(larger.parameters()))
    load_memory(later, tmp_path, larger, quiet=True)
    for new, old in zip(bytes_of(later), bytes_of(optimizer), strict=True):
        assert_same([new[:6]], [old])
        assert (new[6:] > 0).all()


def test_a_model_can_be_primed() -> None:
    model = torch.nn.Linear(4, 3)
    batches = [torch.randn(8, 4) for _ in range(5)]
    found = []
    for kind in ("float32", "uint8"):
        optimizer = made(kind, list(model.parameters()))
        for count in (10, 20):
            prime(model, batches, lambda m, x: m(x).square().mean(), optimizer, count=count)
        found.append(values_of(optimizer))
    assert_same(*found, rtol=0.27, atol=0)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"past_dtype": "int8"}, ValueError, "Invalid past_dtype value: 'int8'"),
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
        made("uint8", [p]).step()


def test_a_change_to_an_unknown_type_is_refused_and_the_past_is_kept() -> None:
    for settings in IMPLEMENTATIONS.values():
        params = parameters(*SHAPES, dtype=torch.float32)
        optimizer = made("uint8", params, **settings)
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
