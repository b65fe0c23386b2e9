"""The plugin in a strategy of Avalanche's shape, and in Avalanche itself where it can be imported.

`make test-frameworks` installs the package; its torchvision gets what it lacks beside a torch
without CUDA from `helpers.torchvision_ops`.
"""

import importlib
import runpy
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bench_helpers.torchvision_ops import declare_missing
from longtail import ContinualAdamW

EXAMPLES = Path(__file__).parents[2] / "examples"


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
def test_with_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """`ContinualAdamW` is one line there, and ends where a loop of one's own ends."""
    if find_spec("avalanche") is None:
        pytest.skip("Avalanche is not installed; `make test-frameworks` runs this")
    declare_missing()
    example = runpy.run_path(str(EXAMPLES / "avalanche.py"))
    example["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-3:] == lines[1].split()[-3:]
    assert lines[-1].startswith("furthest weight from the loop by hand")


@pytest.mark.filterwarnings("ignore")
def test_the_package_with_an_incremental_classifier(tmp_path: Path) -> None:
    """Avalanche makes a wider weight and forgets its state; the rows it had keep their past."""
    if find_spec("avalanche") is None:
        pytest.skip("Avalanche is not installed; `make test-frameworks` runs this")
    declare_missing()
    example = runpy.run_path(str(EXAMPLES / "avalanche.py"))
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.models import IncrementalClassifier
    from avalanche.training.supervised import Naive

    from longtail.integrations.avalanche import ContinualPlugin

    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), IncrementalClassifier(6, 2))
    strategy = Naive(
        model=model,
        optimizer=ContinualAdamW(model.parameters(), lr=1e-2),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=64,
        plugins=[ContinualPlugin(tmp_path)],
        evaluator=None,
    )
    parts = [example["points"](task, seed=0) for task in range(2)]
    parts = [(x, y + 2 * task) for task, (x, y) in enumerate(parts)]  # two new classes each
    benchmark = benchmark_from_datasets(train=[example["experience_of"](part) for part in parts])
    for experience in with_classes_timeline(benchmark).train_stream:
        strategy.train(experience)
    weight = model[2].classifier.weight
    state = strategy.optimizer.state[weight]
    assert weight.shape == (4, 6)
    assert state["past_exp_avg_sq"].shape == (4, 6)
    assert int(state["past_steps"]) == 4  # two batches in each of two experiences
    assert int(strategy.optimizer.param_groups[0]["tasks_seen"]) == 2
