"""The numbers behind the figures, shared by the printed ones and the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longtail.report.groups import Group, drop_first_task, paired_runs
from longtail.report.results import Result, TaskScores
from longtail.report.statistics import band
from longtail.runs.files import RunFiles

BINS = 24
HEAT_TASKS, HEAT_ROWS = 120, 120


@dataclass(frozen=True)
class Series:
    """A line with a 95% band (NaN where there is a single seed)."""

    x: np.ndarray
    mean: np.ndarray
    half: np.ndarray


def rp_curve(g: Group, scale: float) -> Series:
    """RP over the tasks seen so far, against their number."""
    x, curves = g.curves
    return Series(x, *band(curves * scale)) if len(curves) else _empty()


def average_curve(g: Group, scale: float) -> Series:
    """RP of the average of the weights, likewise."""
    x, curves = g.average_curves
    return Series(x, *band(curves * scale)) if len(curves) else _empty()


def difference(first: Group, second: Group, scale: float) -> Series:
    """RP with MC minus RP without, paired by seed (the paper's Figures 1 and 2)."""
    rows, common = [], None
    for a, b in paired_runs(first, second):
        if a.scores is None or b.scores is None:
            continue
        x = np.intersect1d(a.scores.after, b.scores.after)
        common = x if common is None else np.intersect1d(common, x)
        rows.append((a.scores, b.scores))
    if common is None or not len(common):
        return _empty()
    common = drop_first_task(common)
    values = [_at(a, common) - _at(b, common) for a, b in rows]
    return Series(common, *band(np.array(values) * scale))


def _at(s: TaskScores, after: np.ndarray) -> np.ndarray:
    return s.curve[np.searchsorted(s.after, after)]


def retention(g: Group, scale: float) -> Series:
    """Score now minus score when learned, against how many tasks ago that was.

    Single runs give every evaluation; a stack keeps only the last, where a task's age is its
    place in the sequence counted from the end.
    """
    if g.labels.get("method") == "multitask":  # learns no task after another
        return _empty()
    rows = [
        _retention(run) for run in g.finite_runs[:20]
    ]  # the band of twenty seeds is narrow enough
    rows = [r for r in rows if r is not None]
    if not rows:
        return _empty()
    oldest = max(int(ages.max(initial=0)) for ages, _, _ in rows)
    edges = _log_edges(oldest)
    values = np.array([_binned(ages, change, weights, edges) for ages, change, weights in rows])
    kept = np.isfinite(values).any(0)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1).clip(1))
    return Series(middle[kept], *band(values[:, kept] * scale))


def _retention(run: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    s = run.scores
    if s is None:
        return None
    weights = np.ones(len(s.own)) if s.test_sizes is None else s.test_sizes
    if run.stack is not None:
        index = np.arange(len(s.own) - 1)
        return len(s.own) - 1 - index, (s.last - s.own)[index], weights[index]
    ages, changes, counts = [], [], []
    for learned, index, values in RunFiles(run.folder).read_evaluations():
        old = index < learned
        if old.any():
            ages.append(learned - index[old])
            changes.append(values[old] - s.own[index[old]])
            counts.append(weights[index[old]])
    if not ages:
        return None
    return np.concatenate(ages), np.concatenate(changes), np.concatenate(counts)


def forgetting_by_size(g: Group, scale: float) -> Series:
    """Best score minus final score (turned round where lower is better), against training size.

    Zero-shot tasks, with no training examples, are at size 0.
    """
    scores = [s for s in g.scores if s.train_sizes is not None]
    if not scores or g.labels.get("method") == "multitask":
        return _empty()
    sign = 1.0 if g.runs[0].higher_is_better else -1.0
    largest = max(int(np.max(s.train_sizes)) for s in scores if s.train_sizes is not None)
    edges = np.concatenate([[0], _log_edges(largest)])
    values = []
    for s in scores:
        assert s.train_sizes is not None
        weights = np.ones(len(s.own)) if s.test_sizes is None else s.test_sizes
        values.append(_binned(s.train_sizes, sign * (s.best - s.last), weights, edges))
    array = np.array(values)
    kept = np.isfinite(array).any(0)
    middle = np.concatenate([[0.0], np.sqrt(edges[1:-1] * (edges[2:] - 1).clip(1))])
    return Series(middle[kept], *band(array[:, kept] * scale))


def heat(run: Result, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(after [R], first task of each bin [C], scores [R, C]); thousands of tasks are binned."""
    s = run.scores
    if s is None or run.stack is not None or len(s.after) < 2:
        return None
    count = len(s.own)
    starts = np.unique(np.linspace(0, count, min(count, HEAT_TASKS), endpoint=False).astype(int))
    keep = set(s.after[_thin(len(s.after), HEAT_ROWS)].tolist())
    after, rows = [], []
    for learned, index, values in RunFiles(run.folder).read_evaluations():
        if learned + 1 in keep and len(index) > min(learned, count - 1):
            total, n = np.zeros(count), np.zeros(count)
            total[index], n[index] = np.nan_to_num(values), np.isfinite(values)
            with np.errstate(invalid="ignore"):
                row = np.add.reduceat(total, starts) / np.add.reduceat(n, starts)
            after.append(learned + 1)
            rows.append(row * scale)
    return (np.array(after), starts, np.array(rows)) if len(rows) > 1 else None


def sizes(g: Group) -> np.ndarray | None:
    """Training sizes of the tasks from the largest to the smallest."""
    found = next((s.train_sizes for s in g.scores if s.train_sizes is not None), None)
    return None if found is None else np.sort(found)[::-1]


def _thin(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _log_edges(largest: int) -> np.ndarray:
    return np.unique(np.geomspace(1, largest + 1, BINS + 1).round().astype(np.int64).clip(1))


def _binned(
    x: np.ndarray, values: np.ndarray, weights: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Weighted mean of the values whose x lies in [edge, next edge), NaN where there is none."""
    ok = np.isfinite(values)
    slot = np.searchsorted(edges, x[ok], side="right") - 1
    count = len(edges) - 1
    slot = slot.clip(0, count - 1)
    total = np.bincount(slot, weights[ok] * values[ok], count)
    weight = np.bincount(slot, weights[ok], count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / weight


def _empty() -> Series:
    return Series(np.array([]), np.array([]), np.array([]))
