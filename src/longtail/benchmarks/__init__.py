"""Benchmarks: each gives a sequence of tasks and a model to learn it.

A benchmark is a module with a `BenchmarkSpec` named ``SPEC``: its settings, how to build it, and
what else it has to say. `load` finds it by name, whichever package offers it, or by its path.
"""

import importlib
from types import ModuleType
from typing import Any

from longtail.benchmarks.mlp import MLP
from longtail.benchmarks.spec import MOST_TASKS, Benchmark, BenchmarkSpec, spec_of
from longtail.support import doors
from longtail.support.modules import import_named, is_module_name

__all__ = ["BENCHMARKS", "MLP", "MOST_TASKS", "Benchmark", "BenchmarkSpec", "load", "paths"]

GROUP = "longtail.benchmarks"
BENCHMARKS: dict[str, str] = {"toy": "longtail.benchmarks.toy"}  # of the core


def paths() -> dict[str, str]:
    """The modules of all benchmarks that have a name: ours, then those that packages offer."""
    offered = {name: entry.module for name, entry in doors.offered(GROUP).items()}
    return BENCHMARKS | {name: path for name, path in offered.items() if name not in BENCHMARKS}


def load(name: str) -> BenchmarkSpec[Any]:
    """A benchmark by its name, or your own module by its dotted path."""
    return spec_of(_module(name))


def _module(name: str) -> ModuleType:
    if name in BENCHMARKS:
        return importlib.import_module(BENCHMARKS[name])
    if name in doors.offered(GROUP):
        return doors.load(GROUP, name)
    known = f"known: {', '.join(paths())}, or a module's dotted path{doors.hint()}"
    if not is_module_name(name):
        raise ValueError(f"unknown benchmark {name!r}; {known}")
    try:
        return import_named(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # the benchmark is there; something it imports is not
        why = f": there is no module {name}" if "." in name else f"; {known}"
        raise ValueError(f"unknown benchmark {name!r}{why}") from None
