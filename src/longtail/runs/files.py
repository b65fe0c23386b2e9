"""Every file in the folder of a run, a stack or a study: its name, how it is read and written.

A run's folder, in which two runs can be compared byte for byte:

======================= ============================================================
.longtail.json          the mark of a folder of ours, which is there from the beginning
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
and ``scores.npz`` in place of scores.jsonl, which is written at the end.
A study's folder has ``plan.json``, a copy of the study file, and folders of its runs and stacks.

Nothing here needs torch, so reports can be made where there is none.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
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
from longtail.support.files import (
    FolderBusyError,
    is_at,
    lock_file,
    naming,
    not_through_a_link,
    parse_json,
    remove_left_drafts,
    to_json,
    write_atomic,
    write_json,
)
from longtail.support.mark import Kind, Mark, read_mark, refuse_strangers, write_mark

SNAPSHOT = re.compile(r"[0-9]{8,}-[0-9a-f]{64}\.pt")  # number and checksum
SNAPSHOT_DRAFT = "snapshot.pt"  # what a snapshot is called that has no checksum yet


class Recorded(NamedTuple):
    """Which runs a folder is of, and the SHA-256 of its files."""

    runs: tuple[str, ...]
    sha256: dict[str, str]


class TrainingFiles(ABC):
    """What the folders of a run and of a stack have in common.

    Args:
        folder: of the run or the stack.

    Attributes:
        written: the SHA-256 of the files that this object has written, by their names.
    """

    KIND: ClassVar[Kind]
    SETTINGS: ClassVar[str]  # claims the folder
    RESULT: ClassVar[str]  # marks the end
    SCORES: ClassVar[str]
    TASKS: ClassVar[str] = "tasks.json"
    TIMING: ClassVar[str] = "timing.json"
    ERROR: ClassVar[str] = "error.json"
    SNAPSHOTS: ClassVar[str] = "snapshot"
    CHECKSUMS: ClassVar[str] = "checksums.json"
    CHECKED: ClassVar[tuple[str, ...]]  # the files it speaks of, but for the end mark
    FINGERPRINT: ClassVar[str] = "fingerprint"  # beside the settings: what else a run depends on

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = folder / self.SETTINGS
        self.result = folder / self.RESULT
        self.scores = folder / self.SCORES
        self.tasks = folder / self.TASKS
        self.timing = folder / self.TIMING
        self.error = folder / self.ERROR
        self.snapshots = folder / self.SNAPSHOTS
        self.checksums = folder / self.CHECKSUMS
        self.written: dict[str, str] = {}

    def begun(self) -> bool:
        """Whether training has ever begun here: its settings hold from then on."""
        return self.tasks.exists() or self.result.exists() or self.has_snapshots()

    def has_snapshots(self) -> bool:
        return bool(snapshots_in(self.snapshots))

    @abstractmethod
    def read_settings(self) -> dict[str, Any]: ...

    @abstractmethod
    def read_fingerprint(self) -> dict[str, str]:
        """What else the runs depend on, as `write_settings` was told; of all in a stack together.

        Raises:
            OSError: there are no settings.
            ValueError: they are damaged.
        """

    @abstractmethod
    def write_settings(
        self, content: Mapping[str, Any], fingerprint: Mapping[str, str] | None = None
    ) -> None: ...

    def names(self) -> tuple[str, ...]:
        """The names of the files that training writes, the end mark first."""
        return self.RESULT, self.CHECKSUMS, *self.CHECKED, self.TIMING, self.ERROR

    def refuse_strangers(self) -> None:
        """Refuse a folder that is not ours, and one whose snapshots are elsewhere.

        Raises:
            ValueError: naming what was found there.
        """
        refuse_strangers(self.folder, self.KIND)
        if self.snapshots.is_symlink():
            raise ValueError(
                f"{self.snapshots} is a link, and a run keeps a folder of its own there: remove "
                "the link, or choose another --out"
            )

    def make_folder(self) -> None:
        """Make the folder, with its mark, where it is not there yet; refuse somebody else's."""
        refuse_strangers(self.folder, self.KIND)
        self.folder.mkdir(parents=True, exist_ok=True)
        if read_mark(self.folder) is None:
            write_mark(self.folder, Mark(self.KIND))

    def clear(self) -> None:
        """Remove what training wrote here; nobody else's files.

        The end mark goes first and the settings last: whoever is killed in between leaves a folder
        that says which run it was.
        """
        self.refuse_strangers()
        self.written.clear()
        for name in self.names():
            if name != self.SETTINGS:
                (self.folder / name).unlink(missing_ok=True)
        for path in snapshots_in(self.snapshots):
            remove_snapshot(path)
        self.remove_left_drafts()
        with suppress(OSError):  # there is none, or somebody else's files are in it
            self.snapshots.rmdir()
        self.settings.unlink(missing_ok=True)

    def remove_left_drafts(self) -> None:
        """Remove what killed processes have left of files that may never be written again."""
        remove_left_drafts(self.folder, self.names())
        remove_left_drafts(self.snapshots, [SNAPSHOT_DRAFT])

    def _write(self, name: str, content: bytes | str) -> None:
        """Write a file, and remember for the checksums what it was."""
        data = content.encode() if isinstance(content, str) else content
        write_atomic(self.folder / name, data)
        self.written[name] = hashlib.sha256(data).hexdigest()

    @abstractmethod
    def read_ids(self) -> set[str]:
        """Ids of the runs that are finished here.

        Raises:
            ValueError: the end mark is damaged.
            FileNotFoundError: there is none.
        """

    def write_tasks(self, names: Sequence[str], train_sizes: Any, test_sizes: Any) -> None:
        self._write(self.TASKS, to_json(_listed(names, train_sizes, test_sizes)) + "\n")

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

        That is, what was written to them: nobody else's writing is vouched for.

        Args:
            runs: ids of the runs that were trained here.
            content: of the end mark.
        """
        text = to_json(content) + "\n"
        sums = {name: self.written[name] for name in self.CHECKED if name in self.written}
        sums[self.RESULT] = hashlib.sha256(text.encode()).hexdigest()
        write_json(self.checksums, {"runs": list(runs), "sha256": sums})
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
        """Write down why a job failed, where the folder is, or can become, one of ours."""
        try:
            self.make_folder()
        except ValueError:
            return
        write_json(self.error, {"error": error, "traceback": details})


def snapshots_in(folder: Path) -> list[Path]:
    """What has the name of a snapshot, oldest first; nothing else that may lie beside them."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if SNAPSHOT.fullmatch(path.name))


