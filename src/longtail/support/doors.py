"""What other packages add to longtail: entry points of their metadata, one group for each kind.

=====================  =========================================================================
longtail.benchmarks    a module with a `BenchmarkSpec` named ``SPEC``
longtail.methods       a subclass of `longtail.methods.Method`
longtail.optimizers    a subclass of `torch.optim.Optimizer`
longtail.studies       a package whose files ``*.toml`` are studies
longtail.checks        a function from a table's rows to claims; it needs no torch
longtail.papers        a dictionary of published tables; it needs no torch
longtail.labels        a dictionary from names of methods to what tables call them; no torch
longtail.data          a module with ``add_arguments(parser)`` and ``main(args)`` for
                       ``longtail data NAME``
=====================  =========================================================================

A package offers a benchmark called ``mine`` by two lines in its pyproject.toml:

    [project.entry-points."longtail.benchmarks"]
    mine = "my_package.my_benchmark"

Installing a package is what trusts it: its code runs with the rights of ours. Looking for entry
points reads the metadata of all that is installed, so names of the core are looked up before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

BENCH = "longtail_bench"
OURS = ("longtail", BENCH)
INSTALL_BENCH = "the paper's own come with longtail-bench: `pip install ./bench` from a clone"


@cache
def offered(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, ours before those of strangers, then in their order."""
    ours_first = sorted(entry_points(group=group), key=lambda entry: not _is_bench(entry))
    by_name: dict[str, EntryPoint] = {}
    for entry in ours_first:
        by_name.setdefault(entry.name, entry)
    return by_name


def load(group: str, name: str) -> Any:
    """What an entry point names; `ValueError` where it cannot be had, `KeyError` without one."""
    entry = offered(group)[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and not entry.module.startswith(missing):
            raise  # the module is there; something that it imports is not
        package = entry.dist.name if entry.dist is not None else "a package"
        raise ValueError(
            f"{name!r} of {package} ({entry.value}) cannot be imported: {error}"
        ) from error


def load_all(group: str) -> Iterator[tuple[str, Any]]:
    """Every entry point of a group with what it names."""
    for name in offered(group):
        yield name, load(group, name)


def hint() -> str:
    """What a sentence about an unknown name ends with where our own second package is missing."""
    return "" if find_spec(BENCH) is not None else f"; {INSTALL_BENCH}"


def is_ours(thing: Any) -> bool:
    """Whether a class or a function is of one of our packages, whose tests try what it says."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] in OURS


def _is_bench(entry: EntryPoint) -> bool:
    return entry.value.partition(".")[0].partition(":")[0] == BENCH
