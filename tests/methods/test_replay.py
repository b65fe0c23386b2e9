"""Reservoir, DER++ and A-GEM against naive re-computations of losses, gradients and buffers."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from longtail.methods import AGEM, METHODS, DERPlusPlus, Reservoir
from longtail.methods.agem import project
from longtail.methods.buffers import ReservoirBuffer, TaskBuffer
from longtail.replicas import Replicas
from longtail.tasks import CLASSIFICATION, REGRESSION, Ragged, TensorExamples


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def data(n: int = 8) -> TensorExamples:
    return TensorExamples(torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,)))


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_all_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_reservoir_adds_the_loss_of_as_many_replayed_examples() -> None:
    model = mlp()
    method = Reservoir(model, CLASSIFICATION, seed=3, buffer=10)
    twin = ReservoirBuffer(10, 3)
    for _ in range(5):
        x, y = batch = data()[torch.arange(6)]
        loss = method.loss(batch)
        wanted = cross_entropy(model(x), y)
        if len(twin):
            replayed, labels = twin.draw(6)
            wanted = wanted + cross_entropy(model(replayed), labels)
        torch.testing.assert_close(loss, wanted)
        assert_all_close(gradients(loss, model), gradients(wanted, model))
        torch.testing.assert_close(method.outputs, model(x).detach())
        assert not method.outputs.requires_grad
        method.observe(batch)
        twin.add(*batch)
    assert len(method.buffer) == 10
    for a, b in zip(method.buffer.draw(10), twin.draw(10), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["reservoir", "derpp", "agem"])
def test_a_memory_smaller_than_the_draw_counts_every_row_once(name: str) -> None:
    """A batch of six beside a memory of four: the mean of each is over its own rows."""
    model = mlp()
    method = METHODS[name](model, CLASSIFICATION, seed=3, buffer=4)
    old, (x, y) = data(4), data()[torch.arange(6)]
    xr, yr = old[torch.arange(4)]
    method.loss((xr, yr))
    method.observe((xr, yr))
    method.end_task(old)
    replayed, new = cross_entropy(model(xr), yr), cross_entropy(model(x), y)
    model.zero_grad()
    loss = method.loss((x, y))
    if name == "agem":
        loss.backward()
        method.after_backward()
        wanted = gradients(new, model)
        project(wanted, gradients(replayed, model), ())
        assert_all_close([p.grad for p in model.parameters()], wanted)
    else:  # stored outputs are the present ones, so DER++ has nothing to match
        torch.testing.assert_close(loss, new + replayed)
        assert_all_close(gradients(loss, model), gradients(new + replayed, model))


def test_derpp_matches_stored_outputs_and_replays_labels_from_two_draws() -> None:
    model = mlp()
    method = DERPlusPlus(model, CLASSIFICATION, seed=3, buffer=20, alpha=0.5, beta=0.25)
    twin = ReservoirBuffer(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        x, y = batch = data()[torch.arange(6)]
        outputs = model(x)
        wanted = cross_entropy(outputs, y)
        if len(twin):
            (x1, _, z1), (x2, y2, _) = twin.draw(6), twin.draw(6)
            assert torch.equal(x1, x2) == (len(twin) == 6)  # the whole memory, or two choices
            wanted = wanted + 0.5 * mse_loss(model(x1), z1)
            wanted = wanted + 0.25 * cross_entropy(model(x2), y2)
        optimizer.zero_grad()
        loss = method.loss(batch)
        torch.testing.assert_close(loss, wanted)
        assert_all_close(gradients(loss, model), gradients(wanted, model))
        cross_entropy(model(x), y).backward()
        optimizer.step()
        method.observe(batch)
        twin.add(x, y, outputs.detach())  # as they were before the step
    for a, b in zip(method.buffer.draw(10), twin.draw(10), strict=True):
        torch.testing.assert_close(a, b)


def test_derpp_with_batch_norm_keeps_the_three_parts_apart() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    method = DERPlusPlus(model, CLASSIFICATION, buffer=20)
    first, second = data()[torch.arange(6)], data()[torch.arange(6)]
    method.loss(first)
    method.observe(first)
    twin = copy.deepcopy(method.buffer)
    loss = method.loss(second)
    (x1, _, z1), (x2, y2, _) = twin.draw(6), twin.draw(6)
    wanted = (
        cross_entropy(model(second[0]), second[1])
        + mse_loss(model(x1), z1)
        + cross_entropy(model(x2), y2)
    )
    torch.testing.assert_close(loss, wanted)


def test_derpp_of_a_regression_matches_one_number_per_example() -> None:
    model = nn.Sequential(nn.Linear(6, 1), nn.Flatten(-2)).double()
    method = DERPlusPlus(model, REGRESSION, seed=1, buffer=20)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    method.loss((x, y))
    method.observe((x, y))
    twin = copy.deepcopy(method.buffer)
    (x1, _, z1), (x2, y2, _) = twin.draw(4), twin.draw(4)
    wanted = mse_loss(model(x), y) + mse_loss(model(x1), z1) + mse_loss(model(x2), y2)
    torch.testing.assert_close(method.loss((x, y)), wanted)


def agem_step(method: AGEM, model: nn.Module, batch) -> list[Tensor]:
    model.zero_grad()
    method.loss(batch).backward()
    method.after_backward()
    return [p.grad.clone() for p in model.parameters()]


def test_agem_projects_only_when_gradients_disagree() -> None:
    model = mlp()
    method = AGEM(model, CLASSIFICATION, seed=3, buffer=10)
    twin = TaskBuffer(10, 3)
    projected = 0
    for task in range(8):
        examples = data()
        x, y = batch = examples[torch.arange(6)]
        g = torch.cat([t.flatten() for t in gradients(cross_entropy(model(x), y), model)])
        if task:
            xr, yr = twin.draw(6)
            r = torch.cat([t.flatten() for t in gradients(cross_entropy(model(xr), yr), model)])
            if g @ r < 0:
                projected += 1
                g = g - (g @ r) / (r @ r) * r
        found = torch.cat([t.flatten() for t in agem_step(method, model, batch)])
        torch.testing.assert_close(found, g)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.5)
        method.end_task(examples)
        twin.add_task(examples)
    assert 0 < projected < 7


def test_agem_projects_each_replica_for_itself_and_survives_a_zero_reference() -> None:
    g = [torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])]
    r = [torch.tensor([[-1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])]
    project(g, r, (3,))
    torch.testing.assert_close(g[0], torch.tensor([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]))
    plain = [torch.tensor([1.0, 0.0])]
    project(plain, [torch.tensor([0.0, 0.0])], ())
    assert torch.equal(plain[0], torch.tensor([1.0, 0.0]))


def test_agem_draws_as_many_references_as_it_is_told() -> None:
    model = mlp()
    method = AGEM(model, CLASSIFICATION, seed=3, buffer=30, draw=17)
    method.end_task(data(30))
    twin = copy.deepcopy(method.buffer)
    x, y = batch = data()[torch.arange(6)]
    g = gradients(cross_entropy(model(x), y), model)
    xr, yr = twin.draw(17)
    project(g, gradients(cross_entropy(model(xr), yr), model), ())
    assert_all_close(agem_step(method, model, batch), g)
    # a padded batch weighs its own rows, not those of the draw
    weights = method.row_weights = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
    xr, yr = twin.draw(17)
    g = gradients(cross_entropy(model(x[:1]), y[:1]), model)
    project(g, gradients(cross_entropy(model(xr), yr), model), ())
    assert_all_close(agem_step(method, model, batch), g)
    assert method.row_weights is weights


def test_agem_of_a_step_in_several_batches_weighs_every_drawn_example_the_same() -> None:
    model = mlp()
    method = AGEM(model, CLASSIFICATION, seed=3, buffer=30)
    method.end_task(data(30))
    twin = copy.deepcopy(method.buffer)
    x, y = data()[torch.arange(8)]
    drawn = [twin.draw(6), twin.draw(2)]
    xr, yr = (torch.cat([part[i] for part in drawn]) for i in (0, 1))
    r = gradients(cross_entropy(model(xr), yr), model)
    for part in (slice(0, 6), slice(6, 8)):
        method.loss((x[part], y[part]))
    for p, t in zip(model.parameters(), r, strict=True):
        p.grad = torch.randn_like(t) - 3 * t  # against r, so that there is something to take out
    wanted = [p.grad.clone() for p in model.parameters()]
    project(wanted, r, ())
    method.after_backward()
    assert_all_close([p.grad for p in model.parameters()], wanted)


def test_agem_with_more_tasks_than_slots() -> None:
    model = mlp()
    method = AGEM(model, CLASSIFICATION, buffer=4)
    for _ in range(12):
        examples = data(3)
        agem_step(method, model, examples[torch.arange(3)])
        method.end_task(examples)
    assert len(method.buffer) == 4


class Choices(nn.Module):
    """Scores a different number of candidates for each row of token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 5)

    def forward(self, tokens: Ragged) -> Ragged:
        h = (self.embed(tokens.padded) * tokens.mask()[..., None]).sum(-2)
        candidates = 2 + tokens.padded[..., 0] % 4
        width = int(candidates.max())
        return Ragged(self.head(h)[..., :width], candidates)


