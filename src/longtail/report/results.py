"""Read any folder of runs and stacks into one form in memory, from which reports are made.

A folder may hold single runs (`config.toml`, `scores.jsonl`, `summary.json`), stacks of runs
(`runs.json`, `scores.npz`) and a study's `plan.json`, at any depth. What cannot be read becomes a
sentence in `Results.problems`, not an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from longtail.names import METRICS
from longtail.report.labelling import AVERAGES, BESIDE, average_labels, label
from longtail.report.reading import (
    names_of,
    note,
    read_error,
    read_json,
    read_plan,
    why,
)
from longtail.runs.files import RunFiles, StackFiles, StudyFiles
from longtail.runs.integrity import damage, identity, weights_damage, wrong_score

if TYPE_CHECKING:
    import pandas

SKIPPED = {
    RunFiles.SNAPSHOTS,
    "figures",
    "tensorboard",
    "wandb",
    "mlruns",
    "logs",
    ".git",
    "__pycache__",
}
# What of a configuration a report reads: a name, or a table of settings.
TYPES = [(name, str, "name") for name in ("benchmark", "method", "policy", "optimizer")]
TYPES += [(name, dict, "table") for name in ("data", "train", "methods", "moments")]


@dataclass(frozen=True)
class TaskScores:
    """Scores of one run by task: when learned (own, a_ii), best since, last; and RP over time."""

    names: list[str]
    train_sizes: np.ndarray | None
    test_sizes: np.ndarray | None
    own: np.ndarray  # [T]
    best: np.ndarray  # [T]
    last: np.ndarray  # [T]
    after: np.ndarray  # [E] number of tasks learned at each full evaluation
    curve: np.ndarray  # [E] RP over those tasks


class ScoreKind(NamedTuple):
    """How a score is read: "percent" is of shares, which tables multiply by 100."""

    unit: str
    higher_is_better: bool


@dataclass
class Result:
    """One run, finished or not."""

    id: str
    folder: Path
    config: dict[str, Any]
    status: str  # "finished" | "unfinished" | "failed" | "damaged"
    summary: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    member: int | None = None  # its row in the scores.npz of a stack
    labels: dict[str, Any] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)  # settings that [select] found best
    stack: _Stack | None = None
    problems: list[str] = field(default_factory=list)  # shared with `Results`

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def diverged(self) -> bool:
        """Whether its weights or losses became infinite or NaN on the way."""
        return self.summary.get("diverged_at") is not None

    @property
    def score_kinds(self) -> dict[str, ScoreKind]:
        """What its summary says of its scores, the one that tables lead with first."""
        told = self.summary.get("scores")
        kinds: dict[str, ScoreKind] = {}
        for name, kind in told.items() if isinstance(told, dict) else ():
            if isinstance(kind, dict):
                higher = bool(kind.get("higher_is_better", True))
                kinds[name] = ScoreKind(str(kind.get("unit", name)), higher)
        return kinds

    @property
    def score(self) -> str:
        """The name of the score that tables lead with."""
        return str(self.summary.get("score", ""))

    @property
    def unit(self) -> str:
        kind = self.score_kinds.get(self.score)
        return self.score if kind is None else kind.unit

    @property
    def higher_is_better(self) -> bool:
        kind = self.score_kinds.get(self.score)
        return kind is None or kind.higher_is_better

    def metric(self, name: str) -> float:
        """RP, LP, FGT, BWT, or a path into summary.json such as `breakdown.tail.RP`."""
        if self.diverged:  # what it scored is the score of class 0, or of nothing
            return float("nan")
        value: Any = self.summary
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        try:
            return _number(value)
        except (TypeError, ValueError):
            note(self.problems, self.folder, f"{name} of {self.id} is {value!r}, not a number")
            return float("nan")

    def take_average(self) -> None:
        """The average of its weights, where it kept one, is scored in place of the weights.

        Scores by task are of the weights, and it has none then.
        """
        average = self.summary.get("average")
        if isinstance(average, dict):
            self.summary = {**self.summary, **average}
            self.__dict__["scores"] = None

    def of_average(self) -> Result | None:
        """The same run as its average of the weights scores it, under a name of its own."""
        kind = self.config.get("train", {}).get("average")
        if kind not in AVERAGES or not isinstance(self.summary.get("average"), dict):
            return None
        found = replace(self, labels=average_labels(self.labels, kind))
        found.take_average()
        return found

    def damage(self) -> str | None:
        """What is wrong with the files of a finished run, as a sentence."""
        wrong = self.stack.damage if self.stack else damage(RunFiles(self.folder), weights=False)
        if wrong or self.diverged:
            return wrong
        if self.scores is None:
            files = StackFiles(self.folder) if self.stack else RunFiles(self.folder)
            lost = files.tasks.exists() and not files.scores.exists()
            # Somebody may have kept the summaries alone; what cannot be read was said already.
            return "it has finished, but its scores are missing" if lost else None
        return wrong_score(self.summary, self.scores.last, self.scores.test_sizes)

    @cached_property
    def scores(self) -> TaskScores | None:
        """None where the run has not been evaluated or its file cannot be read."""
        try:
            return self.stack.scores(self.member or 0) if self.stack else self._replay()
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged file may make its reader raise anything
            files = StackFiles(self.folder) if self.stack else RunFiles(self.folder)
            note(self.problems, files.scores, f"cannot be read: {why(error)}")
            return None

    def _replay(self) -> TaskScores | None:
        files = RunFiles(self.folder)
        rows = list(files.read_evaluations())
        if not rows:
            return None
        tasks = read_json(files.tasks, dict, self.problems)
        count = 1 + max(int(index.max()) for _, index, _ in rows if len(index))
        names = names_of(tasks, files, self.problems)
        count = max(count, len(names))
        train_sizes, test_sizes = (
            _sizes(tasks.get(name), count, name, files.tasks, self.problems)
            for name in ("train_sizes", "test_sizes")
        )
        own, best, last = (np.full(count, np.nan) for _ in range(3))
        after, curve = [], []
        better = np.fmax if self.higher_is_better else np.fmin
        for learned, index, values in rows:
            mine = index == learned
            own[index[mine]] = values[mine]
            best[index] = better(best[index], values)
            last[index] = values
            # every task so far, so this is a point of the RP curve
            if len(index) > min(learned, count - 1):
                weights = np.ones(len(index)) if test_sizes is None else test_sizes[index]
                some = weights > 0  # a task without test examples has no score
                if some.any():
                    after.append(learned + 1)
                    curve.append(float(np.average(values[some], weights=weights[some])))
        return TaskScores(
            names if len(names) == count else [f"task {i + 1}" for i in range(count)],
            train_sizes,
            test_sizes,
            own,
            best,
            last,
            np.array(after, dtype=np.int64),
            np.array(curve),
        )


class _Stack:
    """The scores.npz that the runs of one stack share, read once and only when asked for."""

    def __init__(self, files: StackFiles, problems: list[str]) -> None:
        self.files, self.problems = files, problems

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.files.read_scores()

    @cached_property
    def damage(self) -> str | None:
        return damage(self.files)

    @cached_property
    def names(self) -> list[str]:
        tasks = read_json(self.files.tasks, dict, self.problems)
        return names_of(tasks, self.files, self.problems)

    def _sizes(self, name: str, member: int, count: int) -> np.ndarray | None:
        sizes = self.arrays.get(name)
        if sizes is not None and sizes.ndim == 2:  # the tasks of each member are its own
            sizes = sizes[member % len(sizes)]
        return _sizes(sizes, count, name, self.files.scores, self.problems)

    def scores(self, member: int) -> TaskScores:
        a = self.arrays
        count = a["own"].shape[-1]
        return TaskScores(
            self.names if len(self.names) == count else [f"task {i + 1}" for i in range(count)],
            self._sizes("train_sizes", member, count),
            self._sizes("test_sizes", member, count),
            a["own"][member],
            a["best"][member],
            a["last"][member],
            a["after"] + 1,
            a["curve"][member],
        )


@dataclass
class Results:
    """All runs of a folder, and what the study file said about them."""

    folder: Path
    runs: list[Result]
    plan: dict[str, Any]
    problems: list[str]
    trusted: frozenset[str] = frozenset()  # checks that a person named, not only the folder
    not_selected: int = 0  # finished runs that are no longer in `runs`, see `report.selection`

    @property
    def asked_checks(self) -> list[str]:
        """The checks that the folder's plan names, whoever wrote it."""
        asked = self.plan.get("report", {}).get("checks", [])
        return [name for name in asked if isinstance(name, str)] if isinstance(asked, list) else []

    @property
    def finished(self) -> list[Result]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def state(self) -> str:
        """How far the study is, as a sentence."""
        shown, failed = count(self.finished), sum(run.status == "failed" for run in self.runs)
        done = shown + self.not_selected
        planned = max(len(self.plan.get("runs", [])), count(self.runs) + self.not_selected)
        if not planned:
            return f"No runs in {self.folder.name or self.folder}."
        text = f"{done} of {planned} runs finished"
        text += f", {failed} failed" if failed else ""
        damaged = sum(run.status == "damaged" for run in self.runs)
        text += f", {damaged} damaged" if damaged else ""
        return text + (f"; {shown} are selected and shown." if self.not_selected else ".")

    def to_pandas(self) -> pandas.DataFrame:
        """One row a run: its id, labels, seed and state, and the four metrics of finished ones.

        Metrics are as in summary.json, NaN for a run that diverged. `longtail report --parquet` has
        every score.

        Example:
            >>> frame = load("runs/my").to_pandas()  # doctest: +SKIP
            >>> frame.groupby(["method", "policy"])["RP"].mean()  # doctest: +SKIP
        """
        try:
            import pandas
        except ImportError:
            raise ValueError("A frame needs pandas: pip install 'longtail[pandas]'") from None
        rows = [
            {"id": run.id, **run.labels, "seed": run.seed, "status": run.status}
            | {name: run.metric(name) for name in METRICS}
            for run in self.runs
        ]
        columns = ["id", "method", "policy", "seed", "status", *METRICS]
        return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=columns)


