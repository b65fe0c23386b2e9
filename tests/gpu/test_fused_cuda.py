"""The Triton kernels against the maths in float64, over dtypes, layouts, sizes and policies."""

import itertools

import pytest
import torch
from torch import Tensor

from longtail.optim.cuda import plan
from longtail.optim.cuda.step import CudaKernel
from longtail.optim.past import draw_of
from longtail.optim.state import Settings, Tensors

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
FIRST = ("reset", "ema", "task")
POLICIES = list(itertools.product(FIRST, (*FIRST, "task_seen")))
AVERAGED = ("task", "task_seen")
SETTINGS = {
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.999,
    "beta3": 0.9,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "decoupled_weight_decay": True,
    "maximize": False,
    "first_moment": "reset",
    "second_moment": "task",
}
NAMES = ("exp_avg", "exp_avg_sq", "past_exp_avg_sq", "past_exp_avg", "step", "past_steps")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


class Expected:
    """One parameter stepped in float64, as the paper has it: hats first, then the average."""

    def __init__(self, param: Tensor) -> None:
        self.p = param.detach().double().cpu().clone()
        self.m, self.v, self.mc, self.vc = (torch.zeros_like(self.p) for _ in range(4))
        self.t = self.c = 0

    def step(self, grad: Tensor, s: dict, dtype: torch.dtype) -> None:
        g = grad.double().cpu() * (-1 if s["maximize"] else 1)
        if s["decoupled_weight_decay"]:
            self.p = self.p * (1 - s["lr"] * s["weight_decay"])
        else:
            g = g + s["weight_decay"] * self.p
        self.t += 1
        t, c = self.t, self.c
        self.m = s["beta1"] * self.m + (1 - s["beta1"]) * g
        self.v = s["beta2"] * self.v + (1 - s["beta2"]) * g * g
        m = self.m / (1 - s["beta1"] ** t)
        v = self.v / (1 - s["beta2"] ** (t + c if s["second_moment"] == "ema" else t))
        if s["first_moment"] == "task":
            m = (t * m + c * self.mc) / (t + c)
        if s["second_moment"] == "task":
            v = (t * v + c * self.vc) / (t + c)
        if s["second_moment"] == "task_seen":
            v = torch.where(self.vc == 0, v, (t * v + c * self.vc) / (t + c))
        self.p = self.p - (1 - s["beta3"] ** t) * s["lr"] * m / (v.sqrt() + s["eps"])
        self.p = self.p.to(dtype).double()

    def end_task(self, s: dict) -> None:
        t, c = self.t, self.c
        if t == 0:
            return
        if s["first_moment"] == "task":
            self.mc = (t * self.m / (1 - s["beta1"] ** t) + c * self.mc) / (t + c)
        if s["second_moment"] in AVERAGED:
            self.vc = (t * self.v / (1 - s["beta2"] ** t) + c * self.vc) / (t + c)
        if s["first_moment"] != "ema":
            self.m = torch.zeros_like(self.m)
        if s["second_moment"] != "ema":
            self.v = torch.zeros_like(self.v)
        self.t, self.c = 0, c + t


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)


class Actual:
    """The lists that `CudaKernel.step` takes."""

    def __init__(self, params: list[Tensor], state_dtypes: list[torch.dtype] | None = None) -> None:
        self.params = params
        self.kernel = CudaKernel()
        dtypes = state_dtypes or [
            torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype for p in params
        ]
        moments = [
            [torch.zeros_like(p, dtype=dtype) for p, dtype in zip(params, dtypes, strict=True)]
            for _ in range(4)
        ]
        counts = [[torch.zeros((), device=DEVICE) for _ in params] for _ in range(2)]
        self.lists = dict(zip(NAMES, (*moments, *counts), strict=True))

    def step(self, grads: list[Tensor | None], s: dict, scale=None, found_inf=None) -> None:
        here = [i for i, g in enumerate(grads) if g is not None]
        pick = [[xs[i] for i in here] for xs in (self.params, grads, *self.lists.values())]
        self.kernel.step(Tensors(*pick), Settings(**s), scale, found_inf)

    def end_task(self, s: dict) -> None:
        group = {"past_dtype": "float32"}  # v_c like the other moments: nothing is rounded
        draws = [draw_of(group, place) for place in range(len(self.params))]
        tensors = Tensors(self.params, [], *self.lists.values())
        self.kernel.end_task(tensors, Settings(**s), draws)


