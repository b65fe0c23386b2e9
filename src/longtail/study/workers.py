"""The processes that will share a study's jobs begin to import while this one is still planning.

Importing torch takes seconds. A fork server does it once, beside the parent's own imports, and each
worker is a copy of it, ready at once. Where there may be a GPU, some workers are started as soon as
that is done and make it ready while the parent plans.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import signal
import threading
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

_METHOD = "forkserver"
_EARLY = 2  # workers that are started before it is known how many there is work for
_WORK = "longtail.study.local", "work"
_begun = False


class _Early(threading.Thread):
    """Starts workers: each waits until the fork server has imported all, and this one with it."""

    def __init__(self, count: int, device: str) -> None:
        super().__init__(daemon=True)
        self.count, self.device = count, device
        self.started: dict[int, tuple[Connection, BaseProcess]] = {}

    def run(self) -> None:
        with contextlib.suppress(Exception):  # whoever asks for the worker will try again
            for slot in range(self.count):
                self.started[slot] = _start(slot, self.device)


_early: _Early | None = None


def wanted(argv: Sequence[str]) -> bool:
    """Whether a command line asks for several local processes."""
    elsewhere = "--dry-run" in argv or "ray" in argv or "--engine=ray" in argv
    return argv[:1] == ["study"] and _value(argv, "--jobs") not in (None, "1") and not elsewhere


def _value(argv: Sequence[str], flag: str) -> str | None:
    """What a flag is given, the last time it is."""
    found = [b for a, b in pairwise(argv) if a == flag]
    found += [a.partition("=")[2] for a in argv if a.startswith(f"{flag}=")]
    return found[-1] if found else None


def begin(argv: Sequence[str]) -> None:
    """Start the fork server, where the system has one, and for a GPU the first workers."""
    global _begun, _early
    if _begun or _METHOD not in multiprocessing.get_all_start_methods():
        return
    from multiprocessing import forkserver, resource_tracker

    device, jobs = _value(argv, "--device") or "auto", _value(argv, "--jobs") or ""
    gpu = device != "cpu"
    # what only a GPU needs may be missing
    modules = [
        "longtail.runs.folder",
        "longtail.study.local",
        *(["triton.language"] if gpu else []),
    ]
    forkserver.set_forkserver_preload(modules)
    # Started with the fork server it would unblock interrupts, just before that is started.
    resource_tracker.ensure_running()
    # Ctrl-C is the parent's, which tells the workers: see `receive_interrupts`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
        _begun = True
        if gpu and jobs.isdigit():  # the thread takes no interrupts either
            _early = _Early(min(int(jobs), _EARLY), device)
            _early.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker(slot: int, device: str) -> tuple[Connection, BaseProcess]:
    """A process that runs `engines.work`, perhaps one started early, and the pipe to it."""
    early = _early
    if early is not None and early.device == device:
        early.join()
        if slot in early.started:
            pipe, process = early.started.pop(slot)
            if process.is_alive():
                return pipe, process
    return _start(slot, device)


def dismiss() -> None:
    """Send away the early workers that nobody took."""
    if _early is not None:
        _early.join()
        for pipe, _ in _early.started.values():
            pipe.close()  # the process reads the end of its pipe and leaves
        _early.started.clear()


def _start(slot: int, device: str) -> tuple[Connection, BaseProcess]:
    made: Any = context()
    pipe, theirs = made.Pipe()
    process = made.Process(target=_attend, args=(theirs, slot, device), daemon=True)
    process.start()
    theirs.close()
    return pipe, process


def _attend(pipe: Connection, slot: int, device: str) -> None:
    module, name = _WORK
    getattr(importlib.import_module(module), name)(pipe, slot, device)


def context() -> BaseContext:
    """How to start workers: from the fork server if it was begun, else from nothing."""
    return multiprocessing.get_context(_METHOD if _begun else "spawn")


def receive_interrupts() -> None:
    """In a worker: take interrupts again, which its fork server was made deaf to.

    One that came before, with the parent's, is forgotten: to ignore a signal discards it.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
