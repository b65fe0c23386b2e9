"""One process's share of a run: from the snapshot it found to the end, or to a signal."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longtail.metrics import ScoreMatrix, curve
from longtail.runs.progress import Moment, Reporter, Ticker, finite
from longtail.runs.snapshot import Snapshots, generator_state, set_generator_state
from longtail.support.devices import hardware
from longtail.support.files import naming, write_atomic, write_json
from longtail.support.machine import now, versions
from longtail.support.signals import Stopped, StopRequest
from longtail.training import Interrupted, Run, train

PARTIAL_SECONDS = 10.0  # least time between two writings of a stack's scores


class Session:
    """Trains ``run`` in the folder ``out``, having loaded the last snapshot where there is one.

    Args:
        run: freshly built.
        out: the folder, held by this process.
        config: plain settings that a snapshot must agree with.
        tell: shown progress and warnings.
        minutes: least time between snapshots.
    """

    def __init__(
        self,
        run: Run,
        out: Path,
        config: Mapping[str, Any],
        tell: Reporter,
        minutes: float,
    ) -> None:
        self.run, self.out, self.tell = run, out, tell
        self.snapshots = Snapshots(out / "snapshot", minutes, config, warn=tell.warn)
        # A stack's scores are arrays; they stay in the matrix, thus in the snapshot. Beside it,
        # now and then, in a file of their own: a snapshot is large, and they may be all one wants.
        self.journal = Journal(out / "scores.jsonl") if isinstance(run.seed, int) else None
        self.kept = time.monotonic()
        self.begin = time.monotonic()
        self.seconds, self.sessions, self.started = 0.0, 0, now()
        sizes = np.asarray(run.sequence.train_sizes, dtype=np.float64)
        self.work = np.concatenate(([0.0], np.cumsum(sizes))) / max(sizes.sum(), 1.0)
        self.resumed = self._resume()
        self.sessions += 1

    def train(self, title: str, on_step: Callable[[Run], None] | None = None) -> None:
        run = self.run
        ticker = Ticker(self.tell, self._moment)
        write_json(self.out / "tasks.json", _tasks(run))
        self.tell.start(title, len(run.sequence), run.position.task if self.resumed else None)
        with StopRequest() as request:

            def after_step(run: Run) -> None:
                if request.signal is not None:
                    raise Interrupted
                if self.snapshots.due():
                    self.save()
                ticker.tick()
                if on_step is not None:
                    on_step(run)

            try:
                train(run, on_evaluation=self._record, on_step=after_step)
            except Interrupted:
                self.save()
                self.write_timing()
                text = f"stopped at task {run.position.task} of {len(run.sequence)}"
                text += f"; the same command goes on from there ({self.out})"
                raise Stopped(text, request.code) from None
            finally:
                self.tell.close()
                if self.journal is not None:
                    self.journal.sync()
        self.save(keep=1)  # the end is a state too; nothing will fall back from it

    def save(self, keep: int = 2) -> None:
        self.run.recorder.settle()  # into the journal too
        if self.journal is not None:
            self.journal.sync()  # a snapshot must never know more lines than the disk has
        self.snapshots.save(
            {
                "run": self.run.state_dict(),
                "generators": generator_state(),
                "scores": self.journal.size if self.journal else 0,
                "seconds": self._passed(),
                "sessions": self.sessions,
                "started": self.started,
            },
            keep,
        )

    def write_timing(self) -> None:
        content = {
            "started": self.started,
            "finished": now(),
            "seconds": self._passed(),
            "sessions": self.sessions,
            "snapshots": {"count": self.snapshots.count, "seconds": self.snapshots.seconds},
            "versions": versions(),
            "hardware": hardware(self.run.device),
            # seen from this one: where relative paths in the settings begin
            "directory": os.path.relpath(Path.cwd(), self.out.resolve()),
        }
        write_json(self.out / "timing.json", content)

    def _resume(self) -> bool:
        state = self.snapshots.load(self._usable)
        if self.journal is not None:
            self.journal.cut(0 if state is None else state["scores"])
        if state is None:
            return False
        self.run.load_state_dict(state["run"])
        set_generator_state(state["generators"])
        self.seconds, self.sessions = state["seconds"], state["sessions"]
        self.started = state["started"]
        return True

    def _usable(self, state: dict[str, Any]) -> str | None:
        if self.journal is not None and self.journal.on_disk() < state["scores"]:
            return f"{self.journal.path.name} has lost lines it counts on"
        return None

    def _record(self, run: Run, after: int, tasks: range, scores: np.ndarray) -> None:
        if self.journal is not None:
            self.journal.append(after, tasks, scores)
        if len(tasks) == after + 1:
            self.tell.evaluation(after, running_rp(run.matrix))
            if self.journal is None and time.monotonic() - self.kept > PARTIAL_SECONDS:
                write_partial(self.out, run.matrix)
                self.kept = time.monotonic()

    def _moment(self) -> tuple[Moment, float]:
        run = self.run
        task, tasks = run.position.task, len(run.sequence)
        current = min(task, tasks - 1)
        size = int(run.sequence.train_sizes[current])
        within = 0.0
        if size:
            batch = run.settings.batch_size * run.settings.accumulate
            epochs = run.position.epoch + min(1.0, run.position.step * batch / size)
            within = (self.work[current + 1] - self.work[current]) * epochs / run.settings.epochs
        share = float(self.work[task] + (within if task < tasks else 0.0))
        name = str(run.sequence.names[current])
        return Moment(task, tasks, name, size, running_rp(run.matrix), None), share

    def _passed(self) -> float:
        return self.seconds + time.monotonic() - self.begin


class Journal:
    """scores.jsonl: appended to, and cut back to what a snapshot knows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def on_disk(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Forget what was written after the state that training goes on from."""
        with open(self.path, "ab") as file:
            file.truncate(size)
        self.size = size

    def append(self, after: int, tasks: range, scores: np.ndarray) -> None:
        values = dict(zip(map(str, tasks), scores.tolist(), strict=True))
        line = json.dumps({"after": after, "scores": finite(values)}) + "\n"
        with naming(self.path), open(self.path, "ab") as file:
            self.size += file.write(line.encode())

    def sync(self) -> None:
        with naming(self.path), open(self.path, "ab") as file:
            os.fsync(file.fileno())


def write_partial(out: Path, matrix: ScoreMatrix) -> None:
    """partial.npz: what a stack scored so far, arrays [P, S, T] and the curve [P, S, E].

    Tasks up to the last of `after` have all been evaluated then; later ones are NaN.
    """
    after, points = curve(matrix)
    file = io.BytesIO()
    arrays = {name: getattr(matrix, name) for name in ("own", "best", "last")}
    np.savez(file, after=after, curve=points, **arrays)
    write_atomic(out / "partial.npz", file.getvalue())


def running_rp(matrix: ScoreMatrix) -> float | None:
    """Mean of the latest scores of the tasks seen so far, weighted by test size, over replicas."""
    last = matrix.last if matrix.last.ndim == 1 else matrix.last.reshape(-1, len(matrix)).mean(0)
    seen = ~np.isnan(last) & (matrix.test_sizes > 0)
    return float(np.average(last[seen], weights=matrix.test_sizes[seen])) if seen.any() else None


def _tasks(run: Run) -> dict[str, Any]:
    sequence = run.sequence
    return {
        "names": [str(name) for name in sequence.names],
        "train_sizes": np.asarray(sequence.train_sizes).tolist(),
        "test_sizes": np.asarray(sequence.test_sizes).tolist(),
    }
