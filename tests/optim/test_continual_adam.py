"""What users and frameworks expect of a torch optimizer, beyond the numbers."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from helpers import optimizers
from helpers.optimizers import (
    FIRST_MOMENTS,
    IMPLEMENTATIONS,
    PAIRS,
    SECOND_MOMENTS,
    assert_same,
    parameters,
    set_gradients,
    states,
    train,
    twins,
)
from longtail import ContinualAdam, ContinualAdamW

pytestmark = pytest.mark.filterwarnings("ignore:.*capturable")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lr": -1}, ValueError, "Invalid learning rate: -1"),
        ({"lr": float("nan")}, ValueError, "Invalid learning rate: nan"),
        ({"lr": torch.tensor([1.0, 2.0])}, ValueError, "Tensor lr must be 1-element"),
        ({"eps": -1e-8}, ValueError, "Invalid epsilon value: -1e-08"),
        ({"betas": (1.0, 0.9)}, ValueError, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.1)}, ValueError, "Invalid beta parameter at index 1: -0.1"),
        ({"betas": (0.9, torch.tensor(0.9))}, ValueError, "both floats or both Tensors"),
        ({"weight_decay": -1}, ValueError, "Invalid weight_decay value: -1"),
        ({"beta3": 1.0}, ValueError, "Invalid beta3 value: 1.0"),
        ({"beta3": "a"}, ValueError, "Invalid beta3 value: 'a', a number is needed"),
        ({"lr": None}, ValueError, "Invalid lr value: None"),
        ({"eps": "1e-8"}, ValueError, "Invalid eps value: '1e-8'"),
        ({"weight_decay": [0.1]}, ValueError, r"Invalid weight_decay value: \[0.1\]"),
        ({"betas": (0.9, "b")}, ValueError, r"Invalid betas\[1\] value: 'b'"),
        ({"betas": 0.9}, ValueError, "Invalid betas: 0.9, two are needed"),
        ({"beta3": -0.5}, ValueError, "Invalid beta3 value: -0.5"),
        ({"first_moment": "mean"}, ValueError, "Invalid first_moment value: 'mean'"),
        ({"second_moment": None}, ValueError, "Invalid second_moment value: None"),
        ({"fused": True, "foreach": True}, RuntimeError, "`fused` and `foreach`"),
        ({"fused": True, "differentiable": True}, RuntimeError, "`differentiable`"),
        ({"lr": torch.tensor(0.1), "foreach": True}, ValueError, "lr as a Tensor"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ContinualAdam(parameters((2,)), **settings)
    with pytest.raises(error, match=message):
        ContinualAdamW([{"params": parameters((2,)), **settings}])


def as_torch(arguments: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """How near a way comes to torch's own: the for-loop and foreach on a CPU to the bit."""
    if optimizers.device == "cpu" and not arguments.get("fused"):
        return {}
    rough = dtype is torch.float32 or arguments.get("capturable")
    return {"rtol": 1e-5, "atol": 1e-6} if rough else {"rtol": 1e-11, "atol": 1e-12}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_boundary_and_beta3_it_is_adam(
    implementation: dict[str, Any], ours: Any, theirs: Any, weight_decay: float
) -> None:
    for dtype in (torch.float32, torch.float64):
        a = parameters((3, 4), (5,), (), dtype=dtype)
        b = twins(a)
        settings = {"lr": 0.05, "weight_decay": weight_decay, **implementation}
        train(ours(a, beta3=0.0, **settings), a, range(20))
        train(theirs(b, **settings), b, range(20))
        assert_same(a, b, **as_torch(implementation, dtype))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_reset_policy_equals_a_fresh_optimizer_for_each_task(
    implementation: dict[str, Any], ours: Any, theirs: Any
) -> None:
    a = parameters((3, 4), (5,))
    b = twins(a)
    moments = {"first_moment": "reset", "second_moment": "reset"}
    optimizer = ours(a, beta3=0.0, **moments, **implementation)
    for task in range(3):
        seeds = range(10 * task, 10 * task + 4 + task)
        train(optimizer, a, seeds)
        optimizer.end_task()
        train(theirs(b, **implementation), b, seeds)
        assert_same(a, b, **as_torch(implementation))