def remove_snapshot(path: Path) -> None:
    """Remove a snapshot; a folder under such a name is not ours."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)


def _listed(names: Sequence[str], train_sizes: Any, test_sizes: Any) -> dict[str, Any]:
    """The tasks as tasks.json has them."""
    sizes = {"train_sizes": train_sizes, "test_sizes": test_sizes}
    listed = {name: np.asarray(values).tolist() for name, values in sizes.items()}
    return {"names": [str(name) for name in names], **listed}


class RunFiles(TrainingFiles):
    """The folder of one run."""

    KIND = "run"
    SETTINGS = "config.toml"
    RESULT = "summary.json"
    SCORES = "scores.jsonl"
    WEIGHTS = "model.safetensors"
    AVERAGE = "average.safetensors"
    CHECKED = (SETTINGS, TrainingFiles.TASKS, SCORES, WEIGHTS, AVERAGE)

    def read_settings(self) -> dict[str, Any]:
        found = self._read_toml()
        found.pop(self.FINGERPRINT, None)
        return found

    def read_fingerprint(self) -> dict[str, str]:
        return _texts(self._read_toml().get(self.FINGERPRINT))

    def _read_toml(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.settings.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.SETTINGS}: {error}") from None

    def write_settings(
        self, content: Mapping[str, Any], fingerprint: Mapping[str, str] | None = None
    ) -> None:
        further = {self.FINGERPRINT: fingerprint} if fingerprint else {}
        self._write(self.SETTINGS, tomli_w.dumps({**content, **further}))

    def read_ids(self) -> set[str]:
        self.read_summary()
        return {self.folder.name}

    def read_summary(self) -> dict[str, Any]:
        return parse_json(self.result, dict)

    def write_weights(self, content: bytes) -> None:
        self._write(self.WEIGHTS, content)

    def write_average(self, content: bytes) -> None:
        self._write(self.AVERAGE, content)

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


def _texts(values: Any) -> dict[str, str]:
    """The texts of a table; none where a file has something else in its place."""
    table = values if isinstance(values, dict) else {}
    return {name: value for name, value in table.items() if isinstance(value, str)}


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

    KIND = "stack"
    SETTINGS = "stack.json"
    RESULT = "runs.json"
    SCORES = "scores.npz"
    CHECKED = (SETTINGS, TrainingFiles.TASKS, SCORES)

    def read_settings(self) -> dict[str, Any]:
        """The settings of its runs by their ids."""
        found = parse_json(self.settings, dict)
        found.pop(self.FINGERPRINT, None)
        return found

    def read_fingerprint(self) -> dict[str, str]:
        return _texts(parse_json(self.settings, dict).get(self.FINGERPRINT))

    def write_settings(
        self, content: Mapping[str, Any], fingerprint: Mapping[str, str] | None = None
    ) -> None:
        further = {self.FINGERPRINT: fingerprint} if fingerprint else {}
        self._write(self.SETTINGS, to_json({**content, **further}))

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
        self._write(self.SCORES, _bytes_of(arrays))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as opened, np.load(opened) as file:
            return {name: file[name] for name in file.files}
    except OSError:
        raise
    except Exception as error:  # of damaged bytes NumPy and zipfile make errors of many kinds
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _bytes_of(arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


@dataclass(frozen=True)
class StudyFiles:
    """The folder of a study."""

    folder: Path

    KIND: ClassVar[Kind] = "study"
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

    def names(self) -> tuple[str, ...]:
        """The names of the files that a study writes."""
        return self.PLAN, self.STUDY

    def refuse_links(self) -> None:
        """Refuse to train in folders that are elsewhere."""
        for path in (self.folder / self.RUNS, self.folder / self.STACKS):
            if path.is_symlink():
                raise ValueError(
                    f"{path} is a link, and a study keeps a folder of its own there: remove the "
                    "link, or choose another --out"
                )

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


class JournalError(ValueError):
    """Somebody else has written to the scores of a run, or removed them, while it was trained."""


class Journal:
    """Writes scores.jsonl: lines are added, and cut off again that a snapshot does not know.

    The file is open, and locked, from beginning to end, and it must always be as long as what was
    written to it: a second process that writes the same scores would make a run of neither.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._sha = hashlib.sha256()
        try:
            descriptor = not_through_a_link(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError:
            if path.is_symlink():
                text = f"{path} is a link, and scores are written through none: remove it"
                raise ValueError(text) from None
            raise
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        if lock_file(descriptor, wait=False) is False:
            self.close()
            raise FolderBusyError(f"{path} is being written by another process")

    def close(self) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        """Of the lines so far."""
        return self._sha.hexdigest()

    def begins_with(self, size: int, sha256: str) -> bool:
        """Whether the first ``size`` bytes on the disk are those that were written."""
        return hashlib.sha256(self._read(size)).hexdigest() == sha256

    def on_disk(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def cut(self, size: int) -> None:
        """Forget what was written after the state that training goes on from."""
        self._file.truncate(size)
        self.size = size
        self._sha = hashlib.sha256(self._read(size))

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
        line = (json.dumps(entry) + "\n").encode()
        self.require_alone()
        with naming(self.path):
            left = memoryview(line)
            while left:  # an unbuffered write may stop early
                count = self._file.write(left)
                self.size += count
                left = left[count:]
        self._sha.update(line)

    def sync(self) -> None:
        with naming(self.path):
            os.fsync(self._file.fileno())

    def require_alone(self) -> None:
        """Stop where somebody else has written to the file.

        Raises:
            JournalError: it is longer or shorter than what was written, or another file.
        """
        size = self.on_disk()
        if size != self.size:
            raise JournalError(
                f"{self.path} has {size:,} bytes, and this run has written {self.size:,}: another "
                "process writes to it; end that, and the same command goes on from the last "
                "snapshot"
            )
        if not is_at(self._file.fileno(), self.path):
            raise JournalError(
                f"{self.path} was removed or replaced while this run wrote it; the same command "
                "goes on from the last snapshot"
            )

    def _read(self, size: int) -> bytes:
        with open(self._file.fileno(), "rb", closefd=False) as file:
            file.seek(0)
            return file.read(size)
