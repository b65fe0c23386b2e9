"""MoFO, Adam-Rel, UPGD and BAdam against naive re-computations, number by number."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longtail import ContinualAdamW
from longtail.support.random import normal
from longtail_bench.rivals.adam_rel import restart_time
from longtail_bench.rivals.badam import BAdam
from longtail_bench.rivals.mofo import MoFO, largest
from longtail_bench.rivals.upgd import UPGD

STEPS = 5


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def parameters() -> list[nn.Parameter]:
    shapes = ((4, 3), (5,))
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]


def set_gradients(params: list[nn.Parameter]) -> list[torch.Tensor]:
    for p in params:
        p.grad = torch.randn_like(p)
    return [p.grad.clone() for p in params]  # pyright: ignore


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "lead"), [((3, 40, 7), 1), ((40,), 0), ((), 0), ((2, 1), 1)])
@pytest.mark.parametrize("fraction", [0.05, 0.3, 1.0])
def test_mofo_finds_what_sorting_finds(dtype, shape, lead, fraction) -> None:
    m = torch.randn(shape).to(dtype)
    found = largest(m, fraction, lead).reshape(*shape[:lead], -1)
    flat = m.abs().reshape(*shape[:lead], -1)
    count = max(1, round(fraction * flat.shape[-1]))
    least = flat.sort(-1, descending=True).values[..., count - 1 : count]
    assert torch.equal(found, flat >= least)


def test_mofo_leaves_what_has_no_momentum_to_itself() -> None:
    """Fewer entries have momentum than a step may move: weight decay alone moves none."""
    weight = nn.Parameter(torch.ones(100))
    optimizer = MoFO([weight, nn.Parameter(torch.ones(0))], lr=0.1, weight_decay=0.5, fraction=0.1)
    weight.grad = torch.zeros(100)
    weight.grad[:5] = 1.0
    optimizer.param_groups[0]["params"][1].grad = torch.zeros(0)
    optimizer.step()
    assert (weight != 1).nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_mofo_has_the_fraction_of_each_group_and_runs_hooks_once() -> None:
    a, b = (nn.Parameter(torch.ones(10)) for _ in range(2))
    optimizer = MoFO([{"params": [a], "fraction": 1.0}, {"params": [b]}], lr=0.1, fraction=0.1)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    a.grad, b.grad = torch.arange(1.0, 11.0), torch.arange(1.0, 11.0)
    optimizer.step()
    assert called == ["before", "after"]
    assert [int((p != 1).sum()) for p in (a, b)] == [10, 1]
    with pytest.raises(ValueError, match=r"fraction: 2\.0"):
        MoFO([{"params": [a], "fraction": 2.0}])


@pytest.mark.parametrize("second_moment", ["reset", "task"])
@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_mofo_moves_what_adamw_would_where_momentum_is_largest(fraction, second_moment) -> None:
    params = parameters()
    twins = copy.deepcopy(params)
    settings = {"lr": 0.1, "weight_decay": 0.3, "second_moment": second_moment}
    ours = MoFO(params, fraction=fraction, **settings)
    theirs = ContinualAdamW(twins, **settings)
    for step in range(STEPS):
        before = [p.flatten().tolist() for p in params]
        grads = set_gradients(params)
        with torch.no_grad():
            for p, twin, g in zip(params, twins, grads, strict=True):
                twin.copy_(p)
                twin.grad = g
        ours.step()
        theirs.step()
        for p, twin, old in zip(params, twins, before, strict=True):
            m = theirs.state[twin]["exp_avg"].flatten().tolist()
            count = max(1, round(fraction * len(m)))
            top = sorted(range(len(m)), key=lambda i, m=m: -abs(m[i]))[:count]
            moved = twin.flatten().tolist()
            wanted = [moved[i] if i in top else old[i] for i in range(len(m))]
            assert p.flatten().tolist() == wanted
        if step == 2:
            ours.end_task()
            theirs.end_task()
    assert ours.state_dict()["param_groups"][0]["fraction"] == fraction


def test_mofo_has_a_filter_for_every_replica() -> None:
    stacked = nn.Parameter(torch.randn(3, 4, 2))
    single = [nn.Parameter(stacked[s].detach().clone()) for s in range(3)]
    together = MoFO([stacked], lr=0.1, fraction=0.3, lead=(3,))
    apart = [MoFO([p], lr=0.1, fraction=0.3) for p in single]
    for _ in range(STEPS):
        stacked.grad = torch.randn_like(stacked)
        together.step()
        for s, (p, optimizer) in enumerate(zip(single, apart, strict=True)):
            p.grad = stacked.grad[s].clone()
            optimizer.step()
            assert torch.equal(stacked[s], p)


@pytest.mark.parametrize("ours", [False, True])
def test_adam_rel_keeps_both_moments_and_counts_anew(ours: bool) -> None:
    params = parameters()
    if ours:
        kept = {"first_moment": "ema", "second_moment": "ema", "beta3": 0.0}
        optimizer: torch.optim.Optimizer = ContinualAdamW(params, lr=0.1, weight_decay=0.0, **kept)
    else:
        optimizer = torch.optim.AdamW(params, lr=0.1, weight_decay=0.0)
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    wanted = [p.detach().clone() for p in params]
    t = 0
    for step in range(3 * STEPS):
        if step and step % STEPS == 0:
            restart_time(optimizer)
            t = 0
        t += 1
        for i, g in enumerate(set_gradients(params)):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            m_hat, v_hat = m[i] / (1 - 0.9**t), v[i] / (1 - 0.999**t)
            wanted[i] = wanted[i] - 0.1 * m_hat / (v_hat.sqrt() + 1e-8)
        optimizer.step()
        for p, w in zip(params, wanted, strict=True):
            torch.testing.assert_close(p.detach(), w)


def test_adam_rel_wants_steps_to_count() -> None:
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    set_gradients(params)
    optimizer.step()
    with pytest.raises(ValueError, match="SGD counts no steps: its state has momentum_buffer"):
        restart_time(optimizer)


@pytest.mark.parametrize("adaptive", [False, True])
def test_upgd_moves_useful_weights_less(adaptive: bool) -> None:
    params = parameters()
    optimizer = UPGD(
        params, lr=0.1, weight_decay=0.2, utility_decay=0.8, noise=0.05, adaptive=adaptive, seed=7
    )
    u, m, v = ([torch.zeros_like(p) for p in params] for _ in range(3))
    wanted = [p.detach().clone() for p in params]
    for t in range(1, STEPS + 1):
        grads = set_gradients(params)
        for i, g in enumerate(grads):
            u[i] = 0.8 * u[i] - 0.2 * g * wanted[i]
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
        top = max(float(x.max()) for x in u) / (1 - 0.8**t)
        for i, g in enumerate(grads):
            free = 1 - torch.sigmoid(u[i] / (1 - 0.8**t) / top)
            xi = 0.05 * normal(g.numel(), 7, "upgd", i, t).reshape(g.shape).double()
            if adaptive:
                step = m[i] / (1 - 0.9**t) / ((v[i] / (1 - 0.999**t)).sqrt() + 1e-8)
                wanted[i] = 0.98 * wanted[i] - 0.2 * (step + xi) * free
            else:
                wanted[i] = 0.98 * wanted[i] - 0.1 * (g + xi) * free
        optimizer.step()
        for p, w in zip(params, wanted, strict=True):
            torch.testing.assert_close(p.detach(), w)


def test_badam_moves_means_by_their_width_and_narrows_where_the_loss_is_curved() -> None:
    params = parameters()
    optimizer = BAdam(params, lr=0.1, width=0.2, examples=3.0, seed=5)
    mean = [p.detach().clone() for p in params]
    std = [torch.full_like(p, 0.2) for p in params]
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    for t in range(1, STEPS + 1):
        for i, g in enumerate(set_gradients(params)):
            eps = torch.zeros_like(g)
            if t > 1:
                eps = normal(g.numel(), 5, "badam", i, t - 1).reshape(g.shape).double()
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
            step = m[i] / (1 - 0.9**t) / ((v[i] / (1 - 0.999**t)).sqrt() + 1e-8)
            mean[i] = mean[i] - 0.1 * (std[i] / 0.2) ** 2 * step
            pull = 3.0 * g * eps
            std[i] = std[i] * (1 + (std[i] * pull / 2) ** 2).sqrt() - std[i] ** 2 * pull / 2
        optimizer.step()
        for i, p in enumerate(params):
            draw = normal(p.numel(), 5, "badam", i, t).reshape(p.shape).double()
            torch.testing.assert_close(p.detach(), mean[i] + std[i] * draw)
    optimizer.eval()
    for p, w in zip(params, mean, strict=True):
        torch.testing.assert_close(p.detach(), w)
    optimizer.eval()
    with torch.no_grad():
        params[0].add_(1.0)  # whoever changes the weights changes the means
    optimizer.train()
    optimizer.eval()
    torch.testing.assert_close(params[0].detach(), mean[0] + 1.0)


def test_a_width_of_badam_never_becomes_zero() -> None:
    """At n σ g ε / 2 above some thousands √(1 + h²) - h is 0 in float32, and 0 would stay."""
    param = nn.Parameter(torch.randn(1000))
    optimizer = BAdam([param], lr=0.01, width=0.1, examples=1e6)
    for _ in range(3):
        param.grad = torch.ones_like(param)
        optimizer.step()
    std = optimizer.state[param]["std"]
    assert torch.isfinite(std).all()
    assert std.min() > 0
    assert std.min() < 1e-5  # widths have shrunk by factors that would have been zero


@pytest.mark.parametrize(
    ("cls", "settings"),
    [(UPGD, {"noise": 0.1}), (UPGD, {"adaptive": False}), (BAdam, {"width": 0.1, "examples": 9.0})],
)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_counts_and_rates_on_the_device_give_the_same_numbers(cls, settings, lead) -> None:
    params = [nn.Parameter(torch.randn(*lead, *shape)) for shape in ((4, 3), (5,))]
    seed = torch.tensor([3, 4]) if lead else 3
    given = {**settings, "weight_decay": 0.1, "lead": lead, "seed": seed}
    twins, rate = copy.deepcopy(params), torch.tensor(0.1)
    plain, captured = cls(params, lr=0.1, **given), cls(twins, lr=rate, capturable=True, **given)
    for step in range(12):
        factor = 1 - step / 12
        plain.param_groups[0]["lr"] = 0.1 * factor
        rate.fill_(0.1 * factor)
        for p, twin in zip(params, twins, strict=True):
            p.grad = twin.grad = torch.randn_like(p)
        if step % 3 == 0:  # their counts differ
            params[1].grad = twins[1].grad = None
        if cls is BAdam and step in (4, 8):
            for optimizer in (plain, captured):
                optimizer.eval()
                optimizer.train()
        plain.step()
        captured.step()
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_weights_of_no_use_move_by_half_the_noise(lead, capturable: bool) -> None:
    weight = nn.Parameter(torch.zeros(*lead, 3))
    seed = torch.tensor([3, 4]) if lead else 3
    settings = {"noise": 0.5, "capturable": capturable, "lead": lead, "seed": seed}
    optimizer = UPGD([weight], lr=0.1, adaptive=False, **settings)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    noise = normal(3, seed, "upgd", 0, 1)
    torch.testing.assert_close(weight.detach(), -0.1 * 0.5 * noise / 2)


class OnTheDevice(TorchDispatchMode):
    """Refuses to bring numbers from the host, which a captured step cannot do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, found)):
            assert not isinstance(value, torch.Tensor) or value.is_meta, func
        return found


