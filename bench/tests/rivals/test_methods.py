"""L2, SI, LwF, EWC by Adam's v, routed moments, CoMA and CoFiMA against naive re-computations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longtail import ContinualAdamW
from longtail.methods import AGEM, EWC, L2, CoMA, LwF, Method, SynapticIntelligence
from longtail.methods.agem import project
from longtail.methods.buffers import ReservoirBuffer, TaskBuffer
from longtail.tasks import CLASSIFICATION, REGRESSION, Ragged, TensorExamples
from longtail.tasks.task_models import TaskModel
from longtail_bench.rivals.badam import BAdam
from longtail_bench.rivals.cofima import CoFiMA
from longtail_bench.rivals.ewc_adam import EWCAdam
from longtail_bench.rivals.routed import RoutedAGEM, RoutedEWC
from longtail_bench.rivals.with_replay import ReservoirCoMA, ReservoirL2


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


class TwoHeads(nn.Module):
    """Of which one is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)
        self.use = "first"

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, self.use)(x)


def data(n: int = 9) -> TensorExamples:
    return TensorExamples(torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,)))


def copies(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def zeros(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) for p in model.parameters()]


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def learn(method: Method, model: nn.Module, examples: TensorExamples, steps: int = 3) -> None:
    """A task in a loop of one's own."""
    if method.optimizer is None:
        method.optimizer = ContinualAdamW(
            model.parameters(), lr=0.05, second_moment="reset", beta3=0.0
        )
    for i in range(steps):
        batch = examples[torch.tensor([i, i + 1, i + 2])]
        method.optimizer.zero_grad()
        method.loss(batch).backward()
        method.after_backward()
        method.optimizer.step()
        method.observe(batch)
    method.end_task(examples)
    method.optimizer.end_task()  # pyright: ignore[reportAttributeAccessIssue]


