"""The runs of a folder as three tables: a row a run, a row a point of its curve, a row a task.

    frames = longtail.report.read("runs/my")
    frames.runs.groupby(["method", "policy"])["RP"].mean()

Which columns of `runs` are labels, by which tables tell runs apart, and which are scores are two
lists, `labels` and `scores`. Scores are in the unit of tables: shares of one are percent.

A line of a table is known by its key, one text made here of all labels of its runs. Labels may be
missing, None or lists, and both 1 and True: columns of pandas would not keep these apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longtail.names import METRICS
from longtail.report import papers
from longtail.report.labels import line_name, row_name
from longtail.report.reading import Entry, Plan, Problems, ScoreKind, TaskScores, note, read_folder
from longtail.report.statistics import rest_of

FIXED = ("run", "folder", "member", "status", "seed", "diverged", "tasks", "score", "sign")
# What a summary says that is no score of a run.
NO_SCORES = (
    "tasks",
    "diverged_at",
    "train_examples",
    "test_examples",
    "moments",
    "policy",
    "optimizer",
    "scores",
)


def read(folder: str | Path) -> Frames:
    """Reads every run and stack below `folder`, at any depth.

    What cannot be read becomes a sentence in `problems`, not an error.

    Raises:
        ValueError: there is no such folder.

    Example:
        >>> frames = read("runs/my")  # doctest: +SKIP
        >>> frames.runs.groupby(["method", "policy"])["RP"].mean()  # doctest: +SKIP
    """
    reading = read_folder(Path(folder))
    facts, numbers = [], []
    for entry, labels in reading.runs:
        facts.append({**_facts(entry), "key": key_of(labels)})
        numbers.append(_numbers(entry, reading.problems))
    stored = pd.DataFrame(facts, columns=[*FIXED, "validated", "key"])
    scores = pd.DataFrame(numbers, index=stored.index, dtype=np.float64)
    scores = scores.drop(columns=list(stored.columns.intersection(scores.columns)))
    return Frames(
        reading.folder,
        reading.plan,
        tuple(reading.problems),
        tuple(entry for entry, _ in reading.runs),
        pd.concat([stored, scores], axis=1),
        tuple(scores.columns),
    )


def _facts(entry: Entry) -> dict[str, Any]:
    return {
        "run": entry.id,
        "folder": str(entry.folder),
        "member": entry.member,
        "status": entry.status,
        "seed": entry.seed,
        "diverged": entry.diverged,
        "tasks": entry.summary.get("tasks"),
        "score": entry.score,
        "sign": 1.0 if entry.kind.higher_is_better else -1.0,
        "validated": "validation" in entry.summary,
    }


def _numbers(entry: Entry, problems: Problems) -> dict[str, float]:
    """Every score of a summary by its path, such as `breakdown.tail.RP`.

    A run that diverged has none: what it scored is the score of class 0, or of nothing.
    """
    numbers: dict[str, float] = {}
    for path, value in _leaves(entry.summary):
        text = isinstance(value, str) and path.rpartition(".")[2] in METRICS
        odd = text or (isinstance(value, str | list) and path in (*METRICS, "validation"))
        if odd and not entry.diverged:
            note(problems, entry.folder, f"{path} of {entry.id} is {value!r}, not a number")
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[path] = math.nan if entry.diverged else float(value)
    return numbers


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if name in NO_SCORES:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def key_of(labels: Mapping[str, Any]) -> str:
    """What a line is known by: its labels without the seed, as one text."""
    own = {name: value for name, value in labels.items() if name != "seed"}
    return json.dumps(own, default=str)


@dataclass(frozen=True)
class Kinds:
    """How scores are read: the one that tables lead with, and others beside it.

    Attributes:
        lead: unit and direction of the leading score.
        others: those of further scores, by the name that stands in a metric's path.
        mixed: whether runs lead with several scores, which are not compared then.
    """

    lead: ScoreKind
    others: Mapping[str, ScoreKind]
    mixed: bool = False

    def of(self, metric: str) -> ScoreKind:
        """How a metric is read: by the score in its path, `top5.RP`, or by the leading one."""
        for part in metric.split(".")[:-1]:
            if part in self.others:
                return self.others[part]
        return self.lead

    def better(self, metric: str) -> bool:
        """Whether larger is better: forgetting (FGT) runs against the score, others with it."""
        return self.of(metric).higher_is_better != (metric.rpartition(".")[2] == "FGT")

    def scale(self, metric: str) -> float:
        """What a score in a file is multiplied by: the only place where shares become percent."""
        return 100.0 if self.of(metric).unit == "percent" else 1.0


def asked_unit(report: Mapping[str, Any]) -> str | None:
    """The unit that a study's [report] gives its table, itself or by the paper's table."""
    return report.get("unit") or (papers.unit(report["paper"]) if report.get("paper") else None)


@dataclass(frozen=True)
class Frames:
    """All runs of a folder, and what the study file said about them.

    Attributes:
        folder: that was read.
        plan: the content of the study's plan.json.
        problems: sentences on what could not be read.
        entries: what the files of each run hold.
        stored: a row a run, in the order of `entries`, with scores as the files have them.
        scores: the columns of `runs` that are scores, by their path in summary.json.
        chosen: settings that [select] found best, by the key of their line.
        not_selected: how many finished runs are left out as others were better.
    """

    folder: Path
    plan: Plan
    problems: tuple[str, ...]
    entries: tuple[Entry, ...]
    stored: pd.DataFrame
    scores: tuple[str, ...]
    chosen: Mapping[str, dict[str, Any]] | None = None
    not_selected: int = 0

    @cached_property
    def kinds(self) -> Kinds:
        """The units and directions of the scores of all finished runs."""
        leading: dict[str, ScoreKind] = {}
        told: dict[str, ScoreKind] = {}
        for place in self.finished.index:
            entry = self.entries[place]
            leading.setdefault(entry.score, entry.kind)
            told |= entry.kinds
        units = list(dict.fromkeys(kind.unit for kind in leading.values()))
        # Of several scores each stays in its own unit.
        unit = asked_unit(self.plan.get("report", {})) or (
            units[0] if len(units) == 1 else " and ".join(leading)
        )
        higher = next(iter(leading.values())).higher_is_better if leading else True
        others = {name: kind for name, kind in told.items() if name not in leading}
        return Kinds(ScoreKind(unit, higher), others, mixed=len(leading) > 1)

    @property
    def finished(self) -> pd.DataFrame:
        """The rows of `stored` that are of finished runs."""
        return self.stored[self.stored["status"].eq("finished")]

    @cached_property
    def labels(self) -> list[str]:
        """The columns of `runs` that are labels."""
        names: dict[str, None] = {}
        for key in dict.fromkeys(self.stored["key"]):
            names |= dict.fromkeys(json.loads(key))
        return list(names)

    @cached_property
    def in_unit(self) -> pd.DataFrame:
        """`stored`, with scores in the unit of tables."""
        scales = pd.Series({name: self.kinds.scale(name) for name in self.scores}, dtype=float)
        scaled = self.stored[list(self.scores)] * scales
        return self.stored.assign(**scaled)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row a run: what it is, its labels, and its scores in the unit of tables.

        Scores of a run that diverged are NaN, and so are those of a run that is not finished.
        """
        told = [json.loads(key) for key in self.stored["key"]]
        labels = pd.DataFrame(told, index=self.stored.index, columns=self.labels, dtype=object)
        facts = self.in_unit[[name for name in FIXED if name not in self.labels]]
        return pd.concat([facts, labels, self.in_unit[list(self.scores)]], axis=1)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A row a run and evaluation: run, tasks learned, and RP over those tasks."""
        scale = self.kinds.scale("RP")

        def points(run: str, scores: TaskScores) -> dict[str, Any]:
            return {"run": run, "tasks": scores.after, "RP": scores.curve * scale}

        return self._stacked(points, ("run", "tasks", "RP"))

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """A row a run and task: its sizes, and its score when learned, at best and at the end."""
        scale = self.kinds.scale("RP")

        def rows(run: str, scores: TaskScores) -> dict[str, Any]:
            sizes = {"train_size": scores.train_sizes, "test_size": scores.test_sizes}
            places = np.arange(1, len(scores.own) + 1)
            table = {"run": run, "task": places, "name": np.array(scores.names, object), **sizes}
            learned, best, last = scores.own * scale, scores.best * scale, scores.last * scale
            return {**table, "learned": learned, "best": best, "last": last}

        columns = ("run", "task", "name", "train_size", "test_size", "learned", "best", "last")
        return self._stacked(rows, columns)

    def _stacked(self, table: Any, columns: Sequence[str]) -> pd.DataFrame:
        parts = []
        for place in self.stored.index:
            entry = self.entries[place]
            if entry.scores is not None:
                parts.append(pd.DataFrame(table(entry.id, entry.scores)))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    @cached_property
    def lines(self) -> list[Line]:
        """Finished runs by their labels, in order of first appearance."""
        finished = self.in_unit[self.in_unit["status"].eq("finished")]
        first: dict[str, str] = {}  # whatever the order of labels is, the first key is the line's
        called = {}
        for key in dict.fromkeys(finished["key"]):
            called[key] = first.setdefault(rest_of(json.loads(key), ()), key)
        lines = []
        for key, runs in finished.groupby(finished["key"].map(called), sort=False):
            by_seed = runs.sort_values("seed", kind="stable")
            entries = tuple(self.entries[place] for place in by_seed.index)
            chosen = (self.chosen or {}).get(str(key))
            lines.append(Line(json.loads(str(key)), by_seed, entries, chosen))
        return lines

    @property
    def counted(self) -> int:
        """How many runs these are, where one may stand twice: by its weights and their average."""
        return self.stored["run"].nunique()

    @property
    def planned(self) -> int:
        """How many runs there are to be, as far as anybody knows."""
        return max(len(self.plan.get("runs", [])), self.counted + self.not_selected)

    @property
    def state(self) -> str:
        """How far the study is, as a sentence."""
        if not self.planned:
            return f"No runs in {self.folder.name or self.folder}."
        shown = self.finished["run"].nunique()
        text = f"{shown + self.not_selected} of {self.planned} runs finished"
        for word in ("failed", "damaged"):
            some = int(self.stored["status"].eq(word).sum())
            text += f", {some} {word}" if some else ""
        return text + (f"; {shown} are selected and shown." if self.not_selected else ".")

    def with_report(self, **settings: Any) -> Frames:
        """The same runs with further settings of [report], those that are None left out."""
        given = {name: value for name, value in settings.items() if value is not None}
        return replace(self, plan={**self.plan, "report": {**self.plan.get("report", {}), **given}})

    def with_problems(self, *sentences: str) -> Frames:
        return replace(self, problems=(*self.problems, *sentences))


@dataclass(frozen=True)
class Line:
    """Finished runs that differ only in their seed: a row of a table, a line of a figure.

    Attributes:
        labels: that they share.
        runs: their rows of `Frames.in_unit`, in the order of seeds.
        entries: what their files hold, in the same order.
        chosen: settings that [select] found best, which are no labels then.
    """

    labels: dict[str, Any]
    runs: pd.DataFrame
    entries: tuple[Entry, ...]
    chosen: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Short, for legends: the method, its policy, and whatever else tells it apart."""
        return row_name(self.labels)

    @property
    def short(self) -> str:
        """Method and policy, the part of the name that a colour stands for."""
        return line_name(self.labels)

    @cached_property
    def finite(self) -> np.ndarray:
        """Of which seeds means, curves and bands are made: those that did not diverge."""
        return np.isfinite(self.values("RP"))

    @property
    def lost(self) -> int:
        """How many seeds diverged: marked wherever the line is shown, part of no mean."""
        return int((~self.finite).sum())

    @property
    def mark(self) -> str:
        """What stands behind the name where seeds were left out."""
        return f" † ({self.lost} of {len(self.entries)} diverged)" if self.lost else ""

    @property
    def finite_entries(self) -> list[Entry]:
        return [entry for entry, ok in zip(self.entries, self.finite, strict=True) if ok]

    def values(self, metric: str) -> np.ndarray:
        """One number a seed. Multi-task training learns no task after another: it has RP alone."""
        alone = metric.rpartition(".")[2] in ("LP", "FGT", "BWT")
        if metric not in self.runs or (alone and self.labels.get("method") == "multitask"):
            return np.full(len(self.runs), np.nan)
        return self.runs[metric].to_numpy(np.float64)

    def mean(self, metric: str) -> float | None:
        """The mean over the seeds that have a value."""
        values = self.values(metric)
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else None

    @cached_property
    def scores(self) -> list[TaskScores]:
        """By task, of the seeds that did not diverge."""
        return [entry.scores for entry in self.finite_entries if entry.scores is not None]

    @cached_property
    def evaluated(self) -> list[Entry]:
        """The seeds that did not diverge and have an RP along the way, as in `curves`."""
        entries = []
        for entry in self.finite_entries:
            if entry.scores is not None and len(entry.scores.after):
                entries.append(entry)
        return entries

    @cached_property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """(number of tasks [E], RP [seeds, E]), as stored, at the evaluations all seeds have."""
        points = []
        for entry in self.evaluated:
            assert entry.scores is not None
            points.append((entry.scores.after, entry.scores.curve))
        return common_points(points)

    @cached_property
    def average_curves(self) -> tuple[np.ndarray, np.ndarray]:
        """As `curves`, of the average of the weights, where runs have kept one."""
        points = [entry.average_curve for entry in self.finite_entries]
        return common_points([point for point in points if point is not None])


def common_points(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The points [E] that all curves have, and their values there [n, E]."""
    if not curves:
        return np.array([], np.int64), np.zeros((0, 0))
    common = curves[0][0]
    for after, _ in curves[1:]:
        common = np.intersect1d(common, after)
    common = drop_first_task(common)
    return common, np.array([values[np.searchsorted(after, common)] for after, values in curves])


def drop_first_task(after: np.ndarray) -> np.ndarray:
    """Evaluations without the one after the first task, unless every task is followed by one.

    What was learned so far is then that task alone, which says nothing about a sequence.
    """
    sparse = len(after) > 1 and after[0] == 1 and after[1] > 2
    return after[1:] if sparse else after
