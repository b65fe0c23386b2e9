"""Continual AdamW in Avalanche: the same weights as a loop of one's own.

    pip install longtail avalanche-lib
    python examples/avalanche.py

Three experiences of made-up points, each with a boundary of its own. Avalanche's `Naive` strategy
with `ContinualAdamW` and the plugin is compared with ten lines of plain torch.
"""

import tempfile

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from longtail import ContinualAdamW
from longtail.integrations.avalanche import ContinualPlugin

EPOCHS, TASKS = 20, 3


def points(task: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points in eight dimensions, told apart by two of them."""
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(100 * seed + task))
    return x, (x[:, task] + x[:, task + 1] > 0).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))


def experience_of(part: tuple[Tensor, Tensor]) -> AvalancheDataset:
    targets = DataAttribute(part[1].tolist(), "targets")
    labels = DataAttribute([0] * len(part[1]), "targets_task_labels", use_in_getitem=True)
    return AvalancheDataset([TensorDataset(*part)], data_attributes=[targets, labels])


def in_avalanche(folder: str) -> nn.Module:
    model = network()
    strategy = Naive(
        model=model,
        optimizer=ContinualAdamW(model.parameters(), lr=1e-2),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=128,
        train_epochs=EPOCHS,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        plugins=[ContinualPlugin(folder)],
    )
    parts = [experience_of(points(task, seed=0)) for task in range(TASKS)]
    for experience in benchmark_from_datasets(train=parts, test=parts).train_stream:
        strategy.train(experience)
    return model


def by_hand() -> nn.Module:
    model = network()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2)
    for task in range(TASKS):
        x, y = points(task, seed=0)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.end_task()
    return model


def accuracy(model: nn.Module) -> list[float]:
    """On new points of each experience."""
    scores = []
    with torch.no_grad():
        for task in range(TASKS):
            x, y = points(task, seed=1)
            scores.append((model(x).argmax(1) == y).float().mean().item())
    return scores


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours = in_avalanche(folder)
    mine = by_hand()
    for name, model in (("in Avalanche", ours), ("by hand", mine)):
        print(f"{name:13}", " ".join(f"{score:.3f}" for score in accuracy(model)))
    furthest = max(
        (a - b).abs().max().item()
        for a, b in zip(ours.parameters(), mine.parameters(), strict=True)
    )
    print(f"furthest weight from the loop by hand: {furthest:.1e}")
    assert furthest < 1e-5, "the strategy and the loop by hand differ"


if __name__ == "__main__":
    main()
