"""What is tried before runs train as one stack: whatever is a stranger's and says that it may.

Methods, optimizers and policies are tried on tasks of ours (`training.trial`). A benchmark is tried
on a few of its own examples, and where its runs are to share one sequence, that of every seed must
be the same.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.methods import Method
from longtail.runs.config import RunConfig, load_benchmark, method_class
from longtail.runs.snapshot import generator_state, seed_generators, set_generator_state
from longtail.support.doors import BENCH, is_ours
from longtail.support.random import Seed, derive
from longtail.tasks import (
    Batch,
    Examples,
    Ragged,
    TableSequence,
    TaskSequence,
    leaves,
    map_leaves,
    multitask,
    read,
    validation_share,
)
from longtail.training.optimizer_class import find_function
from longtail.training.trial import (
    SETTINGS,
    SIZES,
    CannotTry,
    Trial,
    difference,
    try_method,
    try_optimizer,
)

_TRUSTED = ("longtail", BENCH, "torch", "schedulefree")  # packages whose optimizers are known


def sequence_of(benchmark: Any, config: RunConfig, seed: Seed) -> TaskSequence:
    """The benchmark's tasks, with a validation share or as their union where that is asked for."""
    sequence = benchmark.sequence
    share = config.train.validation
    if share > 0 and isinstance(sequence, TableSequence):
        if sequence.segments("validation") is None:  # a benchmark may come with its own
            sequence = validation_share(sequence, seed, share)
    elif share > 0 and type(sequence).validation is TaskSequence.validation:
        raise ValueError(f"train.validation = {share}, but {config.benchmark} cannot be split")
    return multitask(sequence) if config.method == "multitask" else sequence


def model_of(benchmark: Benchmark, config: RunConfig) -> Callable[[int], nn.Module]:
    joint = benchmark.make_joint_model if config.method == "multitask" else None
    return joint or benchmark.make_model


def try_to_stack(config: RunConfig) -> None:
    """Try what a stranger's method, optimizer and policy say of themselves.

    Raises:
        ValueError: it is not so; names which, and the first tensor that differs.
    """
    kind = method_class(config.method)
    if not is_ours(kind):
        try_method(kind, asdict(config.methods))
    package = config.chosen.kind.__module__.partition(".")[0]
    function = config.moments.function
    if package not in _TRUSTED or (function and not is_ours(find_function(function))):
        try_optimizer(config.chosen, dict(config.optim), config.moments)


def try_benchmark(config: RunConfig, seeds: Sequence[int]) -> None:
    """Try that a stranger's benchmark gives every run of a stack what it gives that run alone.

    Raises:
        ValueError: it does not; names what differs first.
    """
    spec = load_benchmark(config.benchmark)
    if all(is_ours(part) for part in (spec.Settings, spec.build, *_functions(spec))):
        return
    said = f"benchmark {config.benchmark} says that its runs can be stacked"
    built = _built(spec, config, [*seeds, seeds[0] + 1][:2])
    if spec.build_stack is None:
        first = list(_digests(built[seeds[0]].sequence))
        for seed in dict.fromkeys([*built, *seeds]):
            other = built[seed] if seed in built else _built(spec, config, [seed])[seed]
            for (what, digest), (_, theirs) in zip(first, _digests(other.sequence), strict=False):
                if digest != theirs:
                    raise ValueError(
                        f"{said} (stackable), and {what} of seeds {seeds[0]} and {seed} differ: a "
                        "stack would train them all on one; leave stackable out, or write a "
                        "build_stack"
                    )
    try:
        found = difference(_trial(spec, config, built))
    except CannotTry as error:
        raise ValueError(f"{said}, and cannot be tried in float64: {error}") from None
    if found is not None:
        raise ValueError(
            f"{said}, and {found}: its objective and its model must keep the examples and the "
            "replicas of a stack apart; or leave stackable out"
        )


def _functions(spec: BenchmarkSpec[Any]) -> list[Any]:
    return [f for f in (spec.build_stack, spec.stackable) if callable(f)]


def _built(
    spec: BenchmarkSpec[Any], config: RunConfig, seeds: Sequence[int]
) -> dict[int, Benchmark]:
    """The benchmark as the run of each seed alone would build it."""
    with _same_generators():
        built: dict[int, Benchmark] = {}
        for seed in seeds:
            seed_generators(derive(seed, "run"))
            built[seed] = spec.build(config.data, seed)
    return built


