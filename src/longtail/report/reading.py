"""What the files of a folder of runs hold, as it stands there: an entry a run.

A folder may hold single runs (`config.toml`, `scores.jsonl`, `summary.json`), stacks of runs
(`runs.json`, `scores.npz`) and a study's `plan.json`, at any depth. What cannot be read becomes a
sentence in `Reading.problems`, not an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longtail.report.labelling import AVERAGES, BESIDE, average_labels, label
from longtail.runs.files import RunFiles, StackFiles, StudyFiles, TrainingFiles
from longtail.runs.integrity import damage, identity, weights_damage, wrong_score
from longtail.support.files import parse_json

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
PLAN_TYPES: dict[str, type] = {"runs": list, "report": dict, "select": dict}
PLAN_TYPES |= {"stacks": dict, "code": dict, "chosen": dict}
Plan = dict[str, Any]
Problems = list[str]


@dataclass(frozen=True)
class TaskScores:
    """Scores of one run by task: when learned (own, a_ii), best since, last; and RP over time."""

    names: tuple[str, ...]
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


@dataclass(frozen=True)
class Entry:
    """One run, finished or not, as its files tell it."""

    id: str
    folder: Path
    config: dict[str, Any]
    status: str  # "finished" | "unfinished" | "failed" | "damaged"
    summary: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    member: int | None = None  # its row in the scores.npz of a stack
    stack: Stack | None = None
    problems: Problems = field(default_factory=list, compare=False)  # shared with `Reading`
    average: bool = False  # whether it is the average of the weights that is scored

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def diverged(self) -> bool:
        """Whether its weights or losses became infinite or NaN on the way."""
        return self.summary.get("diverged_at") is not None

    @property
    def kinds(self) -> dict[str, ScoreKind]:
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
    def kind(self) -> ScoreKind:
        """How that score is read."""
        return self.kinds.get(self.score, ScoreKind(self.score, higher_is_better=True))

    def of_average(self) -> Entry:
        """The same run as its average of the weights scores it, where it kept one.

        Scores by task are of the weights, and it has none then.
        """
        average = self.summary.get("average")
        if not isinstance(average, dict):
            return self
        return replace(self, summary={**self.summary, **average}, average=True)

    @cached_property
    def scores(self) -> TaskScores | None:
        """None where the run has not been evaluated or its file cannot be read."""
        if self.average:
            return None
        try:
            return self.stack.scores(self.member or 0) if self.stack else self._replay()
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged file may make its reader raise anything
            files = StackFiles(self.folder) if self.stack else RunFiles(self.folder)
            note(self.problems, files.scores, f"cannot be read: {why(error)}")
            return None

    @property
    def average_curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(number of tasks [E], RP of the average [E]) as a summary has them."""
        average = self.summary.get("average")
        curve = average.get("curve") if isinstance(average, dict) else None
        if not isinstance(curve, dict):
            return None
        tasks, rp = curve.get("tasks"), curve.get("RP")
        if not isinstance(tasks, list) or not isinstance(rp, list) or len(tasks) != len(rp):
            return None
        return np.array(tasks, np.int64), np.array(rp, np.float64)

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

    def _replay(self) -> TaskScores | None:
        files = RunFiles(self.folder)
        rows = list(files.read_evaluations())
        if not rows:
            return None
        tasks = read_json(files.tasks, dict, self.problems)
        names = names_of(tasks, files, self.problems)
        count = len(names)
        for _, index, _ in rows:
            count = max(count, 1 + int(index.max(initial=0)))
        train_sizes, test_sizes = (
            sizes_of(tasks.get(name), count, name, files.tasks, self.problems)
            for name in ("train_sizes", "test_sizes")
        )
        own, best, last = np.full((3, count), np.nan)
        after, curve = [], []
        better = np.fmax if self.kind.higher_is_better else np.fmin
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
        names = named(names, count)
        points = np.array(after, dtype=np.int64), np.array(curve)
        return TaskScores(names, train_sizes, test_sizes, own, best, last, *points)


