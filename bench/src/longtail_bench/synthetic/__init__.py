r"""A long tail of linear regressions, made from a seed and never stored.

This is the paper's synthetic study. Task t has a linear function and a kind of inputs of its own:

    y = w_t · x + noise · n,        x = g_t(z),        z ~ N(0, I_l),  n ~ N(0, 1)
    g_t(z) = A_t relu(B_t z + b_t) + a_t               a fresh random network R^l -> R^d per task

so its inputs lie near an l-dimensional surface that no other task shares. The functions are

    same      w_t = w_1
    perturb   w_t = w_1      with k coordinates drawn again
    shift     w_t = w_{t-1}  with k coordinates drawn again

and the number of examples follows a power law (Pareto with an exponent, from a minimum up to a
cap), largest task first. Sizes are drawn once, from ``size_seed``: all seeds of a study share
them, which is what lets runs be stacked. The rest is a function of (seed, task), see
`longtail.support.random`. The three settings share inputs, noise and replaced coordinates, so that
they can be compared pair by pair, and a stack of runs that differ in ``setting`` holds an input
once.
"""

from __future__ import annotations

import copy
import functools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from longtail.benchmarks import MOST_TASKS, Benchmark, BenchmarkSpec
from longtail.names import option
from longtail.support.random import normal, permutation, uniform
from longtail.tasks import REGRESSION, Examples, TaskSequence, TensorExamples, floor
from longtail_bench.synthetic.model import Regressor
from longtail_bench.synthetic.tables import Chain, Dense, Generated, Kept, Place, dense, fits

SETTINGS = ("same", "perturb", "shift")


