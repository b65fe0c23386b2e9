"""What a benchmark is: `Benchmark`, one that was built, and `BenchmarkSpec`, which builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from torch import nn

from longtail.tasks import Evaluator, TaskSequence

MOST_TASKS = 1_000_000  # of a benchmark that makes its tasks: more would fill the memory with names

S = TypeVar("S")


@dataclass(frozen=True)
class Benchmark:
    """Tasks, and how to make the model for a seed.

    Attributes:
        sequence: the tasks.
        make_model: seed -> a fresh model; it draws from torch's generator, which the caller seeds.
        evaluate: replaces the usual evaluator where a benchmark has its own.
        make_joint_model: replaces ``make_model`` in multi-task training, where that needs another
            model: one head for each task, all of them learned at once.
    """

    sequence: TaskSequence
    make_model: Callable[[int], nn.Module]
    evaluate: Evaluator | None = None
    make_joint_model: Callable[[int], nn.Module] | None = None


@dataclass(frozen=True)
class BenchmarkSpec(Generic[S]):
    """All that commands, runs and studies ask of a benchmark. A module has one, named ``SPEC``.

    Attributes:
        Settings: a frozen dataclass whose fields become flags; each has a line of help in its
            metadata (`longtail.names.option` makes such a field).
        build: (settings, seed) -> the tasks and how to make the model.
        train: training settings that differ from the defaults of `TrainSettings`.
        method_train: the same for single methods, by their name; they win over ``train``.
        method_settings: settings of methods that differ from the method's defaults, by its name.
        stackable: whether runs that differ in their seed can train as one stack of replicas; a
            function of the settings, and a cheap one, where only some settings allow it. Without
            ``build_stack`` it promises that the data do not depend on the run's seed.
        build_stack: (settings of each row, seeds) -> the same as ``build`` for a stack, where the
            data of its replicas differ.
        stack_fields: names of settings that may differ within a stack, beside seed and policy.
        most_seeds: (settings, method, bytes) -> how many seeds a stack may have for its examples
            to fit into so much memory; None where examples take little.
        captured_fisher: whether EWC's pass at the end of a task replays CUDA graphs, which pays
            where thousands of tasks end.
        files: settings -> data files, or folders of them, that a run depends on beside those that
            a setting names. A run is computed anew where one has changed.
    """

    Settings: type[S]
    build: Callable[[S, int], Benchmark]
    train: Mapping[str, Any] = field(default_factory=dict)
    method_train: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stackable: bool | Callable[[S], bool] = False
    build_stack: Callable[[Sequence[S], Sequence[int]], Benchmark] | None = None
    stack_fields: tuple[str, ...] = ()
    most_seeds: Callable[[S, str, int], int] | None = None
    captured_fisher: bool = False
    files: Callable[[S], Iterable[str | Path]] | None = None

    def __post_init__(self) -> None:
        if self.build_stack is not None and not self.stackable:
            raise ValueError("a benchmark with build_stack should say stackable = True")

    def can_stack(self, settings: S) -> bool:
        """Whether runs with these settings can train as one stack."""
        return self.stackable(settings) if callable(self.stackable) else self.stackable


def spec_of(module: ModuleType) -> BenchmarkSpec[Any]:
    """The ``SPEC`` of a module, or one made of a module that has ``Settings`` and ``build``.

    Such a module may also say, as module attributes, ``TRAIN``, ``METHOD_TRAIN``,
    ``METHOD_SETTINGS``, ``STACKABLE``, ``STACK_FIELDS`` and ``CAPTURED_FISHER``, and have functions
    ``build_stack``, ``stackable``, ``most_seeds`` and ``files``. They mean
    what the fields of `BenchmarkSpec` with these names mean, but that ``build_stack`` says
    STACKABLE by itself. This is the only place that looks for them.
    """
    found = vars(module)
    spec = found.get("SPEC")
    if isinstance(spec, BenchmarkSpec):
        return spec
    if "Settings" not in found or "build" not in found:
        raise ValueError(
            f"module {module.__name__} is no benchmark: it has no SPEC, nor Settings and build"
        )
    names = ("train", "method_train", "method_settings", "stack_fields", "captured_fisher")
    said = {name: found[name.upper()] for name in names if name.upper() in found}
    functions = ("Settings", "build", "build_stack", "most_seeds", "files")
    said |= {name: found[name] for name in functions if name in found}
    stackable = bool(found.get("STACKABLE", False)) or "build_stack" in found
    return BenchmarkSpec(**said, stackable=stackable and found.get("stackable", True))