def ragged_batch(longest: int, n: int = 4):
    lengths = torch.randint(1, longest + 1, (n,))
    tokens = Ragged(torch.randint(9, (n, int(lengths.max()))), lengths)
    return tokens, torch.randint(2, (n,))


def rows(ragged: Ragged) -> list[Tensor]:
    return [row[:k] for row, k in zip(ragged.padded, ragged.lengths, strict=True)]


@pytest.mark.parametrize("name", ["reservoir", "derpp", "agem"])
def test_replay_of_ragged_inputs_and_outputs(name: str) -> None:
    model = Choices()
    method = METHODS[name](model, CLASSIFICATION, seed=1, buffer=6)
    for longest in (2, 20, 3, 7):
        tokens, labels = batch = ragged_batch(longest)
        twin = copy.deepcopy(method.buffer)
        model.zero_grad()
        loss = method.loss(batch)
        if name == "derpp" and len(twin):
            (x1, _, z1), (x2, y2, _) = twin.draw(4), twin.draw(4)
            distance = [
                mse_loss(now, then) for now, then in zip(rows(model(x1)), rows(z1), strict=True)
            ]
            wanted = (
                CLASSIFICATION.loss(model(tokens), labels).mean()
                + torch.stack(distance).mean()
                + CLASSIFICATION.loss(model(x2), y2).mean()
            )
            torch.testing.assert_close(loss, wanted)
        loss.backward()
        method.after_backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        method.observe(batch)

        class Table:
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index, tokens=tokens, labels=labels):
                return Ragged(tokens.padded[index], tokens.lengths[index]), labels[index]

        method.end_task(Table())
        with torch.no_grad():  # what is stored is no longer what the model answers
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.3)
    assert len(method.buffer) > 0