def test_positional_arguments_are_those_of_torch() -> None:
    group = ContinualAdamW(parameters((2,)), 0.5, (0.8, 0.9), 1e-4, 0.2).param_groups[0]
    theirs = torch.optim.AdamW(parameters((2,)), 0.5, (0.8, 0.9), 1e-4, 0.2).param_groups[0]
    for key in ("lr", "betas", "eps", "weight_decay"):
        assert group[key] == theirs[key]
    assert group["beta3"] == 0.9


def test_a_group_added_later_gets_every_key_and_its_own_past() -> None:
    trunk, head = parameters((3,), (2,))
    optimizer = ContinualAdam([trunk])
    train(optimizer, [trunk], range(3), boundary_after=[2])
    optimizer.add_param_group({"params": [head], "second_moment": "ema", "lr": 0.5})
    assert optimizer.param_groups[0].keys() == optimizer.param_groups[1].keys()
    train(optimizer, [trunk, head], range(2), boundary_after=[1])
    assert optimizer.state[trunk]["past_steps"].item() == 5
    assert optimizer.state[head]["past_steps"].item() == 2
    assert [int(g["tasks_seen"]) for g in optimizer.param_groups] == [2, 1]
    with pytest.raises(ValueError, match="Invalid beta3"):
        optimizer.add_param_group({"params": parameters((2,)), "beta3": 2.0})
    assert len(optimizer.param_groups) == 2


def test_closure_and_hooks_run_once(implementation: dict[str, Any]) -> None:
    params = parameters((3,))
    optimizer = ContinualAdam(params, **implementation)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> float:
        assert torch.is_grad_enabled()
        calls.append("closure")
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        return loss.item()

    start = params[0].square().sum().item()
    for _ in range(2):
        result = optimizer.step(closure)
    assert calls == ["before", "closure", "after"] * 2
    assert 0 < result <= start


def test_sparse_gradients_are_refused(implementation: dict[str, Any]) -> None:
    params = parameters((3, 2))
    optimizer = ContinualAdam(params, **implementation)
    train(optimizer, params, range(2))
    params[0].grad = torch.zeros_like(params[0]).to_sparse()
    with pytest.raises(RuntimeError, match="ContinualAdam does not support sparse gradients"):
        optimizer.step()


def test_gradients_are_never_written_to(implementation: dict[str, Any]) -> None:
    params = parameters((3, 2), (4,))
    optimizer = ContinualAdam(params, weight_decay=0.1, maximize=True, **implementation)
    for seed in range(4):
        set_gradients(seed, params)
        before = [p.grad.clone() for p in params if p.grad is not None]
        optimizer.step()
        optimizer.end_task()
        assert_same([p.grad for p in params if p.grad is not None], before)


def test_missing_and_zero_gradients(implementation: dict[str, Any]) -> None:
    a, b, c = parameters((3,), (3,), (3,))
    optimizer = ContinualAdam([a, b, c], **implementation)
    start = [x.detach().clone() for x in (a, b, c)]
    for _ in range(3):
        a.grad, b.grad, c.grad = torch.ones_like(a), torch.zeros_like(b), None
        optimizer.step()
    assert (a != start[0]).all()
    assert_same([b, c], start[1:])
    assert c not in optimizer.state
    c.grad = torch.ones_like(c)
    optimizer.step()
    assert optimizer.state[c]["step"].item() == 1
    assert optimizer.state[a]["step"].item() == 4


def test_maximize_is_minimizing_the_negative(implementation: dict[str, Any]) -> None:
    a = parameters((3, 2))
    b = twins(a)
    up = ContinualAdamW(a, maximize=True, **implementation)
    down = ContinualAdamW(b, **implementation)
    for seed in range(6):
        set_gradients(seed, a, b)
        b[0].grad = -b[0].grad  # type: ignore[operator]
        up.step()
        down.step()
        if seed == 3:
            up.end_task()
            down.end_task()
    assert_same(a, b)


