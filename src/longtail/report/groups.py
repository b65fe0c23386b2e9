"""Runs that differ only in their seed, taken together: a row of a table, a curve of a figure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from longtail.names import METRICS, POLICY_NAMES
from longtail.report.labels import method_names
from longtail.report.results import Result, TaskScores

# Labels of an ablation's row that follow from its policy, so that its name says them all.
POLICY_LABELS = ("row", "first_moment", "second_moment", "lr_adjust")


def measured(key: str) -> bool:
    """Whether a row's key is a number of it (RP, RP_se, late.RP), not part of its name (lr)."""
    return "." in key or key.partition("_")[0] in (*METRICS, "validation")


@dataclass
class Group:
    labels: dict[str, Any]
    runs: list[Result]  # finished, in the order of their seeds

    @property
    def name(self) -> str:
        """Short, for legends: the method, its policy, and whatever else tells it apart."""
        rest = [
            f"{k} {v}"
            for k, v in self.labels.items()
            if k not in ("method", "policy", *POLICY_LABELS)
        ]
        return ", ".join([self.line, *rest])

    @property
    def line(self) -> str:
        """Method and policy, the part of the name that a colour stands for."""
        method = display("method", self.labels.get("method", ""))
        if "row" in self.labels:  # an ablation of one method: its name would be on every line
            return named_row(self.labels)
        if self.labels.get("method") == "multitask":
            return method
        policy = display("policy", self.labels.get("policy", ""))
        return f"{method} {policy}".strip()

    @cached_property
    def diverged(self) -> list[Result]:
        """The seeds that ended in NaN: marked wherever the group is shown, part of no mean."""
        return [run for run in self.runs if not math.isfinite(run.metric("RP"))]

    @cached_property
    def finite_runs(self) -> list[Result]:
        """The seeds that did not diverge, of which means, curves and bands are made."""
        return [run for run in self.runs if math.isfinite(run.metric("RP"))]

    @property
    def mark(self) -> str:
        """What stands behind the name where seeds were left out, such as " † (1 of 3 diverged)"."""
        count = len(self.diverged)
        return f" † ({count} of {len(self.runs)} diverged)" if count else ""

    def values(self, metric: str) -> np.ndarray:
        """One number a seed. Multi-task training learns no task after another: it has RP alone."""
        alone = metric.rpartition(".")[2] in ("LP", "FGT", "BWT")
        if alone and self.labels.get("method") == "multitask":
            return np.full(len(self.runs), np.nan)
        return np.array([run.metric(metric) for run in self.runs])

    @cached_property
    def scores(self) -> list[TaskScores]:
        """Of the seeds that did not diverge."""
        return [run.scores for run in self.finite_runs if run.scores is not None]

    @cached_property
    def evaluated(self) -> list[Result]:
        """The seeds that did not diverge and have an RP along the way, as in `curves`."""
        return [r for r in self.finite_runs if r.scores is not None and len(r.scores.after)]

    @cached_property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """(number of tasks [E], RP [seeds, E]) at the evaluations that all seeds have."""
        found = [run.scores for run in self.evaluated if run.scores is not None]
        if not found:
            return np.array([], np.int64), np.zeros((0, 0))
        common = found[0].after
        for s in found[1:]:
            common = np.intersect1d(common, s.after)
        common = drop_first_task(common)
        rows = [s.curve[np.searchsorted(s.after, common)] for s in found]
        return common, np.array(rows)

    @cached_property
    def average_curves(self) -> tuple[np.ndarray, np.ndarray]:
        """As `curves`, of the average of the weights, where runs have kept one."""
        found = [c for run in self.finite_runs if (c := _average_curve(run)) is not None]
        if not found:
            return np.array([], np.int64), np.zeros((0, 0))
        common = found[0][0]
        for tasks, _ in found[1:]:
            common = np.intersect1d(common, tasks)
        common = drop_first_task(common)
        return common, np.array([rp[np.searchsorted(tasks, common)] for tasks, rp in found])

    @cached_property
    def tasks(self) -> TaskScores | None:
        """Mean over seeds by task, matched by name; the first seed's alone where names differ."""
        if not self.scores:
            return None
        first = self.scores[0]
        rows = [first]
        if len(self.scores) > 1:
            wanted = {name: i for i, name in enumerate(first.names)}
            for s in self.scores[1:]:
                if s.names == first.names:
                    rows.append(s)
                elif set(s.names) == wanted.keys() and len(wanted) == len(s.names):
                    rows.append(_reorder(s, np.argsort([wanted[name] for name in s.names])))
        mean = {
            name: np.mean([getattr(s, name) for s in rows], axis=0)
            for name in ("own", "best", "last")
        }
        after, curves = self.curves
        curve = curves.mean(0) if len(curves) else np.array([])
        sizes = {
            name: _mean_or_none([getattr(s, name) for s in rows])
            for name in ("train_sizes", "test_sizes")
        }
        return TaskScores(first.names, **sizes, **mean, after=after, curve=curve)