class Stack:
    """The scores.npz that the runs of one stack share, read once and only when asked for."""

    def __init__(self, files: StackFiles, problems: Problems) -> None:
        self.files, self.problems = files, problems

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.files.read_scores()

    @cached_property
    def damage(self) -> str | None:
        return damage(self.files)

    @cached_property
    def names(self) -> tuple[str, ...]:
        tasks = read_json(self.files.tasks, dict, self.problems)
        names = names_of(tasks, self.files, self.problems)
        return named(names, self.arrays["own"].shape[-1])

    def scores(self, member: int) -> TaskScores:
        arrays = self.arrays
        own, best, last = (arrays[name][member] for name in ("own", "best", "last"))
        train = self._sizes("train_sizes", member, len(own))
        test = self._sizes("test_sizes", member, len(own))
        points = arrays["after"] + 1, arrays["curve"][member]
        return TaskScores(self.names, train, test, own, best, last, *points)

    def _sizes(self, name: str, member: int, count: int) -> np.ndarray | None:
        sizes = self.arrays.get(name)
        if sizes is not None and sizes.ndim == 2:  # the tasks of each member are its own
            sizes = sizes[member % len(sizes)]
        return sizes_of(sizes, count, name, self.files.scores, self.problems)


@dataclass(frozen=True)
class Reading:
    """The runs of a folder with their labels, and what the study file said about them."""

    folder: Path
    plan: Plan
    runs: list[tuple[Entry, dict[str, Any]]]
    problems: Problems


def read_folder(folder: Path) -> Reading:
    """Reads every run and stack below `folder`.

    Raises:
        ValueError: when there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"No folder {folder}")
    problems: Problems = []
    plan = read_plan(folder, problems)
    entries = _undamaged(_entries_below(folder, problems).values(), problems)
    _say_of_weights(entries, problems)
    average = plan.get("report", {}).get("average")
    if average is True:
        entries = [entry.of_average() for entry in entries]
    runs = label(entries, plan)
    if left := len(entries) - len(runs):
        problems.append(
            f"{left} runs in this folder are not in its {StudyFiles.PLAN} and left out."
        )
    return Reading(folder, plan, _with_averages(runs) if average == BESIDE else runs, problems)


def _entries_below(folder: Path, problems: Problems) -> dict[str, Entry]:
    """Every run by its id; of two folders of one run the finished one counts."""
    entries: dict[str, Entry] = {}
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        path = Path(where)
        try:
            runs = _entries_in(path, files, problems)
            for run in runs:
                _check_types(run.config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            note(problems, path, f"cannot be read: {why(error)}")
            continue
        for run in runs:
            other = entries.get(run.id)
            if other is None or (other.status != "finished" and run.status == "finished"):
                entries[run.id] = run
    return entries


def _entries_in(path: Path, files: Iterable[str], problems: Problems) -> list[Entry]:
    """The runs of one folder, none where it is not the folder of a run or a stack."""
    if StackFiles.RESULT in files:
        return _read_stack(StackFiles(path), problems)
    if StackFiles.SETTINGS in files:
        return _read_begun_stack(StackFiles(path), problems)
    if RunFiles.SETTINGS in files:
        return [_read_run(RunFiles(path), problems)]
    return []


def _undamaged(entries: Iterable[Entry], problems: Problems) -> list[Entry]:
    """The runs, those whose files are not what was written marked as damaged."""
    checked = []
    for entry in entries:
        wrong = entry.damage() if entry.status == "finished" else None
        if wrong:
            note(problems, entry.folder, f"is damaged and left out: {wrong} ({entry.id})")
        checked.append(replace(entry, status="damaged") if wrong else entry)
    return checked


def _with_averages(
    runs: Iterable[tuple[Entry, dict[str, Any]]],
) -> list[tuple[Entry, dict[str, Any]]]:
    """Each run, and behind it the same run by its average of the weights where it kept one."""
    both = []
    for entry, labels in runs:
        both.append((entry, labels))
        kind = entry.config.get("train", {}).get("average")
        if kind in AVERAGES and isinstance(entry.summary.get("average"), dict):
            both.append((entry.of_average(), average_labels(labels, kind)))
    return both


def _say_of_weights(runs: Iterable[Entry], problems: Problems) -> None:
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


def _read_run(files: RunFiles, problems: Problems) -> Entry:
    config = files.read_settings()
    error = read_error(files, problems)
    summary = files.read_summary() if files.result.exists() else {}
    status = "finished" if summary else "failed" if error else "unfinished"
    timing = read_json(files.timing, dict, problems)
    run = Entry(identity(config), files.folder, config, status, summary, timing, error)
    return replace(run, problems=problems)


def _read_stack(files: StackFiles, problems: Problems) -> list[Entry]:
    told = files.read_runs()
    timing = read_json(files.timing, dict, problems)
    stack = Stack(files, problems)
    entries = []
    for member, one in enumerate(told):
        run = Entry(one["id"], files.folder, one["config"], "finished", one["summary"], timing)
        entries.append(replace(run, member=member, stack=stack, problems=problems))
    return entries


def _read_begun_stack(files: StackFiles, problems: Problems) -> list[Entry]:
    """The runs of a stack that has not come to its end."""
    error = read_error(files, problems)
    status = "failed" if error else "unfinished"
    entries = []
    for identity_, config in files.read_settings().items():
        run = Entry(identity_, files.folder, config, status, error=error, problems=problems)
        entries.append(run)
    return entries


def _check_types(config: Mapping[str, Any]) -> None:
    """Refuses a configuration that no run of ours has written."""
    int(config.get("seed", 0))
    for name, kind, what in TYPES:
        if name in config and not isinstance(config[name], kind):
            raise ValueError(f"{name} is {config[name]!r}, not a {what}")


# Files that may be damaged: what they should hold, or a sentence that names the file ------------


def read_json(path: Path, kind: type, problems: Problems) -> Any:
    """The content of a JSON file; a missing file, or a damaged one, gives an empty `kind`.

    What is wrong with a damaged one is added to `problems`, as a sentence.
    """
    try:
        return parse_json(path, kind)
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        note(problems, path, f"cannot be read: {why(error)}")
        return kind()


def note(problems: Problems, path: Path, text: str) -> None:
    """Adds a sentence that names a file, once."""
    sentence = f"{Path(*path.parts[-3:])} {text}"
    if sentence not in problems:
        problems.append(sentence)


def why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


def read_plan(folder: Path, problems: Problems) -> Plan:
    """A study's plan.json without what is not of its type."""
    path = StudyFiles(folder).plan
    plan = read_json(path, dict, problems)
    for key, kind in PLAN_TYPES.items():
        if not isinstance(plan.get(key, kind()), kind):
            note(problems, path, f"has {key} = {plan.pop(key)!r}, which is left out")
    report = plan.get("report", {})
    for key, value in list(report.items()):
        if not _fits(key, value):
            note(problems, path, f"has report.{key} = {report.pop(key)!r}, which is left out")
    runs = list(filter(_is_planned, plan.get("runs", [])))
    if len(runs) < len(plan.get("runs", [])):
        note(problems, path, f"has {len(plan['runs']) - len(runs)} runs that cannot be read")
        plan["runs"] = runs
    return plan