@pytest.mark.parametrize("first_moment", ["reset", "task"])
def test_complex_parameters_are_pairs_of_real_ones(
    implementation: dict[str, Any], first_moment: str
) -> None:
    a = parameters((3, 2), dtype=torch.complex128)
    b = [Parameter(torch.view_as_real(a[0].detach()).clone())]
    kwargs = {"weight_decay": 0.1, "first_moment": first_moment, **implementation}
    first, second = ContinualAdam(a, **kwargs), ContinualAdam(b, **kwargs)
    for seed in range(6):
        set_gradients(seed, a)
        b[0].grad = torch.view_as_real(a[0].grad.clone())  # type: ignore[union-attr]
        first.step()
        second.step()
        if seed == 3:
            first.end_task()
            second.end_task()
    near = 1e-5 if implementation.get("capturable") else 1e-11
    assert_same([torch.view_as_real(a[0])], b, rtol=near, atol=near)


@pytest.mark.parametrize("implementation", ["for-loop", "fused"])
def test_tensor_lr_and_betas(implementation: str) -> None:
    a = parameters((3, 2))
    b = twins(a)
    betas = (torch.tensor([[0.8]]), torch.tensor([0.9]))
    kwargs = IMPLEMENTATIONS[implementation]
    first = ContinualAdamW(a, lr=torch.tensor(0.1), betas=betas, **kwargs)
    second = ContinualAdamW(b, lr=0.1, betas=(0.8, 0.9), **kwargs)
    train(first, a, range(6), boundary_after=[3])
    train(second, b, range(6), boundary_after=[3])
    assert_same(a, b, rtol=1e-6, atol=1e-7)
    first.param_groups[0]["lr"].zero_()
    before = [x.detach().clone() for x in a]
    train(first, a, range(2))
    assert_same(a, before)


def test_foreach_refuses_a_tensor_lr_set_later() -> None:
    params = parameters((2,))
    optimizer = ContinualAdam(params, foreach=True)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    with pytest.raises(RuntimeError, match="lr as a Tensor"):
        train(optimizer, params, range(1))


@pytest.mark.parametrize("second_moment", SECOND_MOMENTS)
@pytest.mark.parametrize("first_moment", ["reset", "task"])
def test_autograd_runs_through_a_differentiable_step(first_moment: str, second_moment: str) -> None:
    def after_a_step(value: Tensor, gradient: Tensor, lr: Tensor, decay: Tensor) -> Tensor:
        p = value.clone()
        p.grad = gradient
        optimizer = ContinualAdam(
            [p],
            lr=lr,
            weight_decay=0.0,
            differentiable=True,
            first_moment=first_moment,
            second_moment=second_moment,
        )
        optimizer.param_groups[0]["weight_decay"] = decay
        state = {k: torch.full_like(p, x) for k, x in (("exp_avg", 0.1), ("exp_avg_sq", 0.2))}
        past = {"past_exp_avg_sq": torch.full_like(p, 0.3), "past_exp_avg": torch.full_like(p, 0.4)}
        counts = {"step": torch.tensor(2.0), "past_steps": torch.tensor(7.0)}
        optimizer.state[p].update({k: v.detach() for k, v in {**state, **past, **counts}.items()})
        optimizer.step()
        return p

    inputs = [torch.rand(4, dtype=torch.float64) + 0.1 for _ in range(2)]
    inputs += [torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)]
    assert torch.autograd.gradcheck(after_a_step, [x.requires_grad_() for x in inputs])


@pytest.mark.parametrize("second_moment", SECOND_MOMENTS)
@pytest.mark.parametrize("first_moment", FIRST_MOMENTS)
def test_autograd_runs_through_a_boundary(first_moment: str, second_moment: str) -> None:
    def after_two_tasks(lr: Tensor, beta1: Tensor, beta2: Tensor) -> Tensor:
        p = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True).clone()
        optimizer = ContinualAdam(
            [p],
            lr=lr,
            betas=(beta1, beta2),
            differentiable=True,
            first_moment=first_moment,
            second_moment=second_moment,
        )
        for i in range(4):
            p.grad = p.clone().square() + i
            optimizer.step()
            if i == 1:
                optimizer.end_task()
        return p

    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.1, 0.8, 0.9)]
    assert torch.autograd.gradcheck(after_two_tasks, inputs)


