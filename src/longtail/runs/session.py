"""One process's share of a run: claim its folder, train from the snapshot there, write results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from longtail.metrics import ScoreMatrix
from longtail.optim.cpu.build import variant
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import RunConfig, variant_key
from longtail.runs.files import Journal, RunFiles, StackFiles
from longtail.runs.fingerprint import change, fingerprint
from longtail.runs.integrity import damage
from longtail.runs.progress import Moment, Reporter, Ticker
from longtail.runs.progress import reporter as choose_reporter
from longtail.runs.snapshot import (
    Snapshots,
    generator_state,
    seed_generators,
    set_generator_state,
)
from longtail.runs.summary import run_summary, stack_summaries
from longtail.runs.values import first_difference
from longtail.support.devices import choose_device, hardware
from longtail.support.machine import most_threads, now, versions
from longtail.support.mark import taken
from longtail.support.random import derive
from longtail.support.signals import Stopped, StopRequest
from longtail.tasks import TaskSequence
from longtail.training import Interrupted, Run, train

_ENTRIES = frozenset(
    {"run", "generators", "scores", "scores_sha256", "seconds", "sessions", "started"}
)
LOOK_SECONDS = 5.0  # least time between two looks at whether a run diverged


@dataclass(frozen=True)
class RunOptions:
    """How a run is trained and shown; none of it changes a score.

    Args:
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; ``auto`` is a GPU where there is one.
        threads: CPU threads; None leaves torch's own choice.
        snapshot_minutes: least time between snapshots; 0 writes one after every step, infinity
            none, not even of the end.
        quiet: print only warnings and errors.
        json: print JSON lines.
        stop_on_nan: raise `FloatingPointError` where weights or losses are infinite or not a
            number.
        keep: refuse to compute a run anew whose code or data have changed, in place of doing so.
        fresh: compute it anew in any case.
        weights: whether a finished run leaves its weights, and their average where it kept one.
    """

    device: str = "auto"
    threads: int | None = None
    snapshot_minutes: float = 2.0
    quiet: bool = False
    json: bool = False
    stop_on_nan: bool = False
    keep: bool = False
    fresh: bool = False
    weights: bool = True

    def __post_init__(self) -> None:
        if self.keep and self.fresh:
            raise ValueError("--keep and --fresh: runs are kept or computed anew, not both")
        if not self.snapshot_minutes >= 0:  # NaN neither
            text = f"--snapshot-minutes must not be negative, got {self.snapshot_minutes}"
            raise ValueError(text)
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.threads is not None and self.threads > most_threads():
            raise ValueError(f"threads must be at most {most_threads():,}, got {self.threads}")


def train_run(
    config: RunConfig,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    reporter: Reporter | None = None,
    on_step: Callable[[Run], None] | None = None,
) -> dict[str, Any]:
    """Train ``config`` in the folder ``out``, or go on with it, or do nothing if it is finished.

    A run that was begun with other code of the user's, or on other data, is computed anew.

    Args:
        reporter: told how it goes, in place of the one that ``options`` ask for.
        on_step: called after every step.

    Returns:
        The content of summary.json.

    Raises:
        ValueError: the folder holds another configuration or cannot be made, or a living process
            holds it, or it was begun with other tasks, or code or data have changed and
            ``options.keep`` is set.
        Stopped: a signal came; the state is saved.
    """
    options = options or RunOptions()
    files, settings = RunFiles(Path(out)), config.as_dict()
    tell = reporter or choose_reporter(options.quiet, options.json)
    place = choose_device(options.device)
    claim = Claim(settings, fingerprint(config), options, tell)
    with _held(files, claim):
        if files.result.exists():
            result = files.read_summary()
        else:
            with _threads(options.threads):
                seed_generators(derive(config.seed, "run"))
                run = build_run(config, place)
                _require_same_tasks(files, run.sequence)
                with Session(
                    run, files, settings, tell, options.snapshot_minutes, options.stop_on_nan
                ) as session:
                    session.train(_title(config), on_step)
                    result = run_summary(run, config)
                    if options.weights:
                        _write_weights(files, run)
                    session.write_timing()
                    files.finish([config.id], result)
                    session.drop_snapshots()
    tell.finish(result, str(out))
    return result


def train_stack(
    configs: Sequence[RunConfig],
    out: str | Path,
    options: RunOptions | None = None,
    *,
    reporter: Reporter | None = None,
    on_step: Callable[[Run], None] | None = None,
) -> list[dict[str, Any]]:
    """As `train_run`, for configs with one `stack_key`, trained as one program.

    Returns:
        The content of runs.json: id, config and summary of each config, in their order.
    """
    options = options or RunOptions()
    files, settings = StackFiles(Path(out)), {config.id: config.as_dict() for config in configs}
    tell = reporter or choose_reporter(options.quiet, options.json)
    place = choose_device(options.device)
    made_of: dict[str, str] = {}
    for config in {variant_key(config): config for config in configs}.values():
        made_of |= fingerprint(config)
    claim = Claim(settings, made_of, options, tell)
    with _held(files, claim):
        if files.result.exists():
            return files.read_runs()
        with _threads(options.threads):
            seed_generators(derive(configs[0].seed, "run"))
            stack = build_stack(configs, place)
            _require_same_tasks(files, stack.run.sequence)
            ids = {"runs": list(settings)}
            with Session(
                stack.run, files, ids, tell, options.snapshot_minutes, options.stop_on_nan
            ) as session:
                session.train(f"{len(configs)} runs of {configs[0].benchmark}", on_step)
                result, arrays = stack_summaries(stack)
                files.write_scores(arrays)
                session.write_timing()
                files.finish(list(settings), result)
                session.drop_snapshots()
    return result


@dataclass(frozen=True)
class Claim:
    """With what a folder is claimed.

    Args:
        settings: of the runs, as the folder's settings file has them.
        made_of: the user's code and data behind them, as they are now.
        options: keep, fresh, or neither.
        tell: told what is computed anew, and why.
    """

    settings: Mapping[str, Any]
    made_of: Mapping[str, str]
    options: RunOptions
    tell: Reporter


@contextmanager
def _held(files: RunFiles | StackFiles, claim: Claim) -> Iterator[None]:
    """Within ``with``, the folder is this process's and holds the runs of this claim.

    A new folder is left as it was where anything goes wrong before training begins.
    """
    with taken(files.folder, files.KIND) as folder:
        try:
            files.refuse_strangers()
            files.remove_left_drafts()
            if claim.options.fresh:
                files.clear()
            if files.begun():
                _refuse_another(files, claim)
                _make_room(files, claim)
            if files.result.exists():
                _require_undamaged(files)
            else:
                files.write_settings(claim.settings, {**_made_of(files), **claim.made_of})
            yield
        except Exception:
            if folder.new and not files.tasks.exists():
                files.settings.unlink(missing_ok=True)
                folder.leave_nothing()
            raise


def _made_of(files: RunFiles | StackFiles) -> dict[str, str]:
    """The code and data that a folder's runs were begun with."""
    return files.read_fingerprint() if files.begun() else {}


