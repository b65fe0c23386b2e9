r"""The smallest example: 200 long-tailed classification tasks, made here, learned in a second.

All tasks share ten classes with a prototype each, but a task has only a few of the classes and
sees them in a place of its own:

    x = p_c + spread * q_{t,c} + noise * n,        p_c, q_{t,c}, n ~ N(0, I)

so a small task pulls the model towards its few classes, and what it learned of the others is
easily lost. Sizes follow a power law; some tasks have no training examples (zero-shot).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.benchmarks.mlp import MLP
from longtail.benchmarks.spec import MOST_TASKS
from longtail.names import option
from longtail.support.random import integers, normal, permutation, uniform
from longtail.tasks import (
    CLASSIFICATION,
    Segments,
    TableSequence,
    TensorExamples,
    order_sampled,
)


@dataclass(frozen=True)
class Settings:
    """What the tasks are made of."""

    tasks: int = option(200, "number of tasks")
    zero_shot: int | None = option(
        None, "how many of them have no training examples; none: one in twenty"
    )
    classes: int = option(10, "classes over all tasks")
    classes_per_task: int = option(3, "classes that one task has")
    features: int = option(16, "dimension of the inputs")
    hidden: int = option(64, "hidden units of the model")
    spread: float = option(1.0, "how far a task's classes lie from the common prototypes")
    noise: float = option(1.0, "standard deviation of the inputs within a class")
    minimum: int = option(4, "training examples of the smallest trained task")
    cap: int = option(1000, "training examples of a task at most")
    exponent: float = option(1.2, "exponent of the Pareto law of task sizes")
    seed: int = option(0, "seed of the data")

    def __post_init__(self) -> None:
        if self.tasks > MOST_TASKS:
            raise ValueError(f"Invalid tasks: {self.tasks:,}, more than {MOST_TASKS:,}")
        for name in ("tasks", "classes", "classes_per_task", "features", "hidden", "minimum"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}, should be at least 1")
        if self.classes_per_task > self.classes:
            raise ValueError(f"Invalid classes_per_task: {self.classes_per_task} of {self.classes}")
        if not 0 <= self.untrained < self.tasks:
            raise ValueError(f"Invalid zero_shot: {self.zero_shot} of {self.tasks} tasks")
        for name in ("spread", "noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}, should be at least 0")
        if self.cap < self.minimum or not self.exponent > 0:
            raise ValueError(f"Invalid sizes: {self.minimum} to {self.cap}, {self.exponent}")

    @property
    def untrained(self) -> int:
        return self.tasks // 20 if self.zero_shot is None else self.zero_shot


def task_sizes(settings: Settings) -> np.ndarray:
    """Training examples per task, in the order drawn: large tasks tend to come early."""
    u = 1.0 - uniform(settings.tasks, settings.seed, "sizes").numpy()
    with np.errstate(over="ignore"):  # infinity is capped too
        sizes = np.minimum(settings.minimum * u ** (-1 / settings.exponent), settings.cap)
    sizes = sizes.astype(np.int64)
    sizes = sizes[order_sampled(sizes, settings.seed)]
    sizes[permutation(settings.tasks, settings.seed, "zero-shot")[: settings.untrained]] = 0
    return sizes


def build(settings: Settings, seed: int) -> Benchmark:
    """The same tasks for every run; ``seed`` is the run's and sets only the model's weights."""
    sizes = task_sizes(settings)
    test_sizes = np.maximum(4, -(-sizes // 4))
    train = Segments(np.cumsum([0, *sizes]))
    test = Segments(train.offsets[-1] + np.cumsum([0, *test_sizes]))
    task = torch.cat((train.task_of_row(), test.task_of_row()))
    table = TensorExamples(*_examples(settings, task))
    names = [f"task {i}" for i in range(settings.tasks)]

    def make_model(seed: int) -> MLP:
        return MLP(settings.features, (settings.hidden,), settings.classes)

    return Benchmark(TableSequence(table, train, test, CLASSIFICATION, names), make_model)


def _examples(settings: Settings, task: Tensor) -> tuple[Tensor, Tensor]:
    T, C, d, seed = settings.tasks, settings.classes, settings.features, settings.seed
    prototypes = normal(C * d, seed, "prototypes").view(1, C, d)
    places = normal(T * C * d, seed, "places").view(T, C, d)
    means = prototypes + settings.spread * places
    present = permutation(C, torch.arange(T), "classes", seed)[:, : settings.classes_per_task]
    labels = present[task, integers(settings.classes_per_task, len(task), seed, "labels")]
    noise = normal(len(task) * d, seed, "noise").view(-1, d)
    return means[task, labels] + settings.noise * noise, labels


SPEC = BenchmarkSpec(
    Settings,
    build,
    train={"batch_size": 16, "epochs": 3, "lr": 1e-2, "evaluate_every": 20},
    method_settings={
        "ewc": {"strength": 0.01},
        "ewcpp": {"strength": 1000.0},
        "reservoir": {"buffer": 200},
        "derpp": {"buffer": 200},
        "agem": {"buffer": 200},
    },
    stackable=True,  # the data depend on data.seed, not on the run's
)
