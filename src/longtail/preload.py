"""The processes that will share a study's jobs begin to import while this one is still planning.

Importing torch takes seconds. A fork server does it once, beside the parent's own imports, and each
worker is a copy of it, ready at once.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.context import BaseContext

_METHOD = "forkserver"
_begun = False


def wanted(argv: Sequence[str]) -> bool:
    """Whether a command line asks for several local processes."""
    jobs = [a.partition("=")[2] for a in argv if a.startswith("--jobs=")]
    jobs += [b for a, b in pairwise(argv) if a == "--jobs"]
    elsewhere = "--dry-run" in argv or "ray" in argv or "--engine=ray" in argv
    return argv[:1] == ["study"] and jobs not in ([], ["1"]) and not elsewhere


def begin(gpu: bool) -> None:
    """Start the fork server, where the system has one; what only a GPU needs may be missing."""
    global _begun
    if _begun or _METHOD not in multiprocessing.get_all_start_methods():
        return
    from multiprocessing import forkserver

    modules = ["longtail.run_folder", "longtail.engines", *(["triton.language"] if gpu else [])]
    forkserver.set_forkserver_preload(modules)
    # Ctrl-C is the parent's, which tells the workers: see `receive_interrupts`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _begun = True


def context() -> BaseContext:
    """How to start workers: from the fork server if it was begun, else from nothing."""
    return multiprocessing.get_context(_METHOD if _begun else "spawn")


def receive_interrupts() -> None:
    """In a worker: take interrupts again, which its fork server was made deaf to."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