def _refuse_another(files: RunFiles | StackFiles, claim: Claim) -> None:
    """Refuse a folder that was begun with other settings, or that does not say with which."""
    if not files.settings.exists():
        raise ValueError(
            f"{files.folder} has lost its {files.SETTINGS}, so nothing says which run it was: put "
            "the file back, or give --fresh to compute it anew, or choose another --out"
        )
    try:
        difference = first_difference(files.read_settings(), claim.settings)
    except ValueError as error:
        raise ValueError(f"{files.folder}: {error}") from None
    if difference:
        key, there, here = difference
        raise ValueError(
            f"{files.folder} holds another configuration: {key} is {there!r} there and {here!r} "
            "here; choose another --out or the same settings, or replace it with --fresh"
        )


def _make_room(files: RunFiles | StackFiles, claim: Claim) -> None:
    """Remove what was computed with other code or other data than there are now."""
    changed = change(_made_of(files), claim.made_of)
    if changed is None:
        return
    if claim.options.keep:
        raise ValueError(
            f"{files.folder}: {changed} since this run was computed, and --keep refuses to compute "
            "it anew; put the file back, or leave out --keep, or choose another --out"
        )
    claim.tell.warn(f"{changed} since {files.folder} was computed: it is computed anew")
    files.clear()


def _require_same_tasks(files: RunFiles | StackFiles, sequence: TaskSequence) -> None:
    """Refuse to go on with other tasks than a run was begun with: it would be of both.

    Settings may be equal and tasks not, where another version of a benchmark cuts them otherwise.
    """
    if files.has_other_tasks(sequence.names, sequence.train_sizes, sequence.test_sizes):
        raise ValueError(
            f"{files.tasks} lists other tasks, or other sizes, than the benchmark has now; give "
            "--fresh to compute this run anew, or choose another --out"
        )


def _require_undamaged(files: RunFiles | StackFiles) -> None:
    """Refuse to call a run finished whose weights, or any other of its files, are gone."""
    if wrong := damage(files):
        raise ValueError(
            f"{files.folder} has finished, but {wrong}; put the file back, or delete "
            f"{files.RESULT} to go on from the last snapshot, or give --fresh to begin anew"
        )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _title(config: RunConfig) -> str:
    return f"{config.benchmark}, {config.method}, {config.policy}, seed {config.seed}"