def test_schedulers_rebuilt_for_each_task_need_the_learning_rate_reset() -> None:
    """LinearLR multiplies what it finds: after a task decayed to zero it finds nothing."""
    params = parameters((2,))
    optimizer = ContinualAdam(params, lr=0.1)

    def one_task() -> list[float]:
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=3)
        rates = []
        for seed in range(3):
            rates.append(optimizer.param_groups[0]["lr"])
            train(optimizer, params, [seed])
            scheduler.step()
        optimizer.end_task()
        return rates

    first = one_task()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
    assert max(one_task()) == pytest.approx(0.0, abs=1e-12)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
        group.pop("initial_lr", None)
    assert one_task() == pytest.approx(first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grad_scaler_unscales_and_skips(implementation: dict[str, Any], dtype: torch.dtype) -> None:
    a = parameters((4,), dtype=dtype)
    b = twins(a)
    if dtype is torch.bfloat16 and optimizers.device == "cuda":
        pytest.skip("torch's GradScaler cannot look for infinities in bfloat16 on CUDA")
    scaled, plain = ContinualAdam(a, **implementation), ContinualAdam(b, **implementation)
    scaler = torch.amp.GradScaler(optimizers.device, init_scale=8.0, growth_interval=1000)
    for seed in range(4):
        set_gradients(seed, a, b)
        plain.step()
        a[0].grad = a[0].grad * 8  # type: ignore[operator]
        scaler.scale(torch.zeros((), device=optimizers.device))  # makes the scaler's scale
        scaler.step(scaled)
        scaler.update()
        if seed == 1:
            plain.end_task()
            scaled.end_task()
    assert_same(a, b, rtol=1e-6, atol=1e-7)
    before = [x.clone() for x in states(scaled, a)]
    a[0].grad = torch.full_like(a[0], float("inf"))
    scaler.step(scaled)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert_same(states(scaled, a), before)
    assert_same(a, b, rtol=1e-6, atol=1e-7)


def test_grad_scaler_starts_with_a_scale_that_float16_cannot_hold() -> None:
    a = parameters((4,), dtype=torch.float16)
    b = twins(a)
    scaled, plain = ContinualAdam(a, fused=True), ContinualAdam(b, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    a[0].grad = torch.full_like(a[0], 2.0**10)
    b[0].grad = torch.full_like(b[0], 2.0**10 / scaler.get_scale())
    scaler.step(scaled)
    plain.step()
    assert scaled.state[a[0]]["exp_avg"].all()
    assert_same([*a, *states(scaled, a)], [*b, *states(plain, b)])


def test_grad_scaler_unscales_for_groups_of_which_some_are_fused() -> None:
    a = parameters((4,), (3,))
    b = twins(a)
    scaled = ContinualAdam([{"params": a[:1], "fused": True}, {"params": a[1:]}])
    plain = ContinualAdam(b)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for seed in range(3):
        set_gradients(seed, a, b)
        plain.step()
        for p in a:
            p.grad = p.grad * 8  # type: ignore[operator]
        scaler.scale(torch.zeros(()))
        scaler.step(scaled)
        scaler.update()
    assert_same(a, b, rtol=1e-12, atol=1e-12)


def test_capturable_needs_an_accelerator() -> None:
    for foreach in (False, True):
        params = parameters((2,))
        optimizer = ContinualAdam(params, capturable=True, foreach=foreach)
        with pytest.raises(AssertionError, match="capturable=True"):
            train(optimizer, params, range(1))


def test_foreach_goes_through_the_multi_tensor_function(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    name = "longtail.optim.loops._multi_tensor_continualadam"
    monkeypatch.setattr(name, lambda *args, **kwargs: calls.append(len(args[0].params)))
    params = parameters((2,), (3,))
    train(ContinualAdamW(params, foreach=True), params, range(1))
    assert calls == [2]


def test_importing_longtail_loads_nothing_heavy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import longtail; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = set(eval(run.stdout)) - set(sys.stdlib_module_names)
    assert loaded <= {"longtail", "torch", "numpy"}


def test_a_group_that_is_refused_is_not_there() -> None:
    first, later = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = ContinualAdamW([first])
    with pytest.raises((TypeError, ValueError)):
        optimizer.add_param_group({"params": [later], "tasks_seen": "x"})
    assert len(optimizer.param_groups) == 1