@pytest.mark.parametrize("cls", [UPGD, BAdam])
def test_a_capturable_step_leaves_the_host_alone(cls) -> None:
    """Meta tensors have no values: a step that asks for one raises, and cannot be captured."""

    def step_twice(capturable: bool) -> None:
        weight = nn.Parameter(torch.empty(2, 3, device="meta"))
        rate = torch.tensor(0.1, device="meta")
        optimizer = cls([weight], lr=rate, capturable=capturable, lead=(2,), seed=torch.arange(2))
        weight.grad = torch.ones_like(weight)
        optimizer.step()  # makes what later ones find
        with OnTheDevice():
            optimizer.step()

    step_twice(True)
    with pytest.raises(AssertionError):
        step_twice(False)


@pytest.mark.parametrize("cls", [UPGD, BAdam])
def test_a_restart_in_place_is_a_new_optimizer_of_these_parameters(cls) -> None:
    params = parameters()
    optimizer = cls(params, lr=0.1, capturable=True)
    for _ in range(3):
        set_gradients(params)
        optimizer.step()
    if cls is BAdam:
        optimizer.eval()
    kept = {name: value.data_ptr() for name, value in optimizer.state[params[1]].items()}
    other = {name: value.clone() for name, value in optimizer.state[params[0]].items()}
    optimizer.restart([params[1]])
    twin = nn.Parameter(params[1].detach().clone())
    alone = cls([nn.Parameter(torch.zeros(1)), twin], lr=0.1, capturable=True)
    if cls is BAdam:
        optimizer.train()
    assert torch.equal(params[1], twin)  # nothing is drawn of it before its first step
    params[0].grad, params[1].grad = None, torch.randn_like(twin)
    twin.grad = params[1].grad
    optimizer.step()
    alone.step()
    assert torch.equal(params[1], twin)
    for name, value in optimizer.state[params[1]].items():
        assert torch.equal(value, alone.state[twin][name])
        assert value.data_ptr() == kept[name]
    assert all(torch.equal(optimizer.state[params[0]][name], x) for name, x in other.items())


