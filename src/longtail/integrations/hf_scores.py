"""Scores of this and earlier weeks by the evaluation of a `transformers.Trainer`.

What the Trainer evaluates is scored as it evaluates it: TRL's trainers prepare the data, and their
own metrics, which are told to the log alone, count as any other. Whether that works is tried on the
first rows of each set before training begins.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from transformers import Trainer

from longtail.memory.scores import WeekScore

_TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class FirstRows(IterableDataset[Any]):
    """The first rows of a data set that has no length."""

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset, self.count = dataset, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.dataset), self.count)


class TrainerScores:
    """Scores data sets by name.

    Args:
        trainer: which evaluates them.
        metric: which of its metrics is the score, with or without "eval_" before it.
    """

    def __init__(self, trainer: Trainer, metric: str) -> None:
        self.trainer, self.metric = trainer, metric.removeprefix("eval_")

    def __call__(self, sets: Mapping[str, Any]) -> dict[str, WeekScore]:
        """The score of every set, which the Trainer logs as well."""
        scores: dict[str, WeekScore] = {}
        for name, dataset in sets.items():
            score = self._score(name, dataset)
            if math.isnan(score.value):
                warnings.warn(f"{self.metric} of {name!r} is NaN: it is left out", stacklevel=2)
            else:
                scores[name] = score
        return scores

    def check(self, sets: Mapping[str, Any]) -> None:
        """Score the first rows of every set, and leave everything as it was.

        Raises:
            ValueError: with the name of a set that cannot be evaluated, and why.
        """
        rows = self.trainer.args.eval_batch_size * self.trainer.args.world_size
        for name, dataset in sets.items():
            with _unheard(self.trainer) as failures:
                try:
                    self._score(name, first_rows(dataset, rows))
                except Exception as error:
                    if failures:  # the user's metric may need more rows than these
                        continue
                    raise ValueError(
                        f"The data of {name!r} cannot be scored by {self.metric!r}, as its first "
                        f"{rows} rows show: {_said(error)}"
                    ) from error

    def _score(self, name: str, dataset: Any) -> WeekScore:
        prefix = f"eval_{name.replace(' ', '_')}"
        with _counting(self.trainer) as counts, _no_cached_loader(self.trainer):
            metrics = self.trainer.evaluate(dataset, metric_key_prefix=prefix)
        if not sum(counts):
            raise ValueError("there is not a row in it")
        value = metrics.get(f"{prefix}_{self.metric}", metrics.get(f"eval_{self.metric}"))
        if not isinstance(value, int | float):
            known = ", ".join(_names(metrics, prefix))
            raise ValueError(f"Invalid metric: {self.metric!r}, the Trainer gives {known}")
        return WeekScore(float(value), sum(counts))


def first_rows(dataset: Any, count: int) -> Any:
    """The first rows of a data set, as one of its kind where it has a way to that."""
    if hasattr(dataset, "take"):  # of `datasets`, streaming or not
        return dataset.take(count)
    if not hasattr(dataset, "__len__"):
        return FirstRows(dataset, count)
    return [dataset[i] for i in range(min(count, len(dataset)))]


def _names(metrics: Mapping[str, Any], prefix: str) -> list[str]:
    """What may be asked for among the metrics of an evaluation."""
    names = [key.removeprefix(f"{prefix}_").removeprefix("eval_") for key in metrics]
    return [name for name in names if name not in _TIMES and name != "epoch"]


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


@contextmanager
def _counting(trainer: Any) -> Iterator[list[int]]:
    """How many examples are evaluated; the Trainer counts them and tells its own loop alone."""
    counts: list[int] = []
    own = vars(trainer).get("evaluation_loop")  # somebody may have put one there
    loop = trainer.evaluation_loop

    def counting_loop(*given: Any, **further: Any) -> Any:
        output = loop(*given, **further)
        counts.append(int(output.num_samples))
        return output

    trainer.evaluation_loop = counting_loop
    try:
        yield counts
    finally:
        del trainer.evaluation_loop
        if own is not None:
            trainer.evaluation_loop = own


@contextmanager
def _no_cached_loader(trainer: Any) -> Iterator[None]:
    """With persistent workers the Trainer evaluates its first set again, whatever it is given."""
    persistent = trainer.args.dataloader_persistent_workers
    trainer.args.dataloader_persistent_workers = False
    try:
        yield
    finally:
        trainer.args.dataloader_persistent_workers = persistent


@contextmanager
def _unheard(trainer: Any) -> Iterator[list[Exception]]:
    """Evaluate without callbacks, logs or a random number drawn.

    Yields:
        What the user's own metric has raised, which is told as a warning.
    """
    handler, log = trainer.callback_handler, trainer.state.log_history
    callbacks, length = handler.callbacks, len(log)
    metrics, training = trainer.compute_metrics, trainer.model.training
    python, numpy = random.getstate(), np.random.get_state()
    failures: list[Exception] = []
    handler.callbacks = []
    if metrics is not None:
        trainer.compute_metrics = _careful(metrics, failures)
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield failures
    finally:
        handler.callbacks, trainer.compute_metrics = callbacks, metrics
        trainer.model.train(training)
        del log[length:]
        random.setstate(python)
        np.random.set_state(numpy)


def _careful(metrics: Callable[..., Any], failures: list[Exception]) -> Callable[..., Any]:
    """A user's metrics, of too few rows perhaps: what they raise is kept, and told."""

    def careful(*given: Any, **further: Any) -> Any:
        try:
            return metrics(*given, **further)
        except Exception as error:
            failures.append(error)
            warnings.warn(
                f"compute_metrics fails on the first rows ({type(error).__name__}: {error}), and "
                "will be given all of them when training has ended",
                stacklevel=2,
            )
            return {}

    return careful
