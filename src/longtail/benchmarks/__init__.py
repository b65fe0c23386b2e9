"""Benchmarks: each gives a sequence of tasks and a model to learn it.

A benchmark is a module with a `BenchmarkSpec` named ``SPEC``: its settings, how to build it, and
what else it has to say. `load` finds it by the benchmark's name.
"""

import importlib
from typing import Any

from longtail.benchmarks.spec import Benchmark, BenchmarkSpec, spec_of
from longtail.support.modules import import_named, is_module_name

__all__ = ["BENCHMARKS", "Benchmark", "BenchmarkSpec", "load"]

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
    "fsmol": "longtail.benchmarks.fsmol",
}


def load(name: str) -> BenchmarkSpec[Any]:
    """A benchmark: one of ours by name, or your own module by its dotted path."""
    path = BENCHMARKS.get(name, name)
    known = f"known: {', '.join(BENCHMARKS)}, or a module's dotted path"
    if not is_module_name(path):
        raise ValueError(f"unknown benchmark {name!r}; {known}")
    try:
        ours = name in BENCHMARKS
        module = importlib.import_module(path) if ours else import_named(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise  # the benchmark is there; something it imports is not
        why = f": there is no module {path}" if "." in path else f"; {known}"
        raise ValueError(f"unknown benchmark {name!r}{why}") from None
    return spec_of(module)
