"""The plugin in a strategy of Avalanche's shape, and in Avalanche itself where it can be imported.

The package needs torchvision, of which no build fits the CPU's torch that CI installs.
"""

import importlib
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from longtail import ContinualAdamW


def classifier(classes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, classes))


def train(strategy: Any, steps: int = 3) -> None:
    for _ in range(steps):
        strategy.optimizer.zero_grad()
        strategy.model(torch.randn(8, 4)).square().mean().backward()
        strategy.optimizer.step()


@pytest.fixture
def plugin_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    plugins = ModuleType("avalanche.training.plugins")
    plugins.SupervisedPlugin = object  # type: ignore[attr-defined]
    for name in ("avalanche", "avalanche.training"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "avalanche.training.plugins", plugins)
    monkeypatch.delitem(sys.modules, "longtail.integrations.avalanche", raising=False)
    module = importlib.import_module("longtail.integrations.avalanche")
    yield module.ContinualPlugin
    sys.modules.pop("longtail.integrations.avalanche", None)


@pytest.mark.parametrize("folder", [None, "memory"])
def test_a_cleared_state_and_a_grown_classifier(
    plugin_class: Any, tmp_path: Path, folder: str | None
) -> None:
    plugin = plugin_class(memory=None if folder is None else tmp_path / folder)
    model = classifier(2)
    strategy = SimpleNamespace(model=model, optimizer=ContinualAdamW(model.parameters()))
    for experience in (1, 2, 3):
        if experience == 2:  # as Avalanche does before a strategy's first experience
            strategy.optimizer.state = defaultdict(dict)
        if experience == 3:  # and for an incremental classifier
            old = list(model[2].parameters())
            model[2] = nn.Linear(6, 4)
            group = strategy.optimizer.param_groups[0]["params"]
            for before, after in zip(old, model[2].parameters(), strict=True):
                group[[p is before for p in group].index(True)] = after
                strategy.optimizer.state.pop(before)
        plugin.before_training_exp(strategy)
        train(strategy)
        plugin.after_training_exp(strategy)
        state = strategy.optimizer.state[model[2].weight]
        assert int(state["past_steps"]) == 3 * experience
    assert state["past_exp_avg_sq"].shape == (4, 6)
    assert state["past_exp_avg_sq"][:2].any()
    assert int(strategy.optimizer.param_groups[0]["tasks_seen"]) == 3


@pytest.mark.filterwarnings("ignore")
def test_with_the_package(tmp_path: Path) -> None:
    """`ContinualAdamW` is one line there, and ends where a loop of our own ends."""
    try:
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import (
            _make_taskaware_tensor_classification_dataset as dataset,
        )
        from avalanche.evaluation.metrics import accuracy_metrics
        from avalanche.training.plugins import EvaluationPlugin
        from avalanche.training.supervised import Naive

        from longtail.integrations.avalanche import ContinualPlugin
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no Avalanche here: {error}")
    parts = []
    for task in range(3):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(task))
        parts.append((x, (x[:, task] > 0).long()))
    model = classifier(2)
    strategy = Naive(
        model=model,
        optimizer=ContinualAdamW(model.parameters(), lr=1e-2),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        train_epochs=4,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        plugins=[ContinualPlugin(tmp_path)],
    )
    datasets = [dataset(*part) for part in parts]
    for experience in benchmark_from_datasets(train=datasets, test=datasets).train_stream:
        strategy.train(experience)
    mine = classifier(2)
    optimizer = ContinualAdamW(mine.parameters(), lr=1e-2)
    for x, y in parts:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(mine(x), y).backward()
            optimizer.step()
        optimizer.end_task()
    for a, b in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert int(strategy.optimizer.param_groups[0]["tasks_seen"]) == 3
