"""A parameter that takes no part in the loss stays as it is, whatever the method."""

import pytest
import torch
from torch import Tensor, nn

from longtail import ContinualAdamW
from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.tasks import CLASSIFICATION, Segments, TableSequence, TensorExamples
from longtail.training import POLICIES, Run, TrainSettings, train
from longtail.training.cuda_graphs import GraphStep

REPLAY = {
    name for name, cls in METHODS.items() if cls.draws and "agem" not in name
}  # they train the heads of what they replay, as they should


class Heads(nn.Module):
    """One head a task; the first column of the inputs says which."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        h, task = self.body(inputs[:, 1:]).tanh(), inputs[:, 0].long()
        rows = [(task == t).nonzero()[:, 0] for t in task.unique()]
        found = [self.heads[int(task[row[0]])](h[row]) for row in rows]
        return torch.cat(found)[torch.cat(rows).argsort()]


def task_of(number: int) -> TensorExamples:
    x = torch.randn(24, 5)
    x[:, 0] = number
    return TensorExamples(x, torch.randint(3, (24,)))


def head_state(model: Heads, optimizer: ContinualAdamW, head: int) -> list[Tensor]:
    """The head's weights and everything the optimizer keeps for them."""
    found = []
    for p in model.heads[head].parameters():
        state = optimizer.state.get(p, {})
        found += [p.detach(), *(v for v in state.values() if isinstance(v, Tensor))]
    return [t.clone() for t in found]


@pytest.mark.parametrize("name", METHODS)
def test_heads_that_a_task_does_not_use_are_not_stepped(name: str) -> None:
    torch.manual_seed(0)
    model = Heads()
    options = {"fisher": "batch"} if hasattr(METHODS[name].Settings, "fisher") else {}
    method = METHODS[name](model, CLASSIFICATION, **options)
    optimizer = method.optimizer = ContinualAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for number in range(2):
        examples = task_of(number)
        unused = [2] if name in REPLAY else [i for i in range(3) if i != number]
        before = {i: head_state(model, optimizer, i) for i in unused}
        for rows in torch.arange(24).split(8):
            optimizer.zero_grad()
            method.loss(examples[rows]).backward()
            method.after_backward()
            for i in unused:
                assert all(p.grad is None for p in model.heads[i].parameters())
            optimizer.step()
            method.observe(examples[rows])
        for i in unused:
            for a, b in zip(before[i], head_state(model, optimizer, i), strict=True):
                assert torch.equal(a, b)
        assert all(p.grad is not None for p in model.heads[number].parameters())
        method.end_task(examples)
        optimizer.end_task()
    assert not any(optimizer.state.get(p) for p in model.heads[2].parameters())


class Spare(nn.Module):
    """With a head that no task uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_head_nobody_uses_stays_as_it_was_built(name: str, stacked: bool, padded: bool) -> None:
    torch.manual_seed(0)
    table = TensorExamples(torch.randn(60, 5), torch.randint(3, (60,)))
    parts = Segments([0, 20, 43, 60])
    sequence = TableSequence(table, parts, parts, CLASSIFICATION)
    policies = ["continual", "new"] if stacked else ["continual"]
    model = build_model(lambda _seed: Spare(), [3, 4] if stacked else 3, len(policies))
    seed = torch.tensor([3, 4]) if stacked else 3
    method = METHODS[name](model, CLASSIFICATION, seed=seed)
    settings = TrainSettings(batch_size=8, lr=1e-2, weight_decay=0.1, epochs=2)
    chosen = [POLICIES[p] for p in policies]
    run = Run(sequence, model, method, chosen, settings, seed, evaluate=False)
    if padded:
        run.take_step = GraphStep(run, capture=False)
    spare = [p for name, p in model.named_parameters() if "spare" in name]
    assert len(spare) == 2 * len(policies)
    before = [p.detach().clone() for p in spare]
    train(run, on_step=lambda run: check(run, spare))
    for a, b in zip(before, spare, strict=True):
        assert torch.equal(a, b)


def check(run: Run, spare: list[nn.Parameter]) -> None:
    for p in spare:
        assert p.grad is None
        assert not run.optimizer.state.get(p)
