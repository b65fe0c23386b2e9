"""EWC and EWC++ against naive sums over all tasks, and the Fisher against one example at a time."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longtail.methods import EWC, EWCPlusPlus
from longtail.methods.fisher import Fisher
from longtail.replicas import Replicas
from longtail.tasks import CLASSIFICATION, Ragged, TensorExamples

TASKS = 6


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def data(n: int = 9) -> TensorExamples:
    return TensorExamples(torch.randn(n, 2, 3, dtype=torch.float64), torch.randint(3, (n,)))


class Tokens(nn.Module):
    """A model of ragged token ids with tied weights and a frozen one: no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.mix = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 3)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, tokens: Ragged) -> Tensor:
        mask = tokens.mask()[..., None]
        h = (self.embed(tokens.padded) * mask).sum(-2) / tokens.lengths[..., None]
        return self.head(self.mix(self.mix(self.norm(h))) * self.frozen)


def naive_fisher(model: nn.Module, examples: TensorExamples) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for i in range(len(examples)):
        x, y = examples[torch.tensor([i])]
        grads = torch.autograd.grad(cross_entropy(model(x), y), parameters)
        total = [t + g**2 for t, g in zip(total, grads, strict=True)]
    return [t / len(examples) for t in total]


def train_a_little(model: nn.Module, method: EWC | EWCPlusPlus, examples: TensorExamples) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        optimizer.zero_grad()
        batch = examples[torch.tensor([i, i + 1, i + 2])]
        method.loss(batch).backward()
        method.after_backward()
        optimizer.step()
        method.observe(batch)
    method.end_task(examples)


