import doctest
import importlib
import math
import sys

import numpy as np
import pytest
import torch

from longtail import benchmarks
from longtail.benchmarks import toy
from longtail.methods import METHODS
from longtail.metrics import breakdown, summary
from longtail.replicas import build_model
from longtail.tasks import multitask, size_statistics
from longtail.training import POLICIES, Run, TrainSettings, train


def test_the_tasks_have_a_long_tail():
    sequence = toy.build(toy.Settings(), seed=0).sequence
    found = size_statistics(sequence)
    assert (found["tasks"], found["zero_shot"], found["smallest"]) == (200, 10, 4)
    assert found["largest"] > 50 * found["median"]
    assert found["share_of_largest_tenth"] > 0.5
    for task in sequence:
        x, y = task.test[torch.arange(len(task.test))]
        assert x.shape[1:] == (16,)
        assert len(y.unique()) <= 3
    labels = torch.cat([task.test[torch.arange(len(task.test))][1] for task in sequence])
    assert len(labels.unique()) == 10


def test_few_tasks_need_no_other_setting():
    assert toy.Settings(tasks=5).untrained == 0
    assert (toy.task_sizes(toy.Settings(tasks=40)) == 0).sum() == 2
    assert (toy.task_sizes(toy.Settings(tasks=40, zero_shot=7)) == 0).sum() == 7


def test_data_follow_from_their_own_seed():
    def first(run_seed: int = 0, **settings):
        task = toy.build(toy.Settings(**settings), run_seed).sequence[0]
        return task.test[torch.arange(4)][0]

    assert torch.equal(first(), first(run_seed=5))  # which is what `stackable` promises
    assert not torch.equal(first(), first(seed=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tasks", 0),
        ("classes_per_task", 11),
        ("zero_shot", 200),
        ("cap", 3),
        ("hidden", 0),
        ("noise", -1.0),
        ("noise", math.nan),
        ("spread", math.inf),
        ("exponent", math.nan),
    ],
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{value}"):
        toy.Settings(**{name: value})


def test_a_tail_without_end_is_capped():  # and no warning: warnings are errors here
    assert toy.task_sizes(toy.Settings(exponent=1e-9, zero_shot=0)).max() == 1000


def scores(sequence, make_model, policies, method="finetune", seeds=(0, 1, 2, 3)):
    model = build_model(make_model, list(seeds), len(policies))
    seeds = torch.tensor(seeds)
    settings = toy.SPEC.method_settings.get(method, {})
    run = Run(
        sequence,
        model,
        METHODS[method](model, sequence.objective, seed=seeds, **settings),
        [POLICIES[name] for name in policies],
        TrainSettings(**toy.SPEC.train),
        seeds,
    )
    train(run)
    return run.matrix


def test_what_the_toy_is_there_to_show():
    """Tasks are learned and forgotten; Continual Adam forgets less; the union forgets nothing."""
    benchmark = toy.build(toy.Settings(), seed=0)
    sequence, make_model = benchmark.sequence, benchmark.make_model
    matrix = scores(sequence, make_model, ["continual", "new"])
    found = {name: value.mean(-1) for name, value in summary(matrix).items()}
    ours, new = 0, 1
    assert found["LP"][new] > 0.7
    assert found["FGT"][new] > 0.1
    assert found["FGT"][ours] < found["FGT"][new] - 0.02
    assert found["RP"][ours] > found["RP"][new] + 0.02
    assert found["RP"][ours] < found["LP"][ours]
    groups = breakdown(matrix, sequence.train_sizes)
    assert set(groups) == {"head", "body", "tail", "zero_shot"}
    union = summary(scores(multitask(sequence), make_model, ["continual"]))
    assert union["RP"].mean() > found["RP"][ours]
    assert np.array_equal(union["RP"], union["LP"])
    assert (union["FGT"] == 0).all()


def test_registry(tmp_path, monkeypatch):
    assert benchmarks.load("toy") is toy.SPEC
    with pytest.raises(ValueError, match=r"unknown benchmark 'toys'; known: toy, .*synthetic"):
        benchmarks.load("toys")
    with pytest.raises(ValueError, match=r"there is no module no_such\.module"):
        benchmarks.load("no_such.module")
    (tmp_path / "mine_for_test").mkdir()
    (tmp_path / "mine_for_test" / "words.py").write_text("Settings = 1\nbuild = print\n")
    (tmp_path / "mine_for_test" / "empty.py").write_text("Settings = 1\n")
    (tmp_path / "mine_for_test" / "broken.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert benchmarks.load("mine_for_test.words").Settings == 1
    with pytest.raises(ValueError, match=r"mine_for_test\.empty is no benchmark: it has no SPEC"):
        benchmarks.load("mine_for_test.empty")
    for name in ("./words.py", "", "a b"):
        with pytest.raises(ValueError, match="unknown benchmark"):
            benchmarks.load(name)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        benchmarks.load("mine_for_test.broken")


@pytest.mark.parametrize(
    "module",
    [
        "metrics",
        "names",
        "tasks.adapters",
        "tasks.ordering",
        "methods.buffers",
        "tasks.evaluator",
        "benchmarks.mlp",
        "benchmarks.toy",
        "report.checks",
    ],
)
def test_examples_in_docstrings(module):
    importlib.import_module(f"longtail.{module}")
    assert doctest.testmod(sys.modules[f"longtail.{module}"]).failed == 0