def count(runs: Iterable[Result]) -> int:
    """How many runs these are, where one may stand twice: by its weights and by their average."""
    return len({run.id for run in runs})


def load(folder: str | Path) -> Results:
    """Reads every run and stack below `folder`.

    Raises:
        ValueError: when there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"No folder {folder}")
    problems: list[str] = []
    plan = read_plan(folder, problems)
    found: dict[str, Result] = {}
    for where, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in SKIPPED)
        path = Path(where)
        try:
            if StackFiles.RESULT in files:
                runs = _read_stack(StackFiles(path), problems)
            elif StackFiles.SETTINGS in files:
                runs = _read_begun_stack(StackFiles(path), problems)
            elif RunFiles.SETTINGS in files:
                runs = [_read_run(RunFiles(path), problems)]
            else:
                continue
            for run in runs:
                _check_types(run.config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            note(problems, path, f"cannot be read: {why(error)}")
            continue
        for run in runs:
            known = found.get(run.id)
            if known is None or (known.status != "finished" and run.status == "finished"):
                found[run.id] = run
    for run in found.values():
        if run.status == "finished" and (wrong := run.damage()):
            run.status = "damaged"
            note(problems, run.folder, f"is damaged and left out: {wrong} ({run.id})")
    _say_of_weights(found.values(), problems)
    average = plan.get("report", {}).get("average")
    if average is True:
        for run in found.values():
            run.take_average()
    runs = label(list(found.values()), plan)
    if average == BESIDE:
        pairs = [(run, run.of_average()) for run in runs]
        runs = [run for pair in pairs for run in pair if run is not None]
    if left := len(found) - count(runs):
        problems.append(
            f"{left} runs in this folder are not in its {StudyFiles.PLAN} and left out."
        )
    return Results(folder, runs, plan, problems)


def _say_of_weights(runs: Iterable[Result], problems: list[str]) -> None:
    """Weights that are not those that were written, which changes no score."""
    folders: dict[str, list[Path]] = {}
    for run in runs:
        if run.status == "finished" and run.stack is None:
            wrong = weights_damage(RunFiles(run.folder))
            if wrong:
                folders.setdefault(wrong, []).append(run.folder)
    for wrong, where in folders.items():
        more = f", and in {len(where) - 1} more" if len(where) > 1 else ""
        note(problems, where[0], f"has finished, but {wrong}{more}; its scores are as written")


def _read_run(files: RunFiles, problems: list[str]) -> Result:
    config = files.read_settings()
    error = read_error(files, problems)
    summary = files.read_summary() if files.result.exists() else {}
    status = "finished" if summary else "failed" if error else "unfinished"
    timing = read_json(files.timing, dict, problems)
    return Result(
        identity(config), files.folder, config, status, summary, timing, error, problems=problems
    )


def _read_stack(files: StackFiles, problems: list[str]) -> list[Result]:
    entries = files.read_runs()
    timing = read_json(files.timing, dict, problems)
    shared = _Stack(files, problems)
    return [
        Result(
            entry["id"],
            files.folder,
            entry["config"],
            "finished",
            entry["summary"],
            timing,
            member=i,
            stack=shared,
            problems=problems,
        )
        for i, entry in enumerate(entries)
    ]


def _read_begun_stack(files: StackFiles, problems: list[str]) -> list[Result]:
    """The runs of a stack that has not come to its end."""
    error = read_error(files, problems)
    status = "failed" if error else "unfinished"
    return [
        Result(i, files.folder, config, status, error=error, problems=problems)
        for i, config in files.read_settings().items()
    ]


def _check_types(config: dict[str, Any]) -> None:
    """Refuses a configuration that no run of ours has written."""
    int(config.get("seed", 0))
    for name, kind, what in TYPES:
        if name in config and not isinstance(config[name], kind):
            raise ValueError(f"{name} is {config[name]!r}, not a {what}")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _sizes(
    values: Any, count: int, name: str, file: Path, problems: list[str]
) -> np.ndarray | None:
    """The numbers of examples of ``count`` tasks, [T]; None where they are not known."""
    if values is None:
        return None
    try:
        sizes = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        note(problems, file, f"has {name} that are not a list of numbers")
        return None
    if sizes.shape != (count,):
        note(problems, file, f"has {sizes.size} {name} for {count} tasks")
        return None
    return sizes