def test_fisher_of_a_chain_equals_one_example_at_a_time() -> None:
    model, examples = mlp(), data()
    for found, wanted in zip(
        Fisher(model, CLASSIFICATION, "example")(examples),
        naive_fisher(model, examples),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_fisher_of_a_chain_over_several_rows_an_example() -> None:
    """Their gradients add up before they are squared, which the closed form does not do."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    examples = data()
    wanted = naive_fisher(model, examples)
    for found in (
        Fisher(model, CLASSIFICATION)(examples),
        [stacked[0] for stacked in Fisher(Replicas([model]), CLASSIFICATION)(examples)],
    ):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_fisher_of_any_model_equals_one_example_at_a_time_and_moves_no_statistics() -> None:
    model = Tokens().double()
    lengths = torch.randint(1, 5, (9,))
    examples = TensorExamples(torch.randint(7, (9, 4)), torch.randint(3, (9,)))

    class Tables:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index):
            x, y = examples[index]
            return Ragged(x, lengths[index]), y

    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model.norm.eval()  # a part the user keeps in evaluation mode stays there
    found = Fisher(model, CLASSIFICATION, "example")(Tables())
    assert model.training
    assert not model.norm.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    model.eval()
    wanted = naive_fisher(model, Tables())
    assert len(found) == len(wanted) == 6
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["example", "batch", "batch_sum"])
def test_fisher_drops_nothing_out_and_moves_no_statistics_in_training_mode(kind: str) -> None:
    chain = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Dropout(0.5))
    examples = data()
    for model in (chain.double(), norm.double()):
        before = copy.deepcopy(model.state_dict())
        found = Fisher(model.train(), CLASSIFICATION, kind)(examples)
        assert all(module.training for module in model)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        wanted = Fisher(model.eval(), CLASSIFICATION, kind)(examples)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("kind", "shares"), [("batch", (0.8, 0.2)), ("batch_sum", (1.0, 1.0))])
def test_batch_fisher_squares_the_mean_gradient_of_each_batch(kind: str, shares) -> None:
    model, examples = mlp(), data(20)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for rows, share in zip((torch.arange(16), torch.arange(16, 20)), shares, strict=True):
        x, y = examples[rows]
        grads = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        total = [t + share * g**2 for t, g in zip(total, grads, strict=True)]
    for a, b in zip(Fisher(model, CLASSIFICATION, kind)(examples), total, strict=True):
        torch.testing.assert_close(a, b)
    method = EWC(model, CLASSIFICATION, fisher=kind)
    method.end_task(examples)
    for a, b in zip(method.sum_F, total, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("policies", [1, 2])
def test_fisher_of_replicas_equals_that_of_each(policies: int) -> None:
    models = [mlp() for _ in range(3)]
    examples = data()
    for kind in ("example", "batch", "batch_sum"):
        found = Fisher(Replicas(models, policies), CLASSIFICATION, kind)(examples)
        for s, model in enumerate(models):
            for p, wanted in enumerate(Fisher(model, CLASSIFICATION, kind)(examples)):
                torch.testing.assert_close(found[(policies - 1) * 4 + p][s], wanted)


def test_ewc_equals_the_naive_sum_over_all_tasks() -> None:
    model = mlp()
    method = EWC(model, CLASSIFICATION, strength=3.0)
    past: list[tuple[list[Tensor], list[Tensor]]] = []
    for _ in range(TASKS):
        examples = data()
        train_a_little(model, method, examples)
        past.append(
            (naive_fisher(model, examples), [p.detach().clone() for p in model.parameters()])
        )
    examples = data()
    batch = examples[torch.arange(5)]
    model.zero_grad()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    method.loss(batch).backward()
    method.after_backward()
    found = [p.grad.clone() for p in model.parameters()]

    model.zero_grad()
    penalty = sum(
        (f * (p - anchor) ** 2).sum()
        for fisher, anchors in past
        for f, anchor, p in zip(fisher, anchors, model.parameters(), strict=True)
    )
    (cross_entropy(model(batch[0]), batch[1]) + 3.0 * penalty).backward()
    for a, p in zip(found, model.parameters(), strict=True):
        assert (a - p.grad).abs().max() < 1e-10
    assert penalty > 0


@pytest.mark.parametrize("cls", [EWC, EWCPlusPlus])
def test_a_weight_where_its_tasks_left_it_is_not_pulled_at_all(cls) -> None:
    model = mlp().float()  # λ, F and θ are no round numbers, so that A θ - B would not be 0
    method = cls(model, CLASSIFICATION, strength=0.3)
    for _ in range(3):
        examples = TensorExamples(torch.randn(9, 2, 3), torch.randint(3, (9,)))
        method.loss(examples[torch.arange(9)]).backward()
        method.after_backward()
        method.end_task(examples)
    assert max(F_.max() for F_ in method.sum_F) > 0
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    method.after_backward()
    for p in model.parameters():
        assert not p.grad.any()


def test_ewc_memory_does_not_grow_and_its_state_comes_back() -> None:
    model = mlp()
    method = EWC(model, CLASSIFICATION, fisher_cap=4)
    train_a_little(model, method, data())
    size = sum(t.numel() for t in (*method.sum_F, *method.anchor))
    state = method.state_dict()
    other = EWC(mlp(), CLASSIFICATION, fisher_cap=4)
    other.load_state_dict(state)
    assert other.tasks == 1
    assert all(torch.equal(a, b) for a, b in zip(method.sum_F, other.sum_F, strict=True))
    train_a_little(model, method, data())
    assert size == sum(t.numel() for t in (*method.sum_F, *method.anchor))
    assert not torch.equal(method.sum_F[0], other.sum_F[0])  # loaded by value, not by reference


def test_fisher_cap_takes_that_many_examples_chosen_by_seed() -> None:
    model, examples = mlp(), data(30)
    first, again, other = (EWC(model, CLASSIFICATION, fisher_cap=5, seed=s) for s in (1, 1, 2))
    for method in (first, again, other):
        method.end_task(examples)
    assert torch.equal(first.sum_F[0], again.sum_F[0])
    assert not torch.equal(first.sum_F[0], other.sum_F[0])
    again.end_task(examples)  # another task chooses others
    assert not torch.allclose(again.sum_F[0], 2 * first.sum_F[0])
    full = EWC(model, CLASSIFICATION, fisher_cap=30)
    full.end_task(examples)
    torch.testing.assert_close(full.sum_F[0], naive_fisher(model, examples)[0])


def test_ewcpp_averages_squared_task_gradients_and_pulls_to_the_last_task() -> None:
    model = mlp()
    method = EWCPlusPlus(model, CLASSIFICATION, strength=2.0, decay=0.7)
    parameters = list(model.parameters())
    running = [torch.zeros_like(p) for p in parameters]
    fisher, anchor = (
        [torch.zeros_like(p) for p in parameters],
        [p.detach().clone() for p in parameters],
    )
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        examples = data()
        for i in range(4):
            x, y = batch = examples[torch.tensor([i, i + 2, i + 4])]
            task = torch.autograd.grad(cross_entropy(model(x), y), parameters)
            running = [0.7 * g**2 + 0.3 * f for g, f in zip(task, running, strict=True)]
            penalty = sum(
                (f * (p - a) ** 2).sum() for f, p, a in zip(fisher, parameters, anchor, strict=True)
            )
            pull = torch.autograd.grad(2.0 * penalty, parameters)
            optimizer.zero_grad()
            method.loss(batch).backward()
            method.after_backward()
            for p, g, r in zip(parameters, task, pull, strict=True):
                torch.testing.assert_close(p.grad, g + r)
            optimizer.step()
            method.observe(batch)
        method.end_task(examples)
        fisher, anchor = [f.clone() for f in running], [p.detach().clone() for p in parameters]
    for a, b in zip(method.running_F, running, strict=True):
        torch.testing.assert_close(a, b)


def test_a_parameter_outside_the_loss_is_not_pulled_and_the_others_are() -> None:
    """The pull alone would be a step of full size for Adam, and its moments would fade."""
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    model.forward = lambda x: model["used"](x)
    method = EWC(model, CLASSIFICATION)
    for F_, anchor, p in zip(method.sum_F, method.anchor, model.parameters(), strict=True):
        F_.fill_(1.0)
        anchor.copy_(p.detach() - 1.0)
    method.loss((torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))).backward()
    method.after_backward()
    torch.testing.assert_close(model["used"].weight.grad, torch.full((2, 2), 2.0))
    assert model["unused"].weight.grad is None


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (EWC, {"strength": -1.0}, "strength: -1.0"),
        (EWC, {"strength": float("nan")}, "strength: nan"),
        (EWCPlusPlus, {"strength": float("inf")}, "strength: inf"),
        (EWC, {"fisher": "full"}, "fisher: 'full'"),
        (EWC, {"fisher_cap": -1}, "fisher_cap: -1"),
        (EWCPlusPlus, {"decay": 1.5}, "decay: 1.5"),
        (EWC, {"lambda_": 1.0}, "no setting 'lambda_'; known: strength, fisher, fisher_cap"),
    ],
)
def test_mistakes_are_named(cls, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        cls(mlp(), CLASSIFICATION, **settings)
