"""A study's jobs on this machine: in this process, or in several.

Either function reports every job's start,
progress and end to the overview; a failed job does not stop the others. On Ctrl-C running jobs save
their state, and `KeyboardInterrupt` is raised once they have.

The processes are a small pool of our own, because `concurrent.futures` and loky lack three things
that a study needs:

- When a worker dies, both fail every job that is pending (`BrokenProcessPool`). Here the job it had
  is recorded as failed, another worker takes its place and the other jobs go on.
- Neither can ask a busy worker to stop. Here Ctrl-C reaches each running job, which then saves.
- Neither brings back what a job says before it ends. Here every worker has a pipe for its progress.

An executor of one process for each worker would mend only the first of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from longtail.study.display import Overview
from longtail.study.jobs import Job, JobOptions, train_job
from longtail.support.machine import usable_cores
from longtail.support.processes import new_process, safe_path
from longtail.support.signals import SIGNALS

OWN_GROUP = hasattr(os, "setpgrp")  # POSIX
BLOCKS = hasattr(signal, "pthread_sigmask")


def train_jobs_here(
    jobs: Sequence[Job], out: Path, options: JobOptions, overview: Overview
) -> None:
    """Trains one job after the other in this process."""
    for job in jobs:

        def send(kind: str, content: dict[str, Any], job: Job = job) -> None:
            overview.event(kind, job, content)

        try:
            train_job(job, out, options, send)
        except KeyboardInterrupt:
            overview.event("stopped", job, {})
            raise


def train_jobs_in_processes(
    jobs: Sequence[Job], out: Path, options: JobOptions, overview: Overview, workers: int
) -> None:
    """Trains jobs in `workers` processes, each pinned to its share of the cores."""
    waiting = deque(jobs)
    workers = min(workers, len(jobs))
    with _Stop() as stop:
        slots = [_Worker(slot, workers, out, options) for slot in range(workers)]
        while True:
            for worker in slots:
                if worker.job is None and waiting and not stop.asked:
                    worker.give(waiting.popleft())
            busy = [worker for worker in slots if worker.job is not None]
            if not busy:
                break
            stop.forward([w.process.pid for w in busy if w.process.pid is not None])
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=0.2)
            for slot, worker in enumerate(slots):
                said = worker.pipe in ready or worker.process.sentinel in ready
                if said and not worker.listen(overview) and waiting and not stop.asked:
                    slots[slot] = _Worker(slot, workers, out, options)
    for worker in slots:
        worker.pipe.close()  # the process reads the end of its pipe and leaves
    for worker in slots:
        worker.process.join(timeout=10)
    if stop.asked:
        raise KeyboardInterrupt(overview.summary())


class _Worker:
    """A process that takes one job at a time, and the pipe to it."""

    def __init__(self, slot: int, workers: int, out: Path, options: JobOptions) -> None:
        self.job: Job | None = None
        self.out = out
        self.pipe, self.process = _start(slot, workers, out, options)

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # it is no more, which `listen` will find out
            self.pipe.send(job)

    def listen(self, overview: Overview) -> bool:
        """Passes on what the worker said; False when it has left and takes no more jobs."""
        try:
            while self.job is not None and self.pipe.poll():
                kind, content = self.pipe.recv()
                overview.event(kind, self.job, content)
                if kind in ("finished", "failed", "stopped"):
                    self.job = None
                if kind == "stopped":
                    return False
        except (EOFError, OSError):
            self.process.join(timeout=10)
            if self.job is not None:
                error = f"its process died with exit code {self.process.exitcode}"
                files = self.job.files(self.out)
                if not files.result.exists():  # else it has come to its end, and nobody was told
                    files.record_failure(error)
                overview.event("failed", self.job, {"error": error})
                self.job = None
            return False
        return True


class _Stop:
    """Ctrl-C as a request: forwarded to the workers, once for each time it is pressed."""

    def __init__(self) -> None:
        self.asked = 0
        self._told = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1

    def forward(self, processes: Sequence[int]) -> None:
        while self._told < self.asked:
            self._told += 1
            # Where a worker has no group of its own, Windows, it hears the terminal by itself; and
            # there `os.kill` would end it at once.
            for process in processes if OWN_GROUP else ():
                os.kill(process, signal.SIGINT)


def _start(
    slot: int, workers: int, out: Path, options: JobOptions
) -> tuple[Connection, BaseProcess]:
    """A new process, from nothing: a copy of this one would share its threads and its GPU."""
    ours, theirs = multiprocessing.Pipe()
    process = new_process(take_jobs, (theirs, slot, workers, out, options))
    with safe_path(), _interrupts_blocked():
        process.start()
    theirs.close()
    return ours, process


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process started within `with` leaves Ctrl-C pending until it lets it through.

    Else one that comes while it imports would end in a traceback, halfway through some package, as
    it does on Windows, where nothing can be blocked.
    """
    if not BLOCKS:
        yield
        return
    resource_tracker.ensure_running()  # being started together with a process, it would unblock
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_jobs(pipe: Connection, slot: int, workers: int, out: Path, options: JobOptions) -> None:
    """A worker's whole life: jobs from the pipe until it is closed, or until asked to stop.

    Its own process group keeps the terminal's Ctrl-C to the parent, which forwards it.
    """
    if OWN_GROUP:
        os.setpgrp()
    options = _placed(slot, workers, options)

    def send(kind: str, content: dict[str, Any]) -> None:
        try:
            pipe.send((kind, content))
        except OSError:  # the parent is gone: save and stop, as if asked to
            signal.raise_signal(signal.SIGINT)

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if BLOCKS:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # one may have come already
        while True:
            train_job(pipe.recv(), out, options, send)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again: it is leaving
        with contextlib.suppress(OSError):  # saved all the same where nobody listens any more
            pipe.send(("stopped", {}))
    except (EOFError, OSError):  # there is no more work
        return


def _placed(slot: int, workers: int, options: JobOptions) -> JobOptions:
    """The options of one worker, which is pinned to its cores: `slot`, `slot + workers`, ...

    Where no device is named, the workers take the GPUs of the machine in turn.
    """
    import torch

    cores = usable_cores()
    mine = cores[slot::workers] or [cores[slot % len(cores)]]
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, mine)
    gpus = torch.cuda.device_count() if options.device == "auto" else 0
    device = f"cuda:{slot % gpus}" if gpus > 1 else options.device
    return dataclasses.replace(options, device=device, threads=options.threads or len(mine))