def check(actual: Actual, expected: list[Expected], s: dict) -> None:
    for i, (p, e) in enumerate(zip(actual.params, expected, strict=True)):
        close(p, e.p, TOLERANCE[p.dtype], f"param {i}")
        kept = [("exp_avg", e.m), ("exp_avg_sq", e.v)]
        kept += [("past_exp_avg_sq", e.vc)] if s["second_moment"] in AVERAGED else []
        kept += [("past_exp_avg", e.mc)] if s["first_moment"] == "task" else []
        for name, want in kept:
            x = actual.lists[name][i]
            close(x, want, max(TOLERANCE[x.dtype], TOLERANCE[p.dtype] / 4), f"{name} {i}")
        assert actual.lists["step"][i].item() == e.t
        assert actual.lists["past_steps"][i].item() == e.c


def close(x: Tensor, want: Tensor, tolerance: float, what: str) -> None:
    x = x.detach().double().cpu()
    assert x.isfinite().all(), what
    error = (x - want).norm().item() / (want.norm().item() + 1e-30)
    assert error <= tolerance or want.numel() == 0, f"{what}: off by {error:.2e}"
    worst = (x - want).abs().max().item() if want.numel() else 0.0
    scale = want.abs().max().item() if want.numel() else 1.0
    assert worst <= 50 * tolerance * (scale + 1e-30), f"{what}: an element is off by {worst:.2e}"


def drive(actual: Actual, s: dict, grads_of=None, tasks: tuple[int, ...] = (3, 1, 4)) -> None:
    expected = [Expected(p) for p in actual.params]
    dtypes = [p.dtype for p in actual.params]
    for task, steps in enumerate(tasks):
        for k in range(steps):
            if grads_of is not None:
                grads = grads_of(task, k)
            else:
                grads = [make(tuple(p.shape), p.dtype) for p in actual.params]
            actual.step(grads, s)
            for e, g, dtype in zip(expected, grads, dtypes, strict=True):
                if g is not None:
                    e.step(g, s, dtype)
        check(actual, expected, s)
        actual.end_task(s)
        for e in expected:
            e.end_task(s)
        check(actual, expected, s)


SHAPES = [(), (1,), (7,), (64, 33), (2048,), (4096,), (2049,), (0,), (130, 100)]