@pytest.mark.parametrize("name", METHODS)
def test_a_method_alone_in_a_loop_of_ones_own(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    method = METHODS[name](model, CLASSIFICATION)
    optimizer = method.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        x, y = torch.randn(32, 6), torch.randint(3, (32,))
        losses = []
        for rows_ in torch.arange(32).split(8) * 4:
            optimizer.zero_grad()
            loss = method.loss((x[rows_], y[rows_]))
            loss.backward()
            method.after_backward()
            optimizer.step()
            method.observe((x[rows_], y[rows_]))
            losses.append(loss.item())
        method.end_task(TensorExamples(x, y))
        assert loss.isfinite()
    state = method.state_dict()
    other = METHODS[name](model, CLASSIFICATION)
    other.load_state_dict(state)
    batch = x[:8], y[:8]
    torch.testing.assert_close(other.loss(batch), method.loss(batch))


@pytest.mark.parametrize("name", METHODS)
def test_a_loss_of_ones_own_is_what_is_trained(name: str) -> None:
    own = dataclasses.replace(CLASSIFICATION, loss=lambda out, y: out.square().sum(-1))
    model = mlp()
    x, y = data()[torch.arange(4)]
    loss = METHODS[name](model, own).loss((x, y))
    torch.testing.assert_close(loss, model(x).square().sum(-1).mean())


@pytest.mark.parametrize("name", METHODS)
def test_a_loss_that_is_not_one_number_per_example_is_refused(name: str) -> None:
    """[B, 1] against [B] is broadcast to [B, B], the mistake every regression begins with."""
    own = dataclasses.replace(REGRESSION, loss=lambda out, y: (out - y).square())
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    model = nn.Linear(6, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Invalid losses \(4, 4\): .* one number per example"):
        METHODS[name](model, own).loss((x, y))


def test_replicas_see_the_draws_of_their_own_seeds() -> None:
    models = [mlp() for _ in range(3)]
    stack = Replicas(models, 2)
    stacked = DERPlusPlus(stack, CLASSIFICATION, seed=torch.tensor([5, 6, 7]), buffer=8)
    alone = DERPlusPlus(models[1], CLASSIFICATION, seed=6, buffer=8)
    for _ in range(4):
        x = torch.randn(3, 4, 6, dtype=torch.float64)
        y = torch.randint(3, (3, 4))
        loss = stacked.loss((x, y))
        grads = torch.autograd.grad(loss, stack.policy_parameters(1))
        own = gradients(alone.loss((x[1], y[1])), models[1])
        assert_all_close([g[1] for g in grads], own)
        stacked.observe((x, y))
        alone.observe((x[1], y[1]))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("reservoir", {}), ("derpp", {}), ("agem", {}), ("ewc", {"fisher_cap": 2})],
)
def test_what_is_chosen_at_random_needs_a_seed_for_every_replica(name: str, settings: dict) -> None:
    """Without, a batch of as many rows as replicas would be stored the wrong way round."""
    stack = Replicas([mlp() for _ in range(4)])
    for seed, seeds in ((0, None), (torch.arange(3), 3)):
        with pytest.raises(ValueError, match=f"4 replicas and the method {seeds} seeds"):
            METHODS[name](stack, CLASSIFICATION, seed=seed, **settings)
    with pytest.raises(ValueError, match="None replicas and the method 4 seeds"):
        METHODS[name](mlp(), CLASSIFICATION, seed=torch.arange(4), **settings)
    METHODS[name](stack, CLASSIFICATION, seed=torch.arange(4), **settings)


