"""New processes of Python that find modules where this one finds them.

`multiprocessing` begins a process as `python -c`, which looks for modules in the current folder
first, and gives it this process's path only then: a `threading.py` that lies there would be run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

SAFE_PATH = "PYTHONSAFEPATH"  # with it Python leaves the current folder alone


def new_process(target: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
    """A process from nothing, which ends with this one; to be started within `safe_path`."""
    context = multiprocessing.get_context("spawn")
    before = os.environ.get(SAFE_PATH)
    return context.Process(target=_begin, args=(before, target, args), daemon=True)


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Processes of Python started within ``with`` do not look into the current folder."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        _restore(before)


def _begin(before: str | None, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    _restore(before)  # what a user's code starts from here shall find it as it was
    target(*args)


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(SAFE_PATH, None)
    else:
        os.environ[SAFE_PATH] = before
