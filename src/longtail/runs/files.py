"""Every file in the folder of a run, a stack or a study: its name, how it is read and written.

A run's folder, in which two runs can be compared byte for byte:

======================= ============================================================
config.toml             every setting, resolved; of a user's own code and data their checksums
tasks.json              names and sizes of the tasks
scores.jsonl            one line per evaluation, append only
summary.json            RP, LP, BWT, FGT and the breakdown; written last, so it marks the end
model.safetensors       final weights
average.safetensors     their average, where one was kept
checksums.json          which run this was, and the SHA-256 of each of the files above
timing.json             dates, seconds, versions, hardware, and from where the run was started;
                        the only file that has them
snapshot/               the last consistent states
error.json              why it failed, where it was a study's and did
======================= ============================================================

A stack's folder has ``stack.json`` in place of config.toml, ``runs.json`` in place of summary.json
and ``scores.npz`` in place of scores.jsonl; while it trains, ``partial.npz`` has its scores so far.
A study's folder has ``plan.json``, a copy of the study file, and folders of its runs and stacks.

Nothing here needs torch, so reports can be made where there is none.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tomli_w

from longtail.runs.progress import finite
from longtail.support.downloads import digest
from longtail.support.files import LOCK, naming, parse_json, to_json, write_atomic, write_json


class Recorded(NamedTuple):
    """Which runs a folder is of, and the SHA-256 of its files."""

    runs: tuple[str, ...]
    sha256: dict[str, str]


@dataclass(frozen=True)
class TrainingFiles(ABC):
    """What the folders of a run and of a stack have in common."""

    folder: Path

    SETTINGS: ClassVar[str]  # claims the folder
    RESULT: ClassVar[str]  # marks the end
    SCORES: ClassVar[str]
    TASKS: ClassVar[str] = "tasks.json"
    TIMING: ClassVar[str] = "timing.json"
    ERROR: ClassVar[str] = "error.json"
    SNAPSHOTS: ClassVar[str] = "snapshot"
    TENSORBOARD: ClassVar[str] = "tensorboard"
    CHECKSUMS: ClassVar[str] = "checksums.json"
    CHECKED: ClassVar[tuple[str, ...]]  # the files it speaks of, but for the end mark
    FINGERPRINT: ClassVar[str] = "fingerprint"  # beside the settings: what else a run depends on

    @property
    def settings(self) -> Path:
        return self.folder / self.SETTINGS

    @property
    def result(self) -> Path:
        return self.folder / self.RESULT

    @property
    def scores(self) -> Path:
        return self.folder / self.SCORES

    @property
    def tasks(self) -> Path:
        return self.folder / self.TASKS

    @property
    def timing(self) -> Path:
        return self.folder / self.TIMING

    @property
    def error(self) -> Path:
        return self.folder / self.ERROR

    @property
    def snapshots(self) -> Path:
        return self.folder / self.SNAPSHOTS

    @property
    def checksums(self) -> Path:
        return self.folder / self.CHECKSUMS

    @property
    def lock(self) -> Path:
        return self.folder / LOCK

    def begun(self) -> bool:
        """Whether training has ever begun here: its settings hold from then on."""
        return any(path.exists() for path in (self.tasks, self.snapshots, self.result))

    @abstractmethod
    def read_settings(self) -> dict[str, Any]: ...

    @abstractmethod
    def read_fingerprint(self) -> Any:
        """What `write_settings` was given as such; None where there is none, or no such file."""

    @abstractmethod
    def write_settings(
        self, content: Mapping[str, Any], fingerprint: Mapping[str, Any] | None = None
    ) -> None: ...

    def _names(self) -> tuple[str, ...]:
        """The names of the files that training writes, the end mark first."""
        return self.RESULT, self.CHECKSUMS, *self.CHECKED, self.TIMING, self.ERROR

    def refuse_folders(self) -> None:
        """Refuse to train where a folder stands under the name of one of the files."""
        for path in (self.folder / name for name in self._names()):
            if path.is_dir():
                raise ValueError(
                    f"{path} is a folder, and a run keeps a file there: remove it, or choose "
                    "another --out"
                )

    def clear(self) -> None:
        """Remove all that training wrote here, the end mark first; nobody else's files."""
        for name in self._names():
            (self.folder / name).unlink(missing_ok=True)
        for name in (self.SNAPSHOTS, self.TENSORBOARD):
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder / name)

    @abstractmethod
    def read_ids(self) -> set[str]:
        """Ids of the runs that are finished here.

        Raises:
            ValueError: the end mark is damaged.
            FileNotFoundError: there is none.
        """

    def write_tasks(self, names: Sequence[str], train_sizes: Any, test_sizes: Any) -> None:
        write_json(self.tasks, _listed(names, train_sizes, test_sizes))

    def has_other_tasks(self, names: Sequence[str], train_sizes: Any, test_sizes: Any) -> bool:
        """Whether the tasks that were written here are not these; a damaged list says nothing."""
        try:
            written = parse_json(self.tasks, dict)
        except (OSError, ValueError):
            return False
        return written != _listed(names, train_sizes, test_sizes)

    def write_timing(self, content: Mapping[str, Any]) -> None:
        write_json(self.timing, content)

    def finish(self, runs: Sequence[str], content: Any) -> None:
        """Write the end mark, and before it whose it is and what the other files hold.

        Args:
            runs: ids of the runs that were trained here.
            content: of the end mark.
        """
        text = to_json(content) + "\n"
        paths = [self.folder / name for name in self.CHECKED]
        found = {path.name: digest(path) for path in paths if path.exists()}
        found[self.RESULT] = hashlib.sha256(text.encode()).hexdigest()
        write_json(self.checksums, {"runs": list(runs), "sha256": found})
        write_atomic(self.result, text)

    def recorded(self) -> Recorded | None:
        """What checksums.json says; None where there is none, as in folders of before it."""
        try:
            content = parse_json(self.checksums, dict)
        except FileNotFoundError:
            return None
        runs, sums = content.get("runs"), content.get("sha256")
        if not isinstance(runs, list) or not isinstance(sums, dict):
            raise ValueError(f"{self.CHECKSUMS} has no runs or no sha256")
        return Recorded(tuple(map(str, runs)), {str(k): str(v) for k, v in sums.items()})

    def record_failure(self, error: str, details: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.error, {"error": error, "traceback": details})