def group(runs: list[Result]) -> list[Group]:
    """Finished runs by their labels, in order of first appearance."""
    found: dict[str, Group] = {}
    for run in runs:
        if run.status == "finished":
            labels = {k: v for k, v in run.labels.items() if k != "seed"}
            key = json.dumps(labels, sort_keys=True, default=str)
            found.setdefault(key, Group(labels, [])).runs.append(run)
    for g in found.values():
        g.runs.sort(key=lambda run: run.seed)
    return list(found.values())


def pairs(
    groups: list[Group], first: str = "continual", second: str = "new"
) -> list[tuple[Group, Group]]:
    """Groups that differ only in their policy: (the first, the second)."""
    policy_bound = ("policy", *POLICY_LABELS)

    def rest(g: Group) -> str:
        kept = {k: v for k, v in g.labels.items() if k not in policy_bound}
        return json.dumps(kept, sort_keys=True, default=str)

    others = {rest(g): g for g in groups if is_policy(g, second)}
    return [(g, others[rest(g)]) for g in groups if is_policy(g, first) and rest(g) in others]


def paired_runs(first: Group, second: Group) -> list[tuple[Result, Result]]:
    """Runs of the two with the same seed, neither of which diverged."""
    by_seed = {run.seed: run for run in second.finite_runs}
    return [(run, by_seed[run.seed]) for run in first.finite_runs if run.seed in by_seed]


def named_row(labels: dict[str, Any]) -> str:
    """A row of an ablation as a reader sees it: `Continual Adam (row 7)`.

    >>> named_row({"policy": "new", "row": 2})
    'AdamW new (row 2)'
    """
    name = display("policy", labels.get("policy", ""))
    return f"{name} (row {labels['row']})".strip()


def display(key: str, value: Any) -> str:
    """A label as a reader sees it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    names = {"method": method_names(), "policy": POLICY_NAMES}.get(key, {})
    text = "-" if value is None else str(value)  # a list too, such as betas
    return names.get(text, text)


def is_policy(g: Group, policy: str) -> bool:
    """Whether a group has the policy of this name, or is the row of this number."""
    return policy in (str(g.labels.get("policy")), str(g.labels.get("row")))


def _reorder(s: TaskScores, order: np.ndarray) -> TaskScores:
    def take(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[order]

    return TaskScores(
        [s.names[i] for i in order],
        take(s.train_sizes),
        take(s.test_sizes),
        s.own[order],
        s.best[order],
        s.last[order],
        s.after,
        s.curve,
    )


def _average_curve(run: Result) -> tuple[np.ndarray, np.ndarray] | None:
    """(number of tasks [E], RP of the average [E]) as a run's summary has them."""
    average = run.summary.get("average")
    curve = average.get("curve") if isinstance(average, dict) else None
    if not isinstance(curve, dict):
        return None
    tasks, rp = curve.get("tasks"), curve.get("RP")
    if not isinstance(tasks, list) or not isinstance(rp, list) or len(tasks) != len(rp):
        return None
    return np.array(tasks, np.int64), np.array(rp, np.float64)


def _mean_or_none(values: list[np.ndarray | None]) -> np.ndarray | None:
    present = [v for v in values if v is not None]
    return np.mean(present, axis=0) if len(present) == len(values) else None


def drop_first_task(after: np.ndarray) -> np.ndarray:
    """Evaluations without the one after the first task, unless every task is followed by one.

    What was learned so far is then that task alone, which says nothing about a sequence.
    """
    sparse = len(after) > 1 and after[0] == 1 and after[1] > 2
    return after[1:] if sparse else after