def _write_weights(files: RunFiles, run: Run) -> None:
    files.write_weights(_weights(run.model))
    if run.average is not None:
        with run.average.applied():
            files.write_average(_weights(run.model))


def _weights(model: nn.Module) -> bytes:
    # Copies: tied weights share memory, which safetensors would refuse to write.
    state = {k: v.detach().cpu().clone().contiguous() for k, v in model.state_dict().items()}
    return safetensors.torch.save(state, metadata={"format": "pt"})


class Session:
    """Trains a run in its folder, having loaded the last snapshot where there is one.

    Args:
        run: freshly built.
        files: of its folder, which is held by this process.
        config: plain settings that a snapshot must agree with.
        tell: shown progress and warnings.
        minutes: least time between snapshots.
        stop_on_nan: raise where it diverges, instead of a warning.
    """

    def __init__(
        self,
        run: Run,
        files: RunFiles | StackFiles,
        config: Mapping[str, Any],
        tell: Reporter,
        minutes: float,
        stop_on_nan: bool = False,
    ) -> None:
        self.run, self.files, self.tell = run, files, tell
        self.stop_on_nan, self.warned, self.looked = stop_on_nan, False, time.monotonic()
        self.snapshots = Snapshots(files.snapshots, minutes, config, warn=tell.warn)
        # A stack's scores are arrays; they stay in the matrix, thus in the snapshot.
        self.journal = Journal(files.scores) if isinstance(files, RunFiles) else None
        self.begin = time.monotonic()
        self.seconds, self.sessions, self.started = 0.0, 0, now()
        rows = run.sequence.trained_rows
        self.work = np.concatenate(([0.0], np.cumsum(rows))) / max(float(rows.sum()), 1.0)
        try:
            self.resumed = self._resume()
        except BaseException:
            self.close()
            raise
        self.sessions += 1
        self._try_saving()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the scores; the folder is held by who made this session."""
        if self.journal is not None:
            self.journal.close()

    def train(self, title: str, on_step: Callable[[Run], None] | None = None) -> None:
        run = self.run
        ticker = Ticker(self.tell, self._moment)
        sequence = run.sequence
        self.files.write_tasks(sequence.names, sequence.train_sizes, sequence.test_sizes)
        self.tell.start(title, len(run.sequence), run.position.task if self.resumed else None)
        with StopRequest() as request:

            def after_step(run: Run) -> None:
                if request.signal is not None:
                    raise Interrupted
                if self.snapshots.due():
                    self.save()
                if run.position.step == 0:
                    self._look_for_divergence()
                    if run.position.task == 1:  # a method may make what it keeps at a task's end
                        self._try_saving()
                ticker.tick()
                if on_step is not None:
                    on_step(run)

            try:
                train(run, on_evaluation=self._record, on_step=after_step)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                raise MemoryError(self._without_memory(error)) from error
            except Interrupted:
                if not self.snapshots.never:
                    self.save()
                self.write_timing()
                text = f"stopped at task {run.position.task} of {len(run.sequence)}"
                text += f"; the same command {self._goes_on()} ({self.files.folder})"
                raise Stopped(text, request.code) from None
            finally:
                self.tell.close()
                if self.journal is not None:
                    self.journal.sync()
        self._look_for_divergence(at_once=True)
        if not self.snapshots.never:
            self.save(keep=1)  # the end is a state too; nothing will fall back from it
        if self.journal is not None:
            self.journal.require_alone()
            self.files.written[self.files.SCORES] = self.journal.sha256

    def _try_saving(self) -> None:
        """Refuse a method that no snapshot can hold before there is work to lose."""
        if not self.snapshots.never:
            self.run.method.state_dict()

    def _goes_on(self) -> str:
        """What the next call does with a run that was stopped."""
        if not self.snapshots.never:
            return "goes on from there"
        return "goes on from an earlier snapshot" if self.snapshots.files() else "begins it anew"

    def _look_for_divergence(self, at_once: bool = False) -> None:
        """Say once that weights or losses are not finite; a GPU is waited for, so now and then.

        Raises:
            FloatingPointError: where that is asked for.
        """
        recent = time.monotonic() - self.looked < LOOK_SECONDS
        if self.warned or (recent and not at_once and not self.stop_on_nan):
            return
        self.looked = time.monotonic()
        diverged = self.run.divergence.found()
        if diverged is None:
            return
        task, what = diverged
        name = self.run.sequence.names[task]
        text = f"diverged at task {task} ({name}): {what} are infinite or not a number"
        if self.stop_on_nan:
            raise FloatingPointError(
                f"{text}; a lower learning rate may help ({self.files.folder})"
            )
        self.warned = True
        told = "scores from there on mean nothing, and reports leave them out"
        if what == "losses":
            told = "the weights are finite, so reports keep its scores; look at them with care"
        self.tell.warn(f"{text}; {told}")

    def _without_memory(self, error: Exception) -> str:
        """What happened, what is left and what to do, in one sentence."""
        run, kept = self.run, self.snapshots.files()
        name = run.sequence.names[min(run.position.task, len(run.sequence) - 1)]
        left = "there is no snapshot, so that the same command begins it anew"
        if kept:
            left = (
                f"the last snapshot is kept ({kept[-1]}), and the same command goes on from there"
            )
        return (
            f"out of memory at task {run.position.task} ({name}) on {run.device}: "
            f"{str(error).partition('. ')[0]}; {left} "
            "where there is more memory: end what else uses it, or take fewer --jobs or --device "
            "cpu; half of --batch-size with --accumulate 2 needs less, in a new --out"
        )

    def save(self, keep: int = 2) -> None:
        self.run.recorder.settle()  # into the journal too
        if self.journal is not None:
            self.journal.sync()  # a snapshot must never know more lines than the disk has
        self.snapshots.save(
            {
                "run": self.run.state_dict(),
                "generators": generator_state(),
                "scores": self.journal.size if self.journal else 0,
                "scores_sha256": self.journal.sha256 if self.journal else "",
                "seconds": self._passed(),
                "sessions": self.sessions,
                "started": self.started,
            },
            keep,
        )

    def drop_snapshots(self) -> None:
        """Of a finished run that does without: one of an earlier call would be of its middle."""
        if self.snapshots.never:
            self.snapshots.clear()

    def write_timing(self) -> None:
        content = {
            "started": self.started,
            "finished": now(),
            "seconds": self._passed(),
            "sessions": self.sessions,
            "snapshots": {"count": self.snapshots.count, "seconds": self.snapshots.seconds},
            "versions": versions(),
            "hardware": hardware(self.run.device),
            "optimizer_step": optimizer_step(self.run.device),
            # seen from this one: where relative paths in the settings begin
            "directory": _seen_from(self.files.folder.resolve(), Path.cwd()),
        }
        self.files.write_timing(content)

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
        missing = _ENTRIES - state.keys()
        if not missing and isinstance(state["run"], dict):
            missing = self.run.state_dict().keys() - state["run"].keys()
        if missing:
            return f"it has no {min(missing)}"
        if self.journal is None:
            return None
        size = state["scores"]
        if self.journal.on_disk() < size:
            return f"{self.journal.path.name} has lost lines it counts on"
        if not self.journal.begins_with(size, state["scores_sha256"]):
            return f"{self.journal.path.name} has other lines than it counts on"
        return None

    def _record(self, run: Run, after: int, tasks: range, scores: dict[str, np.ndarray]) -> None:
        if self.journal is not None:
            others = {name: found for name, found in scores.items() if name != run.recorder.main}
            self.journal.append(after, tasks, scores[run.recorder.main], others)
        if len(tasks) == after + 1:
            self.tell.evaluation(after, running_rp(run.matrix))

    def _moment(self) -> tuple[Moment, float]:
        run = self.run
        task, tasks = run.position.task, len(run.sequence)
        current = min(task, tasks - 1)
        size, rows = (
            int(of[current]) for of in (run.sequence.train_sizes, run.sequence.trained_rows)
        )
        within = 0.0
        if rows:
            batch = run.settings.batch_size * run.settings.accumulate
            epochs = run.position.epoch + min(1.0, run.position.step * batch / rows)
            within = (self.work[current + 1] - self.work[current]) * epochs / run.settings.epochs
        share = float(self.work[task] + (within if task < tasks else 0.0))
        name = str(run.sequence.names[current])
        return Moment(task, tasks, name, size, running_rp(run.matrix), None), share

    def _passed(self) -> float:
        return self.seconds + time.monotonic() - self.begin


def _seen_from(folder: Path, path: Path) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive of Windows
        return str(path)


def optimizer_step(device: torch.device) -> str:
    """Which implementation of Continual Adam's step was used; all compiled ones give one result."""
    if device.type != "cpu":
        return f"{device.type}: fused kernels where they apply"
    found = variant()
    return "for-loop, or another optimizer's" if found is None else f"compiled: {found}"


def out_of_memory(error: Exception) -> bool:
    """Whether it is for lack of memory, which torch says by a text on a CPU."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "can't allocate memory" in str(error)


def running_rp(matrix: ScoreMatrix) -> float | None:
    """Mean of the latest scores of the tasks seen so far, weighted by test size, over replicas."""
    last = matrix.last if matrix.last.ndim == 1 else matrix.last.reshape(-1, len(matrix)).mean(0)
    seen = ~np.isnan(last) & (matrix.test_sizes > 0)
    return float(np.average(last[seen], weights=matrix.test_sizes[seen])) if seen.any() else None
