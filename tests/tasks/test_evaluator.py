import numpy as np
import pytest
import torch
from torch import nn

from longtail.replicas import Replicas
from longtail.tasks import (
    CLASSIFICATION,
    REGRESSION,
    Evaluator,
    Objective,
    Score,
    Segments,
    StackedExamples,
    TableSequence,
    evaluator,
    from_tensors,
    validation_share,
)


def evaluate(model: nn.Module, sequence, tasks: range | None = None, batch_size: int = 1024):
    """The main scores, of all tasks unless told otherwise, as an array."""
    tasks = range(len(sequence)) if tasks is None else tasks
    usual = Evaluator()
    usual.batch_size = batch_size
    return usual(model, sequence, tasks)[sequence.objective.main.name].cpu().numpy()


@pytest.fixture
def sequence() -> TableSequence:
    g = torch.Generator().manual_seed(0)

    def part(n: int):
        return torch.randn(n, 6, generator=g), torch.randint(4, (n,), generator=g)

    sizes = [5, 1, 33, 2, 17, 8]
    return from_tensors([(str(i), part(30), part(n)) for i, n in enumerate(sizes)], CLASSIFICATION)


def by_hand(model: nn.Module, sequence) -> list[float]:
    scores = []
    for task in sequence:
        x, y = task.test[torch.arange(len(task.test))]
        scores.append((model(x).argmax(-1) == y).double().mean().item())
    return scores


@pytest.mark.parametrize("batch_size", [1, 7, 1024])
def test_scores_are_those_of_each_task_alone(sequence, batch_size):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    expected = by_hand(model, sequence)
    found = evaluate(model, sequence, batch_size=batch_size)
    assert found.dtype == np.float64
    assert found.tolist() == expected
    assert evaluate(model, sequence, range(3), batch_size).tolist() == expected[:3]
    alone = [evaluate(model, sequence, range(i, i + 1), batch_size).item() for i in range(6)]
    assert alone == expected


def test_no_gradient_and_every_module_keeps_its_mode(sequence):
    class Nosy(nn.Module):
        def forward(self, x):
            assert not self.training
            assert not torch.is_grad_enabled()
            return x

    frozen = nn.BatchNorm1d(6)
    model = nn.Sequential(frozen, nn.Dropout(0.5), nn.Linear(6, 4), Nosy())
    frozen.eval()
    first = evaluate(model, sequence)
    assert (evaluate(model, sequence) == first).all()
    assert [module.training for module in model] == [False, True, True, True]
    assert model.training
    assert torch.is_grad_enabled()
    with pytest.raises(RuntimeError):
        evaluate(nn.Sequential(model, nn.Linear(9, 9)), sequence)
    assert model.training


@pytest.mark.parametrize("elements", [1, 200, 1 << 22])
@pytest.mark.parametrize("own_data", [False, True])
def test_replicas_score_like_single_models(sequence, own_data, elements, monkeypatch):
    monkeypatch.setitem(evaluator._ELEMENTS, "cpu", elements)
    models = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)) for _ in range(3)]
    stack = Replicas(models, policies=2)
    with torch.no_grad():
        for p in stack.policy_parameters(1):
            p.mul_(-0.5)
    if own_data:
        x, y = torch.randn(3, 20, 6), torch.randint(4, (3, 20))
        parts = Segments([0, 4, 10]), Segments([10, 13, 20])
        sequence = TableSequence(StackedExamples(x, y), *parts, CLASSIFICATION)
    found = evaluate(stack, sequence)
    assert found.shape == (2, 3, len(sequence))
    for p in range(2):
        for s in range(3):
            alone = sequence
            if own_data:
                table = [(x[s, a:b], y[s, a:b]) for a, b in ((10, 13), (13, 20))]
                alone = from_tensors([("a", None, part) for part in table], CLASSIFICATION)
            assert found[p, s] == pytest.approx(by_hand(stack.replica(p, s), alone))
    assert evaluate(stack, sequence, range(1, 2)) == pytest.approx(found[..., 1:2])


def test_replicas_score_their_own_validation_rows(sequence):
    models = [nn.Linear(6, 4) for _ in range(2)]
    seeds = torch.tensor([3, 4])
    found = Evaluator().validation(Replicas(models), validation_share(sequence, seeds, 0.3), 2)
    for s in range(2):
        single = validation_share(sequence, int(seeds[s]), 0.3)
        assert found[0, s] == pytest.approx(Evaluator().validation(models[s], single, 2).item())


def test_regression_does_not_depend_on_the_batches():
    x = torch.randn(4000, 3)
    tasks = [(str(i), None, (x[a : a + 400], x[a : a + 400, 0])) for i, a in
             enumerate(range(0, 4000, 400))]  # fmt: skip
    sequence = from_tensors(tasks, REGRESSION)

    class Sum(nn.Module):
        def forward(self, x):
            return x.sum(-1) * 1e3

    expected = [(Sum()(x) - y).square().double().mean() for _, _, (x, y) in tasks]
    found = [evaluate(Sum(), sequence, batch_size=b) for b in (1, 13, 400, 4000)]
    for scores in found:  # in float64 the order of a sum may change its last digit alone
        assert scores == pytest.approx(np.array(expected), rel=1e-13, abs=0)


def test_a_task_without_tests_scores_nan(sequence):
    x, y = torch.randn(3, 6), torch.zeros(3, dtype=torch.int64)
    empty = from_tensors([("a", (x, y), (x, y)), ("b", (x, y), (x[:0], y[:0]))], CLASSIFICATION)
    found = evaluate(nn.Linear(6, 4), empty)
    assert np.isnan(found).tolist() == [False, True]


def test_scores_that_are_not_one_per_example_are_refused():
    square = Score("own", lambda out, y: (out - y).square(), "own", higher_is_better=False)
    own = Objective(lambda out, y: out[:, 0], (square,))
    tasks = [("a", None, (torch.randn(3, 6), torch.randn(3)))]
    with pytest.raises(ValueError, match=r"Invalid scores \(3, 3\): .* one number per example"):
        evaluate(nn.Linear(6, 1), from_tensors(tasks, own))


@pytest.mark.gpu
def test_gpu_scores_equal_cpu_scores(sequence):
    model = nn.Linear(6, 4)
    expected = evaluate(model, sequence)
    assert evaluate(model.cuda(), sequence.to("cuda")) == pytest.approx(expected)
    stack = Replicas([nn.Linear(6, 4) for _ in range(3)], policies=2)
    expected = evaluate(stack, sequence)
    assert evaluate(stack.cuda(), sequence.to("cuda")) == pytest.approx(expected)
