"""Benchmarks: each gives a sequence of tasks and a model to learn it.

A benchmark is a module with

    Settings            a frozen dataclass, a line of help in each field's metadata
    build(settings, seed) -> Benchmark
    TRAIN               training settings that differ from the defaults (a dict)
    METHOD_SETTINGS     the same per method (a dict of dicts)

and, where runs with different seeds can train as one stack of replicas, `STACKABLE = True` (the
data do not depend on the seed) or `build_stack(settings, seeds) -> Benchmark`; where only some
settings allow it, also a cheap `stackable(settings) -> bool`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from longtail.tasks import Evaluator, TaskSequence

__all__ = ["BENCHMARKS", "Benchmark", "load", "stackable"]

# Imported when asked for: some need extras, and none should cost the others time.
BENCHMARKS: dict[str, str] = {
    "toy": "longtail.benchmarks.toy",
    "synthetic": "longtail.benchmarks.synthetic",
    "mnist": "longtail.benchmarks.images.mnist",
    "fashion_mnist": "longtail.benchmarks.images.fashion_mnist",
    "cifar10": "longtail.benchmarks.images.cifar10",
    "cifar100": "longtail.benchmarks.images.cifar100",
    "nlp5": "longtail.benchmarks.nlp5",
    "wsd": "longtail.benchmarks.wsd",
    "vqa": "longtail.benchmarks.vqa",
}


@dataclass(frozen=True)
class Benchmark:
    """Tasks, and how to make the model for a seed.

    Attributes:
        sequence: the tasks.
        make_model: seed -> a fresh model; it draws from torch's generator, which the caller seeds.
        evaluate: replaces the usual evaluator where a benchmark has its own.
    """

    sequence: TaskSequence
    make_model: Callable[[int], nn.Module]
    evaluate: Evaluator | None = None


def load(name: str) -> Any:
    """The module of a benchmark: one of ours by name, or your own by its dotted path."""
    if name not in BENCHMARKS and "." not in name:
        known = ", ".join(BENCHMARKS)
        raise ValueError(f"unknown benchmark {name!r}; known: {known}, or a module's dotted path")
    path = BENCHMARKS.get(name, name)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise  # the benchmark is there; something it imports is not
        raise ValueError(f"unknown benchmark {name!r}: there is no module {path}") from None


def stackable(module: Any, settings: Any) -> bool:
    """Whether runs of a benchmark with these settings can train as one stack."""
    if not (hasattr(module, "build_stack") or getattr(module, "STACKABLE", False)):
        return False
    return getattr(module, "stackable", lambda _: True)(settings)
