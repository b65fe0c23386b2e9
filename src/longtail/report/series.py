"""The numbers behind the figures: lines with bands, of the seeds that share a row."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from longtail.report.frame import Line, drop_first_task
from longtail.report.reading import Entry
from longtail.report.statistics import band
from longtail.runs.files import RunFiles

BINS = 24
MOST_POINTS = 600  # of a line: more than a screen has pixels for
MOST_SEEDS = 20  # whose tasks are binned: the band of twenty is narrow enough


@dataclass(frozen=True)
class Series:
    """A line with a 95% band (NaN where there is a single seed)."""

    x: np.ndarray
    mean: np.ndarray
    half: np.ndarray

    @property
    def drawn(self) -> bool:
        return bool(np.isfinite(self.mean).any())


EMPTY = Series(np.array([]), np.array([]), np.array([]))


def rp_curve(line: Line, scale: float) -> Series:
    """RP over the tasks seen so far, against their number."""
    x, curves = line.curves
    return Series(x, *band(curves * scale)) if len(curves) else EMPTY


def difference(first: Line, second: Line, scale: float) -> Series:
    """RP with MC minus RP without, paired by seed (the paper's Figures 1 and 2)."""
    theirs = {entry.seed: entry for entry in second.finite_entries}
    rows, common = [], None
    for entry in first.finite_entries:
        other = theirs.get(entry.seed)
        if other is None or entry.scores is None or other.scores is None:
            continue
        x = np.intersect1d(entry.scores.after, other.scores.after)
        common = x if common is None else np.intersect1d(common, x)
        rows.append((entry.scores, other.scores))
    if common is None or not len(common):
        return EMPTY
    common = drop_first_task(common)
    values = np.empty((len(rows), len(common)))
    for place, (ours, other) in enumerate(rows):
        values[place] = ours.curve[np.searchsorted(ours.after, common)]
        values[place] -= other.curve[np.searchsorted(other.after, common)]
    return Series(common, *band(values * scale))


def retention(line: Line, scale: float) -> Series:
    """Score now minus score when learned, against how many tasks ago that was.

    Single runs give every evaluation; a stack keeps only the last, where a task's age is its
    place in the sequence counted from the end.
    """
    if line.labels.get("method") == "multitask":  # learns no task after another
        return EMPTY
    rows = [_retention(entry) for entry in line.finite_entries[:MOST_SEEDS]]
    rows = [row for row in rows if row is not None]
    if not rows:
        return EMPTY
    edges = _log_edges(max(int(ages.max(initial=0)) for ages, _, _ in rows))
    values = np.array([_binned(*row, edges) for row in rows])
    return _over_bins(values, edges, scale)


def _retention(entry: Entry) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The age, the change and the weight of every score of a task that was learned earlier."""
    scores = entry.scores
    if scores is None:
        return None
    count = len(scores.own)
    weights = np.ones(count) if scores.test_sizes is None else scores.test_sizes
    if entry.stack is not None:
        earlier = slice(0, count - 1)
        changes = (scores.last - scores.own)[earlier]
        return np.arange(count - 1, 0, -1), changes, weights[earlier]
    ages, changes, counts = [], [], []
    for learned, index, values in RunFiles(entry.folder).read_evaluations():
        old = index < learned
        if old.any():
            ages.append(learned - index[old])
            changes.append(values[old] - scores.own[index[old]])
            counts.append(weights[index[old]])
    if not ages:
        return None
    return np.concatenate(ages), np.concatenate(changes), np.concatenate(counts)


def forgetting_by_size(line: Line, scale: float) -> Series:
    """Best score minus final score (turned round where lower is better), against training size.

    Zero-shot tasks, with no training examples, are at size 0.
    """
    scores = [one for one in line.scores if one.train_sizes is not None]
    if not scores or line.labels.get("method") == "multitask":
        return EMPTY
    sign = 1.0 if line.entries[0].kind.higher_is_better else -1.0
    sizes = [np.asarray(one.train_sizes) for one in scores]
    edges = np.concatenate([[0], _log_edges(int(max(map(np.max, sizes))))])
    values = np.empty((len(scores), len(edges) - 1))
    for place, (one, own) in enumerate(zip(scores, sizes, strict=True)):
        weights = np.ones(len(one.own)) if one.test_sizes is None else one.test_sizes
        values[place] = _binned(own, sign * (one.best - one.last), weights, edges)
    return _over_bins(values, edges, scale)


def _over_bins(values: np.ndarray, edges: np.ndarray, scale: float) -> Series:
    """The bins that have a value, each at its middle on a logarithmic axis; from 0 on at 0."""
    kept = np.isfinite(values).any(0)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1).clip(1))
    return Series(middle[kept], *band(values[:, kept] * scale))


def _log_edges(largest: int) -> np.ndarray:
    return np.unique(np.geomspace(1, largest + 1, BINS + 1).round().astype(np.int64).clip(1))


def _binned(
    x: np.ndarray, values: np.ndarray, weights: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """Weighted mean of the values whose x lies in [edge, next edge), NaN where there is none."""
    ok = np.isfinite(values)
    count = len(edges) - 1
    slot = (np.searchsorted(edges, x[ok], side="right") - 1).clip(0, count - 1)
    total = np.bincount(slot, weights[ok] * values[ok], count)
    weight = np.bincount(slot, weights[ok], count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / weight


def thinned(series: Series, most: int = MOST_POINTS) -> Series:
    """At most so many points: both ends, and of every stretch its lowest and its highest point."""
    count = len(series.x)
    if count <= most:
        return series
    kept = {0, count - 1}
    bounds = np.linspace(0, count, (most - 2) // 2 + 1).astype(int)
    heights = np.nan_to_num(series.mean)
    for start, stop in itertools.pairwise(bounds):
        kept |= {start + int(heights[start:stop].argmin())}
        kept |= {start + int(heights[start:stop].argmax())}
    places = sorted(kept)
    return Series(series.x[places], series.mean[places], series.half[places])


def divergences(line: Line, series: Series) -> list[tuple[float, float]]:
    """Where to mark the seeds that diverged: tasks learned by then, and the line's height there."""
    known = np.isfinite(series.mean)
    if not line.lost or not known.any():
        return []
    x, mean = series.x[known], series.mean[known]
    marks = []
    for entry, finite in zip(line.entries, line.finite, strict=True):
        if not finite:
            at = entry.summary.get("diverged_at")
            tasks = float(x[-1]) if at is None else min(float(at) + 1, float(x[-1]))
            marks.append((tasks, float(np.interp(tasks, x, mean))))
    return marks