def _fits(key: str, value: Any) -> bool:
    """Whether a value of [report] is of the kind that a study file may give it."""
    if key in ("title", "paper", "unit", "columns"):
        return isinstance(value, str)
    if key == "average":
        return isinstance(value, bool) or value == BESIDE
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return texts and (key != "pair" or len(value) == 2)


def _is_planned(entry: Any) -> bool:
    labels = entry.get("labels") if isinstance(entry, dict) else None
    told = isinstance(labels, dict) and {"method", "policy"} <= labels.keys()
    return told and isinstance(entry.get("id"), str)


def read_error(files: TrainingFiles, problems: Problems) -> str | None:
    """Why a run failed, from its error.json."""
    error = read_json(files.error, dict, problems).get("error")
    return None if error is None else str(error)


def names_of(tasks: Mapping[str, Any], files: TrainingFiles, problems: Problems) -> list[str]:
    """The names in the content of a tasks.json."""
    names = tasks.get("names", [])
    if isinstance(names, list):
        return list(map(str, names))
    note(problems, files.tasks, f"has names = {names!r}, which is not a list")
    return []


_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {}


def named(names: list[str], count: int) -> tuple[str, ...]:
    """The names of `count` tasks, or numbers; the same ones of many runs are kept once."""
    if len(names) != count:
        names = [f"task {place + 1}" for place in range(count)]
    texts = tuple(names)
    return _NAMES.setdefault(texts, texts)


def sizes_of(
    values: Any, count: int, name: str, file: Path, problems: Problems
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
