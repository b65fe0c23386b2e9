"""A past from one pass over data, for a model that was trained without one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail import ContinualAdam, ContinualAdamW, prime


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))


def make_batches(count: int, size: int = 4, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 5, generator=generator), torch.randint(3, (size,), generator=generator))
        for _ in range(count)
    ]


def squares(model: nn.Module, batches: list[Any]) -> list[Tensor]:
    model.eval()
    total = [torch.zeros_like(p) for p in model.parameters()]
    for batch in batches:
        for v, g in zip(
            total, torch.autograd.grad(loss(model, batch), [*model.parameters()]), strict=True
        ):
            v += g.square() / len(batches)
    model.train()
    return total


def test_the_past_is_the_mean_square_of_batch_gradients() -> None:
    model, batches = make_model(), make_batches(6)
    optimizer = ContinualAdamW(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    assert prime(model, iter(batches), loss, optimizer) == 6
    for p, v, old in zip(model.parameters(), squares(model, batches), before, strict=True):
        torch.testing.assert_close(optimizer.state[p]["past_exp_avg_sq"], v)
        assert torch.equal(p, old)
        assert p.grad is None
    assert model.training
    assert "tasks seen: 1\nsteps remembered: 6\n" in repr(optimizer)


def test_examples_and_count() -> None:
    model, batches = make_model(), make_batches(3)
    optimizer = ContinualAdam(model.parameters())
    assert prime(model, batches, loss, optimizer, gradients="example", count=500) == 500
    single = [(x[i : i + 1], y[i : i + 1]) for x, y in batches for i in range(4)]
    for p, v in zip(model.parameters(), squares(model, single), strict=True):
        torch.testing.assert_close(optimizer.state[p]["past_exp_avg_sq"], v)


def test_a_second_priming_is_another_task_and_counts_by_its_weight() -> None:
    model = make_model()
    optimizer = ContinualAdamW(model.parameters())
    prime(model, make_batches(2), loss, optimizer, count=100)
    assert prime(model, make_batches(2, seed=1), loss, optimizer, count=300) == 400
    parts = [squares(model, make_batches(2, seed=seed)) for seed in (0, 1)]
    for p, a, b in zip(model.parameters(), *parts, strict=True):
        expected = (100 * a + 300 * b) / 400
        torch.testing.assert_close(optimizer.state[p]["past_exp_avg_sq"], expected)
    assert "tasks seen: 2\n" in repr(optimizer)


def test_priming_does_what_having_trained_with_us_does() -> None:
    """A task of one gradient direction: v of training and of the pass agree, and so do steps."""
    batches = make_batches(200)
    ours, theirs = make_model().eval(), make_model().eval()
    trained = ContinualAdamW(ours.parameters(), lr=1e-5)
    plain = torch.optim.AdamW(theirs.parameters(), lr=1e-5)
    for batch in batches:
        for model, optimizer in ((ours, trained), (theirs, plain)):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    trained.end_task()
    primed = ContinualAdamW(theirs.parameters(), lr=1e-5)
    prime(theirs, batches, loss, primed)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        a, b = (o.state[x]["past_exp_avg_sq"] for o, x in ((trained, p), (primed, q)))
        # Adam's v weighs the last of 200 steps 1.2 times as much as the first
        torch.testing.assert_close(a, b, rtol=0.15, atol=1e-6)
        assert trained.state[p]["past_steps"] == primed.state[q]["past_steps"] == 200


def test_what_is_refused() -> None:
    model, batches = make_model(), make_batches(2)
    optimizer = ContinualAdamW(model.parameters())
    with pytest.raises(ValueError, match="Invalid gradients: 'row', must be 'batch' or 'example'"):
        prime(model, batches, loss, optimizer, gradients="row")
    with pytest.raises(ValueError, match="Invalid count: 0"):
        prime(model, batches, loss, optimizer, count=0)
    with pytest.raises(ValueError, match="Invalid batches: there are none"):
        prime(model, [], loss, optimizer)
    with pytest.raises(ValueError, match="not 'ema' and 'reset'"):
        prime(model, batches, loss, ContinualAdamW(model.parameters(), second_moment="ema"))
    loss(model, batches[0]).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="prime\\(\\) comes between tasks"):
        prime(model, batches, loss, optimizer)


@pytest.mark.parametrize(("name", "task"), [("mnist", 0), ("wsd", 8)])
def test_priming_knows_which_weights_matter(name: str, task: int) -> None:
    """A task of a miniature, trained with us, or with AdamW and primed afterwards.

    Gradients at the end of training are smaller than those on the way, and so is v (in the median
    a quarter of it on split MNIST, a seventeenth on WSD-CL); which weights have a large one agrees.
    """
    from longtail.benchmarks import load

    spec = load(name)
    benchmark = spec.build(spec.Settings(miniature=True), 0)
    examples, objective = benchmark.sequence.train(task), benchmark.sequence.objective
    assert examples is not None

    def mean_loss(model: nn.Module, batch: Any) -> Tensor:
        return objective.loss(model(batch[0]), batch[1]).mean()

    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    batches = [examples[order[i : i + 10]] for i in range(0, len(examples), 10)] * 2
    pasts = []
    for kind in (ContinualAdamW, torch.optim.AdamW):
        torch.manual_seed(0)
        model = benchmark.make_model(0).eval()
        same = {"beta3": 0.0} if kind is ContinualAdamW else {}  # without warm-up it is AdamW
        optimizer = kind(model.parameters(), lr=1e-3, **same)
        for batch in batches:
            optimizer.zero_grad()
            mean_loss(model, batch).backward()
            optimizer.step()
        ours = optimizer
        if kind is ContinualAdamW:
            ours.end_task()
        else:
            ours = ContinualAdamW(model.parameters())
            prime(model, batches, mean_loss, ours)
        v = [ours.state[p]["past_exp_avg_sq"].flatten() for p in model.parameters()]
        pasts.append(torch.cat(v))
    trained, primed = pasts
    known = (trained > 0) & (primed > 0)
    logs = torch.stack([trained[known].log2(), primed[known].log2()])
    assert known.float().mean() > 0.1
    assert torch.corrcoef(logs)[0, 1] > 0.6
    assert 0.02 < (primed[known] / trained[known]).median() < 1


def test_a_loss_of_other_parameters_is_refused() -> None:
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = ContinualAdamW(other.parameters())
    with pytest.raises(ValueError, match="depends on no parameter of the optimizer"):
        prime(model, [torch.ones(3, 2)], lambda model, x: model(x).sum(), optimizer)
    assert not optimizer.state
