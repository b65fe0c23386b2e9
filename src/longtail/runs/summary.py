"""What a finished run says of itself: the metrics in summary.json, and a stack's in runs.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longtail.metrics import ScoreMatrix, breakdown, curve, summary
from longtail.names import METRICS
from longtail.runs.build import Stack
from longtail.runs.config import RunConfig, own_name, policy_fields, policy_named
from longtail.runs.progress import finite
from longtail.tasks import Evaluator
from longtail.training import Run
from longtail.training.averaging import AVERAGE
from longtail.training.evaluation import evaluate_validation

FEW_TASKS = 50  # up to so many have their own validation scores in the summary


def run_summary(run: Run, config: RunConfig) -> dict[str, Any]:
    """The content of summary.json."""
    found = _result(finite(_metrics(run)), run, config) | _diverged(int(run.divergence.first))
    bad = run.divergence.bad_losses
    return found | ({"nonfinite_losses": bad} if bad else {})


def _diverged(first: int) -> dict[str, int]:
    """Nothing for a healthy run, whose summary is as it always was."""
    return {} if first < 0 else {"diverged_at": first}


def _metrics(run: Run) -> dict[str, Any]:
    """What was measured: numbers, or arrays [P, S] of a stack."""
    matrices = run.matrices
    others = [score.name for score in run.scores[1:]]
    own = {name: summary(matrices[name]) for name in others}
    found = _of_weights(run, run.matrix, run.evaluate or Evaluator(), own)
    if run.average is not None:
        evaluator = run.evaluate_average or Evaluator()
        averaged = {name: summary(matrices[f"{AVERAGE}_{name}"]) for name in others}
        with run.average.applied():
            told = _of_weights(run, matrices[AVERAGE], evaluator, averaged)
            found[AVERAGE] = {**told, **_curve(run)}
    return found


def _of_weights(
    run: Run, matrix: ScoreMatrix, evaluator: Evaluator, others: Mapping[str, Any]
) -> dict[str, Any]:
    """What was measured of the weights that the model has now."""
    found = {**summary(matrix), "breakdown": breakdown(matrix, run.sequence.train_sizes), **others}
    found |= evaluator.summary(matrix, run.sequence)
    with run.evaluating():
        validation = evaluate_validation(run.scored, run.sequence, evaluator)
    if validation is None:
        return found
    found["validation"] = validation.mean
    if 1 < len(validation.tasks) <= FEW_TASKS:  # so that one can tell which task moved a choice
        names = run.sequence.names
        found["validation_by_task"] = {names[i]: x for i, x in validation.tasks.items()}
    return found


def _curve(run: Run) -> dict[str, Any]:
    """RP of the average where all tasks so far were evaluated, against their number."""
    after, points = curve(run.matrices[AVERAGE])
    told = points if points.ndim > 1 else points.tolist()
    return {"curve": {"tasks": (after + 1).tolist(), "RP": told}}


def _result(
    metrics: Mapping[str, Any], run: Run, config: RunConfig, moments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What summary.json says, where ``metrics`` are finite numbers or None."""
    called = own_name(config.method)
    return {
        **metrics,
        **({"method_name": called} if called != config.method else {}),
        "tasks": len(run.sequence),
        "policy": _policy_name(config),
        "moments": finite(config.as_dict()["moments"] if moments is None else moments),
        "score": run.scores[0].name,
        "scores": {
            score.name: {"unit": score.unit, "higher_is_better": score.higher_is_better}
            for score in run.scores
        },
    }


def _policy_name(config: RunConfig) -> str:
    """The policy's name, marked where its settings are not those that go by this name."""
    known = policy_named(config.policy, config.chosen)
    fields = policy_fields(known, config.chosen)
    same = all(getattr(config.moments, k) == getattr(known, k) for k in fields)
    return config.policy + ("" if same else " (changed)")


def stack_summaries(stack: Stack) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The content of runs.json, and the arrays of scores.npz."""
    matrix, sequence = stack.run.matrix, stack.run.sequence
    metrics = _listed(_metrics(stack.run))
    after, points = curve(matrix)
    diverged = stack.run.divergence.first.tolist()
    entries = []
    for config, place in zip(stack.configs, stack.places, strict=True):
        told = config.as_dict()
        found = _result(_at(metrics, place), stack.run, config, told["moments"])
        found |= _diverged(diverged[place[0]][place[1]])
        entries.append({"id": config.id, "config": told, "summary": found})
    rows, seeds = (list(numbers) for numbers in zip(*stack.places, strict=True))
    arrays = {**_by_run(matrix, rows, seeds), "curve": np.ascontiguousarray(points[rows, seeds])}
    for name, other in stack.run.matrices.items():
        if name != stack.run.recorder.main:
            of_other = _by_run(other, rows, seeds)
            arrays |= {f"{name}.{key}": values for key, values in of_other.items()}
    arrays |= {"after": after, "test_sizes": sequence.test_sizes}
    return entries, arrays | {"train_sizes": sequence.train_sizes}


def _by_run(matrix: ScoreMatrix, rows: list[int], seeds: list[int]) -> dict[str, np.ndarray]:
    """What a stack keeps of a score: when learned, best since and last, [runs, T] each."""
    kept = {"own": matrix.own, "best": matrix.best, "last": matrix.last}
    return {name: np.ascontiguousarray(values[rows, seeds]) for name, values in kept.items()}


def mean_summary(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of several runs in one: their means, and standard errors of two or more.

    Runs that diverged count in none of them.
    """
    finite_runs = [s for s in summaries if s.get("diverged_at") is None]
    found: dict[str, Any] = {"runs": len(finite_runs)}
    for name in METRICS:
        values = np.array([s[name] for s in finite_runs if s.get(name) is not None])
        found[name] = float(values.mean()) if len(values) else None
        if len(values) > 1:
            found[f"{name}_se"] = float(values.std(ddof=1) / len(values) ** 0.5)
    return found


def _listed(values: Any) -> Any:
    """A nest of arrays as lists of finite numbers or None: thousands of runs pick theirs."""
    if isinstance(values, Mapping):
        return {str(key): _listed(value) for key, value in values.items()}
    if isinstance(values, np.ndarray):
        return _Listed(finite(values.astype(np.float64).tolist()))
    return finite(values)


class _Listed(list[Any]):
    """An array [P, S] as lists; its type tells it from a list that holds for all replicas."""


def _at(values: Any, place: tuple[int, int]) -> Any:
    """One replica's share of what `_listed` gives; a plain number holds for all replicas."""
    if type(values) is _Listed:
        return values[place[0]][place[1]]
    if type(values) is dict:
        return {key: _at(value, place) for key, value in values.items()}
    return values