def _listed(names: Sequence[str], train_sizes: Any, test_sizes: Any) -> dict[str, Any]:
    """The tasks as tasks.json has them."""
    sizes = {"train_sizes": train_sizes, "test_sizes": test_sizes}
    listed = {name: np.asarray(values).tolist() for name, values in sizes.items()}
    return {"names": [str(name) for name in names], **listed}


class RunFiles(TrainingFiles):
    """The folder of one run."""

    SETTINGS = "config.toml"
    RESULT = "summary.json"
    SCORES = "scores.jsonl"
    WEIGHTS = "model.safetensors"
    AVERAGE = "average.safetensors"
    CHECKED = (SETTINGS, TrainingFiles.TASKS, SCORES, WEIGHTS, AVERAGE)

    @property
    def weights(self) -> Path:
        return self.folder / self.WEIGHTS

    @property
    def average(self) -> Path:
        return self.folder / self.AVERAGE

    def read_settings(self) -> dict[str, Any]:
        found = self._read_toml()
        found.pop(self.FINGERPRINT, None)
        return found

    def read_fingerprint(self) -> Any:
        return self._read_toml().get(self.FINGERPRINT) if self.settings.exists() else None

    def _read_toml(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.settings.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.SETTINGS}: {error}") from None

    def write_settings(
        self, content: Mapping[str, Any], fingerprint: Mapping[str, Any] | None = None
    ) -> None:
        further = {self.FINGERPRINT: fingerprint} if fingerprint else {}
        write_atomic(self.settings, tomli_w.dumps({**content, **further}))

    def read_ids(self) -> set[str]:
        self.read_summary()
        return {self.folder.name}

    def read_summary(self) -> dict[str, Any]:
        return parse_json(self.result, dict)

    def write_weights(self, content: bytes) -> None:
        write_atomic(self.weights, content)

    def write_average(self, content: bytes) -> None:
        write_atomic(self.average, content)

    def read_evaluations(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields (after, task indices, scores) of every evaluation, in their order."""
        before = -1
        with open(self.scores, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    if not line.endswith("\n"):
                        return  # the last line of an interrupted run may be cut off
                    raise ValueError(f"line {number} is not JSON: {line.strip()[:40]!r}") from None
                found = _checked_scores(entry, number, before)
                before = entry["after"]
                values = [float("nan") if v is None else float(v) for v in found.values()]
                tasks = np.fromiter(map(int, found), np.int64, len(found))
                yield int(entry["after"]), tasks, np.array(values)


def _checked_scores(entry: Any, number: int, before: int) -> dict[str, Any]:
    """The scores of a line of scores.jsonl; `ValueError` where it cannot be one."""
    found = entry.get("scores") if isinstance(entry, dict) else None
    after = entry.get("after") if isinstance(entry, dict) else None
    if not isinstance(found, dict) or type(after) is not int:
        raise ValueError(f"line {number} has no scores, or does not say after which task")
    if after < before:
        raise ValueError(f"line {number} is out of order: after task {after}, but before {before}")
    if not all(task.isascii() and task.isdigit() and len(task) < 10 for task in found):
        raise ValueError(f"line {number} has scores of what is no task")
    return found


class StackFiles(TrainingFiles):
    """The folder of a stack: several runs trained as one program."""

    SETTINGS = "stack.json"
    RESULT = "runs.json"
    SCORES = "scores.npz"
    PARTIAL = "partial.npz"
    CHECKED = (SETTINGS, TrainingFiles.TASKS, SCORES)

    @property
    def partial(self) -> Path:
        return self.folder / self.PARTIAL

    def read_settings(self) -> dict[str, Any]:
        """The settings of its runs by their ids."""
        found = parse_json(self.settings, dict)
        found.pop(self.FINGERPRINT, None)
        return found

    def read_fingerprint(self) -> Any:
        """Of all its runs: they share their code and read their data together."""
        if not self.settings.exists():
            return None
        return parse_json(self.settings, dict).get(self.FINGERPRINT)

    def write_settings(
        self, content: Mapping[str, Any], fingerprint: Mapping[str, Any] | None = None
    ) -> None:
        further = {self.FINGERPRINT: fingerprint} if fingerprint else {}
        write_atomic(self.settings, to_json({**content, **further}))

    def _names(self) -> tuple[str, ...]:
        return *super()._names(), self.PARTIAL

    def read_ids(self) -> set[str]:
        return {entry["id"] for entry in self.read_runs()}

    def read_runs(self) -> list[dict[str, Any]]:
        """Id, config and summary of every run; `ValueError` where the file has anything else."""
        entries = parse_json(self.result, list)
        kinds = {"id": str, "config": dict, "summary": dict}
        for entry in entries:
            if not isinstance(entry, dict) or any(
                not isinstance(entry.get(key), kind) for key, kind in kinds.items()
            ):
                raise ValueError(f"{self.RESULT} has an entry without id, config or summary")
        return entries

    def read_scores(self) -> dict[str, np.ndarray]:
        """Arrays ``own``, ``best``, ``last`` [runs, tasks], ``curve`` [runs, points] and more."""
        return _read_arrays(self.scores)

    def write_scores(self, arrays: Mapping[str, np.ndarray]) -> None:
        _write_arrays(self.scores, arrays)

    def read_partial(self) -> dict[str, np.ndarray]:
        """What was scored so far: ``own``, ``best``, ``last`` [P, S, T] and ``curve`` [P, S, E].

        Tasks up to the last of ``after`` have all been evaluated then; later ones are NaN.
        """
        return _read_arrays(self.partial)

    def write_partial(self, arrays: Mapping[str, np.ndarray]) -> None:
        _write_arrays(self.partial, arrays)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as opened, np.load(opened) as file:
            return {name: file[name] for name in file.files}
    except OSError:
        raise
    except Exception as error:  # of damaged bytes NumPy and zipfile make errors of many kinds
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    write_atomic(path, file.getvalue())


@dataclass(frozen=True)
class StudyFiles:
    """The folder of a study."""

    folder: Path

    PLAN: ClassVar[str] = "plan.json"
    STUDY: ClassVar[str] = "study.toml"
    RUNS: ClassVar[str] = "runs"
    STACKS: ClassVar[str] = "stacks"

    @property
    def plan(self) -> Path:
        return self.folder / self.PLAN

    @property
    def study(self) -> Path:
        return self.folder / self.STUDY

    def run(self, identity: str) -> RunFiles:
        return RunFiles(self.folder / self.RUNS / identity)

    def stack(self, identity: str) -> StackFiles:
        return StackFiles(self.folder / self.STACKS / identity)

    def finished(self) -> Iterator[RunFiles | StackFiles]:
        """The folders of runs and stacks that have come to their end."""
        for path in self.folder.glob(f"{self.RUNS}/*/{RunFiles.RESULT}"):
            yield RunFiles(path.parent)
        for path in self.folder.glob(f"{self.STACKS}/*/{StackFiles.RESULT}"):
            yield StackFiles(path.parent)

    def write_plan(self, content: Mapping[str, Any]) -> None:
        write_json(self.plan, content)

    def write_study(self, content: bytes) -> None:
        write_atomic(self.study, content)


def _by_task(tasks: range, scores: np.ndarray) -> dict[str, float | None]:
    return finite(dict(zip(map(str, tasks), scores.tolist(), strict=True)))


class Journal:
    """Writes scores.jsonl: lines are added, and cut off again that a snapshot does not know."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._sha = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of the lines so far."""
        return self._sha.hexdigest()

    def begins_with(self, size: int, sha256: str) -> bool:
        """Whether the first ``size`` bytes on the disk are those that were written."""
        with open(self.path, "rb") as file:
            return hashlib.sha256(file.read(size)).hexdigest() == sha256

    def on_disk(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Forget what was written after the state that training goes on from."""
        with open(self.path, "ab") as file:
            file.truncate(size)
        self.size = size
        self._sha = hashlib.sha256(self.path.read_bytes())

    def append(
        self,
        after: int,
        tasks: range,
        scores: np.ndarray,
        others: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """A line with the scores of some tasks, and by name those that a benchmark has beside."""
        entry: dict[str, Any] = {"after": after, "scores": _by_task(tasks, scores)}
        if others:
            entry["others"] = {name: _by_task(tasks, found) for name, found in others.items()}
        line = json.dumps(entry) + "\n"
        with naming(self.path), open(self.path, "ab") as file:
            self.size += file.write(line.encode())
        self._sha.update(line.encode())

    def sync(self) -> None:
        with naming(self.path), open(self.path, "ab") as file:
            os.fsync(file.fileno())