@pytest.mark.parametrize("cls", [MoFO, UPGD, BAdam])
def test_what_a_rival_knows_is_in_its_state(cls) -> None:
    params = parameters()
    optimizer = cls(params, lr=0.1)
    for _ in range(3):
        set_gradients(params)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    other = cls(others, lr=0.1)
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        for a, g in zip(others, set_gradients(params), strict=True):
            a.grad = g
        optimizer.step()
        other.step()
    for a, b in zip(params, others, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("cls", [MoFO, UPGD, BAdam])
def test_a_parameter_without_a_gradient_stays(cls) -> None:
    params = parameters()
    before = params[1].detach().clone()
    optimizer = cls(params, lr=0.1)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    if cls is BAdam:
        optimizer.eval()
        optimizer.train()
    assert torch.equal(params[1], before)
    assert not optimizer.state.get(params[1])


def test_time_that_is_restarted_begins_anew_for_nadam_too() -> None:
    """Its first moment is corrected by a product of its own, which has to begin anew as well."""
    kept = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.NAdam([kept], lr=0.1)
    for _ in range(4):
        kept.grad = torch.ones(3)
        optimizer.step()
    restart_time(optimizer)
    fresh = nn.Parameter(kept.detach().clone())
    other = torch.optim.NAdam([fresh], lr=0.1)
    fresh.grad = torch.ones(3)
    other.step()
    with torch.no_grad():
        fresh.copy_(kept)
        other.state[fresh]["exp_avg"].copy_(optimizer.state[kept]["exp_avg"])
        other.state[fresh]["exp_avg_sq"].copy_(optimizer.state[kept]["exp_avg_sq"])
        other.state[fresh]["step"].zero_()
        other.state[fresh]["mu_product"].fill_(1.0)
    for p, each in ((kept, optimizer), (fresh, other)):
        p.grad = torch.ones(3)
        each.step()
    assert torch.equal(kept, fresh)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (MoFO, {"fraction": 0.0}, "Invalid fraction: 0.0"),
        (MoFO, {"fraction": 7.0}, "Invalid fraction: 7.0"),
        (UPGD, {"betas": (2.0, 0.9)}, r"Invalid betas\[0\]: 2.0"),
        (UPGD, {"betas": (0.9, 1.0)}, r"Invalid betas\[1\]: 1.0"),
        (UPGD, {"betas": (0.9,)}, r"Invalid betas: \(0.9,\), two"),
        (UPGD, {"lr": -1.0}, "Invalid lr: -1.0"),
        (UPGD, {"eps": -1.0}, "Invalid eps: -1.0"),
        (UPGD, {"weight_decay": -1.0}, "Invalid weight_decay: -1.0"),
        (UPGD, {"noise": -1.0}, "Invalid noise: -1.0"),
        (UPGD, {"utility_decay": 1.0}, "Invalid utility_decay: 1.0"),
        (BAdam, {"width": 0.0}, "Invalid width: 0.0"),
        (BAdam, {"lr": math.nan}, "Invalid lr: nan"),
        (BAdam, {"betas": 0.9}, "Invalid betas: 0.9, two"),
        (BAdam, {"betas": (0.9, 1.0)}, r"Invalid betas\[1\]: 1.0"),
        (BAdam, {"examples": math.nan}, "Invalid examples: nan"),
    ],
)
def test_settings_of_a_group_are_checked_whenever_it_comes(kind, wrong, message: str) -> None:
    first, later = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    for make in (
        lambda: kind([first], **wrong),
        lambda: kind([{"params": [first], **wrong}]),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    optimizer = kind([first])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [later], **wrong})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [later]})
    later.grad = torch.ones(2)
    optimizer.step()