@pytest.mark.parametrize("name", ["reservoir", "derpp", "agem"])
@pytest.mark.parametrize("size", [0, -3])
def test_a_buffer_without_room_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"Invalid buffer: {size}"):
        METHODS[name](mlp(), CLASSIFICATION, buffer=size)


@pytest.mark.parametrize("setting", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"Invalid {setting}: {value}"):
        DERPlusPlus(mlp(), CLASSIFICATION, **{setting: value})


def test_derpp_stores_outputs_with_the_examples_that_they_are_of() -> None:
    method = DERPlusPlus(mlp(), CLASSIFICATION, buffer=10)
    x, y = data()[torch.arange(8)]
    with pytest.raises(ValueError, match=r"call loss\(\) before observe\(\)"):
        method.observe((x, y))
    method.loss((x, y)).backward()
    with pytest.raises(
        ValueError, match=r"observe\(\) got 5 examples and the last loss\(\) was of 8"
    ):
        method.observe((x[:5], y[:5]))
    assert not len(method.buffer)
    method.observe((x, y))
    assert len(method.buffer) == 8


def test_derpp_counts_examples_by_inputs_where_targets_are_vectors() -> None:
    model = nn.Linear(6, 2).double()
    method = DERPlusPlus(model, REGRESSION, buffer=10)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    method.loss((x, y)).backward()
    method.observe((x, y))
    assert len(method.buffer) == 5