@dataclass(frozen=True)
class Settings:
    """What the sequence is made of; the defaults are the calibrated ones."""

    setting: Literal["same", "perturb", "shift"] = option(
        "same", "how tasks differ: same, perturb (w_1) or shift (w_{t-1})"
    )
    tasks: int = option(1000, "number of tasks")
    d: int = option(100, "dimension of the inputs x")
    l: int = option(10, "dimension of the latent z")  # noqa: E741
    hidden: int = option(10, "hidden units of the network that makes a task's inputs")
    k: int = option(1, "coordinates of w drawn again per task (perturb, shift)")
    noise: float = option(0.085, "standard deviation of the noise on y")
    exponent: float = option(0.66, "exponent of the Pareto law of task sizes")
    minimum: int = option(4, "smallest number of training examples of a task")
    cap: int = option(20_000, "largest number of training examples of a task")
    size_seed: int = option(1, "seed of the task sizes, shared by all runs of a study")
    test_fraction: float = option(0.2, "test examples per training example (at least one)")

    def __post_init__(self) -> None:
        if self.tasks > MOST_TASKS:
            raise ValueError(f"Invalid tasks: {self.tasks:,}, more than {MOST_TASKS:,}")
        if self.setting not in SETTINGS:
            raise ValueError(f"unknown setting {self.setting!r}; known: {', '.join(SETTINGS)}")
        for name in ("tasks", "d", "l", "hidden", "minimum"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.k <= self.d:
            raise ValueError(f"k must lie between 0 and d = {self.d}, got {self.k}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be finite and not negative, got {self.noise}")
        if not self.exponent > 0:
            raise ValueError(f"exponent must be positive, got {self.exponent}")
        if self.cap < self.minimum:
            raise ValueError(f"cap must be at least minimum = {self.minimum}, got {self.cap}")
        if not self.test_fraction > 0:
            raise ValueError(f"test_fraction must be positive, got {self.test_fraction}")


def task_sizes(settings: Settings) -> np.ndarray:
    """Training examples per task, largest first: floor(minimum * u^(-1/exponent)), capped."""
    u = 1.0 - uniform(settings.tasks, settings.size_seed, "sizes").numpy()
    with np.errstate(over="ignore"):  # infinity is capped too
        sizes = settings.minimum * u ** (-1.0 / settings.exponent)
    return np.sort(np.minimum(sizes, settings.cap).astype(np.int64))[::-1].copy()


def task_weights(settings: Settings, seeds: Tensor) -> Tensor:
    """The functions w_t of every task and seed, [S, T, d]."""
    T, d, k = settings.tasks, settings.d, settings.k
    w = normal(d, seeds, "w")[:, None].repeat(1, T, 1)
    if settings.setting == "same" or k == 0:
        return w
    chosen, values = _replacements(T, d, k, tuple(seeds.tolist()))
    previous = w[:, 0].clone()
    for t in range(1, T):
        previous.scatter_(1, chosen[t - 1], values[t - 1])
        w[:, t].scatter_(1, chosen[t - 1], values[t - 1])
        if settings.setting == "shift":
            w[:, t] = previous
    return w


@functools.lru_cache(maxsize=1)  # settings share them, and so do stacks of other methods
def _replacements(T: int, d: int, k: int, seeds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Which coordinates are drawn again at tasks 1 to T - 1, and their values, [T - 1, S, k]."""
    key, blocks = torch.tensor(seeds), [range(t, min(t + 64, T)) for t in range(1, T, 64)]
    empty = torch.empty(0, len(seeds), k)
    chosen = [permutation(d, key, "coordinates", tasks)[..., :k] for tasks in blocks]
    values = [normal(k, key, "values", tasks) for tasks in blocks]
    return torch.cat([empty.long(), *chosen]), torch.cat([empty, *values])


class SyntheticSequence(TaskSequence):
    """The sequences of S seeds at once, under P settings that differ only in ``setting``.

    With an integer seed the data have no leading dimension and the sequence is an ordinary one.
    """

    def __init__(self, settings: Sequence[Settings], seeds: int | Sequence[int]) -> None:
        base = settings[0]
        for other in settings:
            if replace(other, setting=base.setting) != base:
                raise ValueError(f"settings differ in more than 'setting': {base} and {other}")
        self.settings, self.objective = base, REGRESSION
        self.replicas = None if isinstance(seeds, int) else len(seeds)
        self.names = [f"task {t}" for t in range(base.tasks)]
        self.train_sizes = task_sizes(base)
        self.test_sizes = np.maximum(1, floor(base.test_fraction * self.train_sizes))
        self.device = torch.device("cpu")
        self.seeds = torch.tensor([seeds] if isinstance(seeds, int) else list(seeds))
        kinds = list(dict.fromkeys(s.setting for s in settings))
        weights = [task_weights(replace(base, setting=kind), self.seeds) for kind in kinds]
        self._weights = torch.stack(weights)  # [K, S, T, d]
        chosen = torch.tensor([kinds.index(s.setting) for s in settings])
        self._kinds = None if len(kinds) == 1 else chosen
        self._tests: list[Generated] = []
        self._place: Place | None = None
        self._kept: Kept | None = None
        self._blocks: list[range] = []  # tasks to be made together, where that is worth it
        self._made: dict[str, tuple[range, list[Generated]]] = {}

    def to(self, device: torch.device | str) -> SyntheticSequence:
        moved = copy.copy(self)
        moved.device = torch.device(device)
        moved.seeds, moved._weights = self.seeds.to(device), self._weights.to(device)
        moved._kinds = None if self._kinds is None else self._kinds.to(device)
        moved._tests, moved._kept, moved._made = [], None, {}
        cuda = moved.device.type == "cuda"
        moved._place = Place(int(self.train_sizes[0])) if cuda else None
        moved._blocks = self.blocks() if cuda else []
        return moved

    def blocks(self, numbers: int = 1 << 24, most: int = 64) -> list[range]:
        """Consecutive tasks with at most so many random numbers, padded to the largest's size.

        A small task is thirty kernels, which take longer to launch than a block's to run.
        """
        found, start = [], 0
        for t in range(1, self.settings.tasks + 1):
            last = t == self.settings.tasks
            size = self.train_sizes[start : t + 1].max() * len(self.seeds) * self.settings.l
            if last or t - start == most or size * (t + 1 - start) > numbers:
                found.append(range(start, t))
                start = t
        return found

    def train(self, i: int) -> Examples:
        made = self.make(i, "train")
        made.place = self._place
        return self._examples(made)

    def test(self, i: int) -> Examples:
        self._make_tests(i + 1)
        return self._examples(self._tests[i])

    def tests(self, upto: int) -> tuple[Examples, Tensor]:
        self._make_tests(upto)
        sizes, rows = torch.from_numpy(self.test_sizes[:upto]), int(self.test_sizes[:upto].sum())
        task = torch.arange(upto).repeat_interleave(sizes, output_size=rows).to(self.device)
        parts = self._tests[:upto]
        if self.replicas is None:
            return TensorExamples(*dense(parts, single=True), self.device), task
        if self._kept is None and fits(parts[0], n := int(self.test_sizes.sum())):
            self._kept = Kept(parts[0], n)
        return Chain(parts, self._kinds) if self._kept is None else self._kept.upto(parts), task

    def union(self) -> Examples:
        parts = (self.make(t, "train") for t in range(len(self.train_sizes)))
        n, single = int(self.train_sizes.sum()), self.replicas is None
        x, y = dense(parts, n, single=single)
        return TensorExamples(x, y, self.device) if single else Dense(x, y, self._kinds)

    def make(self, t: int, part: str) -> Generated:
        """The examples of one part of a task."""
        tasks, made = self._made.get(part, (range(0), []))
        if t not in tasks:
            at = bisect_right(self._blocks, t, key=lambda block: block.start) - 1
            tasks = self._blocks[at] if self._blocks else range(t, t + 1)
            made = self._make(tasks, part)
            if len(tasks) > 1:
                self._made[part] = tasks, made
        return made[t - tasks.start]

    def _make(self, tasks: range, part: str) -> list[Generated]:
        """The examples of tasks of about the same size: C of them, padded to n rows."""
        s, C, S = self.settings, len(tasks), len(self.seeds)
        sizes = (self.train_sizes if part == "train" else self.test_sizes)[tasks.start : tasks.stop]
        n = int(sizes.max())
        B = self._layer(tasks, "first", s.l, s.hidden)
        A = self._layer(tasks, "second", s.hidden, s.d)
        hidden = torch.ones(C, S, n, s.hidden + 1, device=self.device)  # the last is the bias's
        noise = torch.empty(C, S, n, device=self.device)
        for some in self._seeds_at_once(n * s.l):  # what is made on the way stays in the cache
            z = normal(n * s.l, self.seeds[some], part, "z", tasks, device=self.device)
            z = z.unflatten(2, (n, s.l)).flatten(0, 1)
            layer = B[:, some].flatten(0, 1)
            units = torch.baddbmm(layer[:, s.l :], z, layer[:, : s.l]).relu_()
            hidden[:, some, :, : s.hidden] = units.unflatten(0, (C, -1))
            noise[:, some] = normal(n, self.seeds[some], part, "noise", tasks, device=self.device)
        w = self._weights[:, :, tasks.start : tasks.stop].permute(2, 1, 3, 0)  # [C, S, d, K]
        function = torch.bmm(A.flatten(0, 1), w.flatten(0, 1))  # x w = h (A w), without making x
        y = torch.bmm(hidden.flatten(0, 1), function).unflatten(0, (C, S))
        y = y.permute(0, 3, 1, 2).contiguous().add_(noise[:, None], alpha=s.noise)
        parts = zip(sizes.tolist(), hidden, A, y, strict=True)
        return [Generated(h[:, :m], a, target[..., :m], self._kinds) for m, h, a, target in parts]

    def _seeds_at_once(self, numbers: int) -> list[slice]:
        S = len(self.seeds)
        step = S if self.device.type != "cpu" else max(1, (1 << 17) // numbers)
        return [slice(s, s + step) for s in range(0, S, step)]

    def _layer(self, tasks: range, name: str, rows: int, columns: int) -> Tensor:
        """A layer's weight over its bias, [C, S, rows + 1, columns], initialised as `nn.Linear`."""
        u = uniform((rows + 1) * columns, self.seeds, name, tasks, device=self.device)
        return ((2.0 * u - 1.0) / math.sqrt(rows)).float().unflatten(2, (rows + 1, columns))

    def _make_tests(self, upto: int) -> None:
        """Test examples are read again at every evaluation, so they are kept."""
        for t in range(len(self._tests), upto):
            self._tests.append(self.make(t, "test"))

    def _examples(self, made: Generated) -> TensorExamples | Generated:
        if self.replicas is None:
            return TensorExamples(*dense([made], single=True), self.device)
        return made


def most_seeds(settings: Settings, method: str, memory: int) -> int:
    """Seeds that a stack may have for its examples to take at most 0.6 of ``memory`` bytes.

    Multi-task training keeps the inputs of all training examples. Otherwise there are the hidden
    units of all test examples and of the largest task, twice.
    """
    sizes = task_sizes(settings)
    numbers = (settings.test_fraction * sizes.sum() + 2 * sizes[0]) * (settings.hidden + 4)
    if method == "multitask":
        numbers += sizes.sum() * settings.d
    return max(1, int(0.6 * memory / (4 * numbers)))


def build(settings: Settings, seed: int) -> Benchmark:
    """One sequence and its model."""
    return Benchmark(SyntheticSequence([settings], seed), lambda _: Regressor(settings.d))


def build_stack(settings: Sequence[Settings], seeds: Sequence[int]) -> Benchmark:
    """A stack: ``seeds`` along S, ``settings`` along P (entry p is what policy p learns)."""
    return Benchmark(SyntheticSequence(settings, seeds), lambda _: Regressor(settings[0].d))


SPEC = BenchmarkSpec(
    Settings,
    build,
    # Found by a search (docs/benchmarks/synthetic.md): the paper states none of them.
    train={
        "optimizer": "adam",
        "weight_decay": 0.0,
        "batch_size": 400,
        "epochs": 29,
        "lr": 0.11,
        "schedule": "linear",
    },
    method_train={"multitask": {"epochs": 1, "lr": 0.8, "schedule": "constant"}},
    # One example in a hundred, the paper's rule for its other benchmarks.
    method_settings={method: {"buffer": 2600} for method in ("reservoir", "derpp", "agem")},
    stackable=True,
    build_stack=build_stack,
    stack_fields=("setting",),  # a stack holds the inputs that the settings share once
    most_seeds=most_seeds,
)