def gradient_of(method: Method, model: nn.Module, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
    """What the optimizer would see."""
    model.zero_grad()
    method.loss(batch).backward()
    method.after_backward()
    return [p.grad.clone() for p in model.parameters()]


def pulled(
    model: nn.Module, batch: tuple[Tensor, Tensor], weights: list[Tensor], anchor: list[Tensor]
) -> list[Tensor]:
    """The gradient of the loss with a penalty Σ weights (θ - anchor)², by autograd."""
    penalty = sum(
        (w * (p - a) ** 2).sum()
        for w, p, a in zip(weights, model.parameters(), anchor, strict=True)
    )
    return gradients(cross_entropy(model(batch[0]), batch[1]) + penalty, model)


def test_l2_pulls_every_weight_to_where_the_last_task_left_it() -> None:
    model = mlp()
    method = L2(model, CLASSIFICATION, strength=0.3)
    batch = data()[torch.arange(4)]
    none = zeros(model)
    close(gradient_of(method, model, batch), pulled(model, batch, none, none))
    for _ in range(2):
        learn(method, model, data())
    anchor = copies(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    wanted = pulled(model, batch, [torch.full_like(a, 0.3) for a in anchor], anchor)
    close(gradient_of(method, model, batch), wanted)


def test_si_weighs_by_what_each_step_did_for_the_loss() -> None:
    model = mlp()
    method = SynapticIntelligence(model, CLASSIFICATION, strength=0.7, damping=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    Omega, anchor = zeros(model), copies(model)
    for _ in range(3):
        examples, omega, start = data(), zeros(model), copies(model)
        for i in range(4):
            batch = examples[torch.tensor([i, i + 1, i + 3])]
            before = copies(model)
            g = gradients(cross_entropy(model(batch[0]), batch[1]), model)
            wanted = pulled(model, batch, [0.7 * f for f in Omega], anchor)
            close(gradient_of(method, model, batch), wanted)
            optimizer.step()
            method.observe(batch)
            method.observe(batch)  # the second batch of a step of two changes nothing
            omega = [
                w - a * (p.detach() - b)
                for w, a, p, b in zip(omega, g, model.parameters(), before, strict=True)
            ]
        method.end_task(examples)
        anchor = copies(model)
        Omega = [
            (f + w / ((a - s) ** 2 + 0.01)).clamp(min=0)
            for f, w, a, s in zip(Omega, omega, anchor, start, strict=True)
        ]
        close(method.sum_F, Omega)
    assert max(f.max() for f in Omega) > 0


def test_si_refuses_weights_that_are_drawn_around_what_was_learned() -> None:
    model = mlp()
    method = SynapticIntelligence(model, CLASSIFICATION)
    method.optimizer = BAdam(model.parameters(), lr=0.1)
    batch = data()[torch.arange(3)]
    gradient_of(method, model, batch)
    method.optimizer.step()
    with pytest.raises(ValueError, match="what BAdam trains is not what it has learned"):
        method.observe(batch)


def test_lwf_learns_the_softened_answers_of_the_last_task() -> None:
    model = mlp()
    method = LwF(model, CLASSIFICATION, strength=0.5, temperature=2.0)
    x, y = batch = data()[torch.arange(4)]
    torch.testing.assert_close(method.loss(batch), cross_entropy(model(x), y))
    learn(method, model, data())
    old = model(x).detach()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    new = model(x)
    rows = [
        -sum(p * q.log() for p, q in zip((a / 2).softmax(0), (b / 2).softmax(0), strict=True))
        for a, b in zip(old, new, strict=True)
    ]
    wanted = cross_entropy(new, y) + 0.5 * torch.stack(rows).mean()
    torch.testing.assert_close(method.loss(batch).double(), wanted, rtol=1e-6, atol=1e-7)
    close(gradients(method.loss(batch), model), gradients(wanted, model))


class Candidates(nn.Module):
    """Scores of each example's own candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2, 1)

    def forward(self, rows: Tensor) -> Ragged:
        return Ragged(self.score(rows).squeeze(-1), torch.tensor([3, 1, 2]))


def test_lwf_looks_at_an_examples_own_candidates_alone() -> None:
    model = Candidates()
    method = LwF(model, CLASSIFICATION)
    x, y = torch.randn(3, 3, 2), torch.tensor([2, 0, 1])
    method.end_task(TensorExamples(x, y))
    plain = CLASSIFICATION.loss(model(x), y).mean()
    z = model(x).padded.detach()
    entropy = torch.stack([-((p := (z[i, :n] / 2).softmax(0)) * p.log()).sum() for i, n in
                           enumerate((3, 1, 2))]).mean()  # fmt: skip
    torch.testing.assert_close(method.loss((x, y)), plain + entropy)
    method.loss((x, y)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_lwf_matches_numbers_by_their_square() -> None:
    model = nn.Sequential(nn.Linear(6, 1, bias=False), nn.Flatten(-2)).double()
    method = LwF(model, REGRESSION, strength=2.0)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    method.end_task(TensorExamples(x, y))
    old = model(x).detach()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    wanted = (model(x) - y).square().mean() + 2.0 * (model(x) - old).square().mean()
    torch.testing.assert_close(method.loss((x, y)), wanted)


@pytest.mark.parametrize("width", [1, 4])
def test_lwf_matches_rows_of_numbers_by_their_mean_square(width) -> None:
    model = nn.Linear(6, width).double()
    method = LwF(model, REGRESSION, strength=2.0)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    method.end_task(TensorExamples(x, y))
    old = model(x).detach()
    with torch.no_grad():
        model.weight.add_(1.0)
    found = method._distance(model(x), old)
    torch.testing.assert_close(found, (model(x) - old).square().mean(-1))
    assert (found > 0).all()


class OwnHead(TaskModel):
    """A trunk, and one head a task of which the present one is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 5), nn.Parameter(torch.zeros(3, 5))
        self.register_buffer("heads", torch.zeros(3, 3, 5))
        self.current = 0

    def begin_task(self, task: int) -> None:
        with torch.no_grad():
            self.heads[self.current] = self.head
            self.head.copy_(self.heads[task])
        self.current = task

    def task_parameters(self) -> list[nn.Parameter]:
        return [self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x).tanh() @ self.head.T


def test_lwf_counts_a_batch_once_in_running_statistics() -> None:
    """Where each task has its own head the weights answer twice, BatchNorm learns from once."""

    class Normed(OwnHead):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x))

    plain, model = Normed(), Normed()
    method = LwF(model, CLASSIFICATION)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    for _ in range(2):
        plain.norm(x)
        method.loss((x, y)).backward()
        method.end_task(TensorExamples(x, y))
    assert model.norm.num_batches_tracked == plain.norm.num_batches_tracked == 2
    torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
    torch.testing.assert_close(model.norm.running_var, plain.norm.running_var)


