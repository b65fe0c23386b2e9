"""What executes a study's jobs: this process, or several processes on this machine.

An engine is a function `run(jobs, out, options, overview) -> None`. It reports every job's start,
progress and end to the overview; a failed job does not stop the others. On Ctrl-C running jobs save
their state, and `KeyboardInterrupt` is raised once they have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from longtail.optim.kernels import kernel_for
from longtail.runs.progress import Moment, Reporter
from longtail.study import workers as preload
from longtail.study.display import Overview
from longtail.study.jobs import Job, Options, perform, record_failure
from longtail.support.machine import choose_device, usable_cores

Send = Callable[[str, dict[str, Any]], None]


class Forward(Reporter):
    """Passes what a run says on to the study's overview."""

    every = 0.5

    def __init__(self, send: Send) -> None:
        self.send = send
        self.rp: float | None = None

    def update(self, moment: Moment) -> None:
        self.send("progress", asdict(moment))

    def warn(self, text: str) -> None:
        self.send("warning", {"text": text})

    def finish(self, summary: Any, out: str) -> None:
        self.rp = summary.get("RP")


def attempt(job: Job, out: Path, options: Options, send: Send) -> None:
    """One job from start to end, wherever it runs."""
    send("start", {})
    tell = Forward(send)
    error = perform(job, out, options, tell)
    if error is None:
        send("finished", {"rp": tell.rp})
    else:
        send("failed", {"error": error})


def run_here(jobs: Sequence[Job], out: Path, options: Options, overview: Overview) -> None:
    """One after the other in this process."""
    for job in jobs:

        def send(kind: str, content: dict[str, Any], job: Job = job) -> None:
            overview.event(kind, job, content)

        try:
            attempt(job, out, options, send)
        except KeyboardInterrupt:
            overview.event("stopped", job, {})
            raise


class _Worker:
    """A process that takes one job at a time."""

    def __init__(self, slot: int, workers: int, out: Path, options: Options) -> None:
        self.job: Job | None = None
        self.pipe, self.process = preload.worker(slot, options.device)
        with contextlib.suppress(OSError):  # it is no more: whoever listens will find out
            self.pipe.send((workers, out, options, list(sys.path)))

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):
            self.pipe.send(job)


def run_local(
    jobs: Sequence[Job], out: Path, options: Options, overview: Overview, workers: int
) -> None:
    """In `workers` processes, each pinned to its share of the cores."""
    waiting = deque(jobs)
    workers = min(workers, len(jobs))
    slots = [_Worker(i, workers, out, options) for i in range(workers)]
    preload.dismiss()
    with _Stop() as stop:
        while True:
            for worker in slots:
                if worker.job is None and waiting and not stop.asked:
                    worker.give(waiting.popleft())
            busy = [worker for worker in slots if worker.job is not None]
            if not busy:
                break
            stop.forward([w.process.pid for w in busy if w.process.pid is not None])
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=0.2)
            for i, worker in enumerate(slots):
                said = worker.pipe in ready or worker.process.sentinel in ready
                if said and not _listen(worker, out, overview) and waiting and not stop.asked:
                    slots[i] = _Worker(i, workers, out, options)
    for worker in slots:
        worker.pipe.close()  # the process reads the end of its pipe and leaves
    for worker in slots:
        worker.process.join(timeout=10)
    if stop.asked:
        raise KeyboardInterrupt(overview.summary())


def _listen(worker: _Worker, out: Path, overview: Overview) -> bool:
    """Passes on what a worker said; False when it is no more."""
    try:
        while worker.job is not None and worker.pipe.poll():
            kind, content = worker.pipe.recv()
            overview.event(kind, worker.job, content)
            if kind in ("finished", "failed", "stopped"):
                worker.job = None
    except (EOFError, OSError):
        worker.process.join(timeout=10)
        if worker.job is not None:
            error = f"its process died with exit code {worker.process.exitcode}"
            record_failure(out / worker.job.folder, error)
            overview.event("failed", worker.job, {"error": error})
            worker.job = None
        return False
    return True


class _Stop:
    """Ctrl-C as a request: forwarded to the workers, once for each time it is pressed."""

    def __init__(self) -> None:
        self.asked = 0
        self._told = 0
        self._before: Any = None

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = [signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM)]
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), self._before, strict=True):
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1

    def forward(self, processes: Sequence[int]) -> None:
        while self._told < self.asked:
            self._told += 1
            for process in processes:
                os.kill(process, signal.SIGINT)


def work(pipe: Connection, slot: int, device: str) -> None:
    """A worker's whole life. Its own process group keeps the terminal's Ctrl-C to the parent."""
    os.setpgrp()
    preload.receive_interrupts()
    device = _in_turn(slot, device)
    threading.Thread(target=_wake, args=(device,), daemon=True).start()
    try:
        workers, out, options, sys.path[:] = pipe.recv()
    except (EOFError, OSError):  # there is no work for it
        return
    options = _pin(slot, workers, dataclasses.replace(options, device=device))

    def send(kind: str, content: dict[str, Any]) -> None:
        try:
            pipe.send((kind, content))
        except OSError:  # the parent is gone: save and stop, as if asked to
            signal.raise_signal(signal.SIGINT)

    while True:
        try:
            job = pipe.recv()
            attempt(job, out, options, send)
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):  # saved all the same where nobody listens any more
                pipe.send(("stopped", {}))
        except (EOFError, OSError):
            return


def _wake(device: str) -> None:
    """Make a GPU ready while a worker waits for its first run and builds it: context, libraries
    and Triton take seconds."""
    import torch

    with contextlib.suppress(Exception):  # the job itself will say what is wrong
        place = choose_device(device)
        if place.type == "cuda":
            ones = torch.ones(1, 8, 8, device=place)
            torch.bmm(ones, ones)
            kernel_for(ones.device, [ones])


def _in_turn(slot: int, device: str) -> str:
    """The GPUs of a machine in turn, where none is named."""
    import torch

    count = torch.cuda.device_count() if device == "auto" else 0
    return f"cuda:{slot % count}" if count > 1 else device


def _pin(slot: int, workers: int, options: Options) -> Options:
    """Cores `slot`, `slot + workers`, ... of those this process may use."""
    cores = usable_cores()
    mine = cores[slot::workers] or [cores[slot % len(cores)]]
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, mine)
    return dataclasses.replace(options, threads=options.threads or len(mine))