@pytest.mark.parametrize(("first", "second"), POLICIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_policies(first: str, second: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    s = SETTINGS | {"first_moment": first, "second_moment": second}
    actual = Actual([make(shape, dtype) for shape in SHAPES])

    def grads_of(task: int, _: int) -> list[Tensor]:
        """Every second element is first moved in the last task."""
        grads = [make(tuple(p.shape), dtype) for p in actual.params]
        for grad in grads:
            grad.flatten()[::2] *= task == 2
        return grads

    drive(actual, s, grads_of)


@pytest.mark.parametrize(
    "change",
    [
        {"maximize": True},
        {"decoupled_weight_decay": False},
        {"weight_decay": 0.0},
        {"beta3": 0.0},
        {"beta1": 0.0, "beta2": 0.5},
        {"eps": 1e-3, "lr": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_settings(change: dict, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    drive(Actual([make(shape, dtype) for shape in SHAPES]), SETTINGS | change)


def test_mixed_dtypes_in_one_call() -> None:
    torch.manual_seed(2)
    dtypes = (torch.bfloat16, torch.float32, torch.float16, torch.float64)
    params = [make((s,), d) for s in (10, 5000) for d in dtypes]
    drive(Actual(params), SETTINGS)


def test_half_state_stays_half() -> None:
    """Not what our optimizers make, but what a foreign checkpoint may hold."""
    torch.manual_seed(3)
    params = [make((33,), torch.bfloat16)]
    actual = Actual(params, [torch.bfloat16])
    actual.step([make((33,), torch.bfloat16)], SETTINGS)
    assert actual.lists["exp_avg"][0].dtype is torch.bfloat16
    assert actual.lists["exp_avg"][0].float().norm() > 0


def test_gradients_of_another_dtype() -> None:
    torch.manual_seed(4)
    params = [make((3000,)), make((17,))]
    grads = lambda *_: [make((3000,), torch.bfloat16), make((17,), torch.bfloat16)]  # noqa: E731
    drive(Actual(params), SETTINGS, grads)


def test_layouts() -> None:
    torch.manual_seed(5)
    big = make((40, 50))
    params = [
        make((8, 4, 6, 6)).to(memory_format=torch.channels_last),
        make((30, 20)).t(),
        big[:, 7:19],  # not dense
        make((16, 3, 1, 1)),
        make((301,))[1:],  # dense, not aligned
        make((2, 3, 5)).permute(2, 0, 1),
    ]

    def grads(*_) -> list[Tensor]:
        return [
            make((8, 4, 6, 6)),
            make((20, 30)),
            make((40, 12)),
            make((16, 3, 1, 1)).to(memory_format=torch.channels_last),
            make((300,)),
            make((1,)).expand(5, 2, 3),
        ]

    before = big[:, :7].clone()
    drive(Actual(params), SETTINGS, grads)
    assert torch.equal(big[:, :7], before)


@pytest.mark.parametrize("many", [False, True])
def test_neighbours_are_left_alone(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every alignment, around the sizes of blocks and chunks, with guards between the tensors."""
    torch.manual_seed(6)
    monkeypatch.setattr(plan, "_ENOUGH", 0 if many else 2**40)
    block, chunk = plan.BLOCK, plan.BLOCK * plan.MANY
    sizes = [1, 2, 3, 4, 5, 8, 15, 16, block - 1, block, block + 8, chunk, chunk + 3, 2 * chunk + 8]
    buffer = torch.full((sum(sizes) + len(sizes) + 1,), 7.0, device=DEVICE)
    params, guards, at = [], [0], 1
    for size in sizes:
        params.append(buffer[at : at + size])
        params[-1].copy_(make((size,)))
        at += size
        guards.append(at)
        at += 1
    drive(Actual(params), SETTINGS)
    assert (buffer[guards] == 7.0).all()


def test_missing_gradients_and_untouched_parameters() -> None:
    torch.manual_seed(7)
    params = [make((100,)), make((5000,)), make((3,))]

    def grads(task: int, k: int) -> list[Tensor | None]:
        return [make((100,)), None if task == 1 else make((5000,)), make((3,)) if k == 1 else None]

    drive(Actual(params), SETTINGS, grads, tasks=(2, 1, 3))


def test_many_steps_keep_the_bias_correction() -> None:
    """0.999**t from a float32 0.999 would be off by 1e-4 here."""
    torch.manual_seed(8)
    params = [make((64,))]
    actual, expected = Actual(params), [Expected(params[0])]
    for t in (1, 10, 300, 5000, 200_000, 16_000_000):
        actual.lists["step"][0].fill_(t - 1)
        expected[0].t = t - 1
        grad = make((64,))
        actual.step([grad], SETTINGS)
        expected[0].step(grad, SETTINGS, torch.float32)
        check(actual, expected, SETTINGS)


def test_grad_scale_and_found_inf() -> None:
    torch.manual_seed(9)
    params = [make((3000,)), make((10,), torch.bfloat16)]
    actual, expected = Actual(params), [Expected(p) for p in params]
    scale, zero, one = (torch.tensor(x, device=DEVICE) for x in (1024.0, 0.0, 1.0))
    for found in (zero, one, zero):
        grads = [make(tuple(p.shape)).to(p.dtype) for p in params]
        kept = [g.clone() for g in grads]
        actual.step(grads, SETTINGS, scale, found)
        assert all(torch.equal(a, b) for a, b in zip(grads, kept, strict=True))
        if found is zero:
            for e, g, p in zip(expected, grads, params, strict=True):
                e.step(g.double() / 1024, SETTINGS, p.dtype)
        check(actual, expected, SETTINGS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_learning_rate_on_the_device(dtype: torch.dtype) -> None:
    torch.manual_seed(10)
    params = [make((3000,), torch.float64)]
    actual, expected = Actual(params), [Expected(params[0])]
    for rate in (0.5, 0.25):
        grad = make((3000,), torch.float64)
        actual.step([grad], SETTINGS | {"lr": torch.tensor(rate, dtype=dtype, device=DEVICE)})
        expected[0].step(grad, SETTINGS | {"lr": rate}, torch.float64)
    check(actual, expected, SETTINGS)


def test_boundary_without_a_step_changes_nothing() -> None:
    torch.manual_seed(11)
    params = [make((3000,))]
    actual = Actual(params)
    actual.step([make((3000,))], SETTINGS)
    actual.end_task(SETTINGS)
    before = {k: xs[0].clone() for k, xs in actual.lists.items()}
    actual.end_task(SETTINGS)
    assert all(torch.equal(actual.lists[k][0], x) for k, x in before.items())


def test_parameters_count_as_modified_in_place() -> None:
    p = make((4,)).requires_grad_()
    actual = Actual([p])
    loss = (p * p).sum()
    with torch.no_grad():
        actual.step([make((4,))], SETTINGS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