def test_lwf_asks_the_last_tasks_head_where_each_task_has_its_own() -> None:
    model = OwnHead()
    method = LwF(model, CLASSIFICATION, temperature=1.0)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    with torch.no_grad():
        model.head.normal_()
    method.end_task(TensorExamples(x, y))
    trunk, head = (
        [p.detach().clone() for p in model.trunk.parameters()],
        model.head.detach().clone(),
    )
    model.begin_task(1)
    with torch.no_grad():
        model.trunk.weight.add_(0.5)
    p = ((x @ trunk[0].T + trunk[1]).tanh() @ head.T).softmax(-1)
    q = (model.trunk(x).tanh() @ head.T).log_softmax(-1)
    wanted = cross_entropy(model(x), y) - (p * q).sum(-1).mean()
    torch.testing.assert_close(method.loss((x, y)), wanted)
    grads = torch.autograd.grad(method.loss((x, y)), list(model.trunk.parameters()))
    for a, b in zip(
        grads, torch.autograd.grad(wanted, list(model.trunk.parameters())), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cls", [torch.optim.AdamW, ContinualAdamW])
def test_ewc_by_adams_v_is_the_sum_over_tasks_with_v_as_fisher(cls) -> None:
    model = mlp()
    method = EWCAdam(model, CLASSIFICATION, strength=0.4)
    optimizer = method.optimizer = cls(model.parameters(), lr=0.05)
    batch = data()[torch.arange(4)]
    v, t, past = zeros(model), 0, []
    for _ in range(3):
        examples = data()
        if cls is ContinualAdamW:
            v, t = zeros(model), 0
        for i in range(4):
            found = gradient_of(method, model, examples[torch.tensor([i, i + 1])])
            v, t = [0.999 * a + 0.001 * g**2 for a, g in zip(v, found, strict=True)], t + 1
            optimizer.step()
        method.end_task(examples)
        if isinstance(optimizer, ContinualAdamW):
            optimizer.end_task()
        past.append(([a / (1 - 0.999**t) for a in v], copies(model)))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    wanted = gradients(cross_entropy(model(batch[0]), batch[1]), model)
    for fisher, anchor in past:
        wanted = [
            g + 0.8 * f * (p.detach() - a)
            for g, f, p, a in zip(wanted, fisher, model.parameters(), anchor, strict=True)
        ]
    for a, b in zip(gradient_of(method, model, batch), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)


def test_what_reads_the_optimizer_wants_to_know_it_and_its_moments() -> None:
    model = mlp()
    examples = data()
    method = EWCAdam(model, CLASSIFICATION)
    with pytest.raises(ValueError, match=r"method\.optimizer = optimizer"):
        method.end_task(examples)
    optimizer = method.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradient_of(method, model, examples[torch.arange(3)])
    optimizer.step()
    with pytest.raises(ValueError, match=r"'exp_avg_sq' .* SGD has no betas"):
        method.end_task(examples)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("cls", [RoutedEWC, RoutedAGEM])
def test_routing_without_adams_moments_is_refused_and_does_not_pass_silently(cls, momentum) -> None:
    model = mlp()
    method = cls(model, CLASSIFICATION)
    method.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    with pytest.raises(ValueError, match=r"'exp_avg' .* SGD has no betas"):
        gradient_of(method, model, data()[torch.arange(3)])
    method.optimizer = torch.optim.Adamax(model.parameters(), lr=0.1)
    gradient_of(method, model, data()[torch.arange(3)])
    method.optimizer.step()
    with pytest.raises(ValueError, match=r"'exp_avg_sq' .* Adamax keeps step, exp_avg, exp_inf"):
        gradient_of(method, model, data()[torch.arange(3)])


def test_a_second_moment_without_memory_is_the_last_gradient_squared() -> None:
    model = mlp()
    method = EWCAdam(model, CLASSIFICATION)
    method.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.0))
    found = gradient_of(method, model, data()[torch.arange(3)])
    method.optimizer.step()
    method.end_task(data())
    close(method.sum_F, [g**2 for g in found])


@pytest.mark.parametrize("ours", [True, False])
def test_a_head_that_rests_is_not_counted_again_by_the_v_it_still_has(ours) -> None:
    model = TwoHeads().double()
    method = EWCAdam(model, CLASSIFICATION)
    make = ContinualAdamW if ours else torch.optim.AdamW
    method.optimizer = make(model.parameters(), lr=0.05)
    seen = []
    for use in ("first", "second", "second", "first"):
        model.use = use
        for i in range(3):
            gradient_of_used(method, model, data()[torch.arange(i, i + 3)])
            method.optimizer.step()
        method.end_task(data())
        seen.append([float(F.sum()) for F in method.sum_F])
    first, second = ([s[i] for s in seen] for i in (0, 2))
    assert 0 < first[0] == first[1] == first[2] < first[3]
    assert 0 == second[0] < second[1] < second[2] == second[3]