@contextmanager
def _same_generators() -> Iterator[None]:
    state = generator_state()
    try:
        yield
    finally:
        set_generator_state(state)


def _digests(sequence: TaskSequence) -> Iterator[tuple[str, str]]:
    """What the tasks are, part by part, and the SHA-256 of each part."""
    yield "the names of the tasks", _sha256("\n".join(sequence.names).encode())
    for what in ("train_sizes", "test_sizes"):
        yield f"the {what} of the tasks", _sha256(getattr(sequence, what).tobytes())
    for task in sequence:
        parts = {"training": task.train, "validation": task.validation, "test": task.test}
        for what, examples in parts.items():
            if examples is not None and len(examples):
                yield f"the {what} examples of {task.name}", _sha256(_bytes(read(examples)))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _bytes(batch: Batch) -> bytes:
    file = io.BytesIO()
    for leaf in leaves(batch):
        for tensor in leaf if isinstance(leaf, Ragged) else (leaf,):
            np.save(file, torch.as_tensor(tensor).cpu().numpy(), allow_pickle=False)
    return file.getvalue()


def _trial(spec: BenchmarkSpec[Any], config: RunConfig, built: dict[int, Benchmark]) -> Trial:
    """A trial of a few of a benchmark's examples, its model and its objective."""
    kind, seeds = method_class(config.method), list(built)

    def make_sequence(seed: Seed, policies: int) -> TaskSequence:
        benchmark = built[seeds[0] if isinstance(seed, Tensor) else seed]
        if isinstance(seed, Tensor) and spec.build_stack is not None:
            benchmark = spec.build_stack([config.data] * policies, seeds)
        return _Few(sequence_of(benchmark, config, seed))

    def make_method(model: nn.Module, sequence: TaskSequence, seed: Seed) -> Method:
        return kind(model, sequence.objective, seed=seed, **asdict(config.methods))

    def make_model(seed: int) -> nn.Module:
        return model_of(built[seed], config)(seed)

    settings = replace(SETTINGS, optimizer=config.chosen.name)
    policy = replace(config.moments, lr_scale=1.0)
    both = seeds[0], seeds[1]
    return Trial(make_sequence, make_model, make_method, policy, settings, dict(config.optim), both)


class _Few(TaskSequence):
    """The first examples of two trained tasks of a sequence, of unequal number, in float64."""

    def __init__(self, sequence: TaskSequence) -> None:
        self.whole, rows = sequence, sequence.trained_rows
        trained = np.flatnonzero(rows > 0).tolist()
        if not trained:
            raise CannotTry("no task has training examples")
        second = [i for i in trained if rows[i] != rows[trained[0]]] or trained[1:] or trained
        self.tasks = [trained[0], second[0]]
        sizes = np.minimum(rows[self.tasks], SIZES)
        if sizes[0] == sizes[1]:
            sizes[1] = max(1, sizes[1] - 1)
        names = [sequence.names[i] for i in self.tasks]
        super().__init__(names, sizes, [1, 1], sequence.objective, sequence.replicas)

    def train(self, i: int) -> Examples | None:
        examples = self.whole.train(self.tasks[i])
        assert examples is not None
        return _FewRows(examples, int(self.train_sizes[i]))

    def test(self, i: int) -> Examples:
        return self.whole.test(self.tasks[i])

    def tests(self, upto: int) -> tuple[Examples, Tensor]:
        raise NotImplementedError("nothing is scored in a trial")

    def to(self, device: torch.device | str) -> TaskSequence:
        return self


class _FewRows:
    """The first rows of a task, in float64."""

    def __init__(self, examples: Examples, rows: int) -> None:
        self.examples, self.rows = examples, rows
        self.host_index = getattr(examples, "host_index", False)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Tensor) -> Batch:
        return map_leaves(_double, self.examples[index])

    def to(self, device: torch.device | str) -> Examples:
        return self


def _double(leaf: Any) -> Any:
    if isinstance(leaf, Ragged):
        return Ragged(_double(leaf.padded), leaf.lengths)
    return leaf.double() if leaf.is_floating_point() else leaf