def gradient_of_used(method: Method, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    model.zero_grad()
    method.loss(batch).backward()
    method.after_backward()


def test_a_routed_change_without_a_moment_to_go_to_is_held_as_well() -> None:
    """After a reset that forgets the state, v would divide by the penalty for the whole task."""
    model = mlp()
    method = RoutedEWC(model, CLASSIFICATION, strength=1e4, limit=1.0)
    learn(method, model, data())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    method.optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    batch = data()[torch.arange(4)]
    raw = gradients(cross_entropy(model(batch[0]), batch[1]), model)
    found = gradient_of(method, model, batch)
    assert not torch.equal(found[0], raw[0])
    for g, seen in zip(raw, found, strict=True):
        assert ((seen - g).abs() <= g.abs() * (1 + 1e-12)).all()


@pytest.mark.parametrize("limit", [1e9, 1.0])
@pytest.mark.parametrize("kind", ["ewc", "agem"])
def test_a_routed_change_is_in_the_first_moment_and_not_in_the_second(kind, limit) -> None:
    model = mlp()
    if kind == "ewc":
        plain: Method = EWC(model, CLASSIFICATION, strength=5.0)
        method: Method = RoutedEWC(model, CLASSIFICATION, strength=5.0, limit=limit)
    else:
        plain = AGEM(model, CLASSIFICATION, seed=3, buffer=6)
        method = RoutedAGEM(model, CLASSIFICATION, seed=3, buffer=6, limit=limit)
    optimizer = method.optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    m, v, t, differ, held = zeros(model), zeros(model), 0, False, False
    for _ in range(3):
        examples = data()
        for i in range(4):
            batch = examples[torch.tensor([i, i + 1, i + 4])]
            raw = gradients(cross_entropy(model(batch[0]), batch[1]), model)
            modified = gradient_of(plain, model, batch)
            close(gradient_of(method, model, batch), raw)  # the optimizer steps along g
            for j, (g, g_) in enumerate(zip(raw, modified, strict=True)):
                size = (v[j] / (1 - 0.999**t)).sqrt() if t else torch.zeros_like(v[j])
                bound = limit * torch.maximum(size, g.abs())
                d = torch.minimum(torch.maximum(g_ - g, -bound), bound)
                differ, held = differ or bool((d != 0).any()), held or not torch.equal(d, g_ - g)
                m[j] = 0.9 * m[j] + 0.1 * (g + d)
                v[j] = 0.999 * v[j] + 0.001 * g**2
            optimizer.step()
            t += 1
            for j, p in enumerate(model.parameters()):
                torch.testing.assert_close(optimizer.state[p]["exp_avg"], m[j])
                torch.testing.assert_close(optimizer.state[p]["exp_avg_sq"], v[j])
        for each in (plain, method):
            each.end_task(examples)
    assert differ
    assert held == (limit == 1.0)


@pytest.mark.parametrize("history", [1.0, 2.5, 100.0])
def test_coma_averages_old_and_new_weights_with_a_capped_history(history: float) -> None:
    model = mlp()
    method = CoMA(model, CLASSIFICATION, history=history)
    past, h = copies(model), 0.0
    for _ in range(5):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        new = copies(model)
        method.end_task(data())
        past = [(h * a + b) / (h + 1) for a, b in zip(past, new, strict=True)]
        h = min(h + 1, history)
        close(copies(model), past)


def naive_fisher(model: nn.Module, examples: TensorExamples) -> list[Tensor]:
    total = zeros(model)
    for i in range(len(examples)):
        x, y = examples[torch.tensor([i])]
        each = gradients(cross_entropy(model(x), y), model)
        total = [t + g**2 / len(examples) for t, g in zip(total, each, strict=True)]
    return total


def test_cofima_weighs_each_weight_by_the_fisher_information_of_its_tasks() -> None:
    model = mlp()
    method = CoFiMA(model, CLASSIFICATION, history=2.0)
    past, past_F, h = copies(model), zeros(model), 0.0
    for _ in range(4):
        examples = data()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        new, F = copies(model), naive_fisher(model, examples)
        method.end_task(examples)
        past = [
            (h * P * a + f * b) / (h * P + f)
            for P, f, a, b in zip(past_F, F, past, new, strict=True)
        ]
        past_F = [(h * P + f) / (h + 1) for P, f in zip(past_F, F, strict=True)]
        h = min(h + 1, 2.0)
        close(copies(model), past)


@pytest.mark.parametrize("cls", [CoMA, CoFiMA])
def test_a_head_that_is_learned_for_the_first_time_is_not_averaged_with_its_start(cls) -> None:
    model = TwoHeads().double()
    method = cls(model, CLASSIFICATION, **({"fisher": "batch"} if cls is CoFiMA else {}))
    for use in ("first", "first", "second"):
        model.use = use
        with torch.no_grad():
            getattr(model, use).weight.add_(1.0)
        before = copies(model)
        method.end_task(data())
        averaged = [not torch.equal(a, b) for a, b in zip(before, copies(model), strict=True)]
        assert not any(averaged[2:])
    assert not averaged[0]  # of the task that used the other one


def test_cofima_keeps_what_it_knows_of_a_head_that_rests() -> None:
    """After any number of tasks on the other head its past counts as much as before them."""

    def after(resting: int) -> Tensor:
        torch.manual_seed(1)
        model = TwoHeads().double()
        method = CoFiMA(model, CLASSIFICATION, fisher="batch", history=1.0)
        examples = data()
        for use in ("first", *["second"] * resting, "first"):
            model.use = use
            with torch.no_grad():
                getattr(model, use).weight.add_(1.0)
            method.end_task(examples)
        return model.first.weight.detach()

    torch.testing.assert_close(after(10), after(0))


def test_replay_beside_a_penalty_has_the_loss_of_one_and_the_gradient_of_both() -> None:
    model = mlp()
    method = ReservoirL2(model, CLASSIFICATION, seed=3, buffer=8, strength=0.2)
    twin = ReservoirBuffer(8, 3)
    x, y = first = data()[torch.arange(6)]
    method.loss(first)
    method.observe(first)
    twin.add(*first)
    method.end_task(data())
    anchor = copies(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    x, y = batch = data()[torch.arange(6)]
    xr, yr = twin.draw(6)
    wanted = cross_entropy(model(x), y) + cross_entropy(model(xr), yr)
    grads = gradients(wanted, model)
    wanted_grads = [
        g + 0.4 * (p.detach() - a)
        for g, p, a in zip(grads, model.parameters(), anchor, strict=True)
    ]
    close(gradient_of(method, model, batch), wanted_grads)


def test_replay_beside_an_average_stores_and_averages() -> None:
    model = mlp()
    method = ReservoirCoMA(model, CLASSIFICATION, seed=3, buffer=8)
    learn(method, model, data())
    first = copies(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    method.end_task(data())
    close(copies(model), [a + 0.5 for a in first])
    assert len(method.buffer) == 8
    other = ReservoirCoMA(mlp(), CLASSIFICATION, seed=3, buffer=8)
    other.load_state_dict(method.state_dict())
    close(other.anchor, method.anchor)
    assert len(other.buffer) == 8


def test_routing_and_projection_share_their_buffer() -> None:
    """The twins above draw the same rows, which makes them comparable."""
    one, other = TaskBuffer(6, 3), TaskBuffer(6, 3)
    for buffer in (one, other):
        torch.manual_seed(1)
        buffer.add_task(data())
    assert torch.equal(one.draw(3)[1], other.draw(3)[1])
    g = [torch.ones(2, dtype=torch.float64)]
    project(g, [-torch.ones(2, dtype=torch.float64)], ())
    torch.testing.assert_close(g[0], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (L2, {"strength": -1.0}, "strength: -1.0"),
        (SynapticIntelligence, {"damping": 0.0}, "damping: 0.0"),
        (LwF, {"temperature": 0.0}, "temperature: 0.0"),
        (LwF, {"strength": float("nan")}, "strength: nan"),
        (RoutedEWC, {"limit": 0.0}, "limit: 0.0"),
        (RoutedAGEM, {"buffer": 0}, "buffer: 0"),
        (CoMA, {"history": 0.0}, "history: 0.0"),
        (CoFiMA, {"fisher": "full"}, "fisher: 'full'"),
        (ReservoirL2, {"buffer": 0}, "buffer: 0"),
        (ReservoirL2, {"strength": -1.0}, "strength: -1.0"),
    ],
)
def test_mistakes_are_named(cls, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        cls(mlp(), CLASSIFICATION, **settings)
