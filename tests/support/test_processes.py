"""New processes look for modules where this one does, and leave no trace of how they began."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

import pytest

from longtail.support.processes import SAFE_PATH, new_process, safe_path


def tell(pipe: Connection) -> None:
    pipe.send((os.environ.get(SAFE_PATH), sys.path))


@pytest.mark.parametrize("before", [None, "1"])
def test_a_process_has_the_path_and_the_environment_of_the_one_that_starts_it(monkeypatch, before):
    monkeypatch.delenv(SAFE_PATH, raising=False)
    if before is not None:
        monkeypatch.setenv(SAFE_PATH, before)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    ours, theirs = multiprocessing.Pipe()
    process = new_process(tell, (theirs,))
    with safe_path():
        process.start()
        assert os.environ[SAFE_PATH] == "1"
    assert os.environ.get(SAFE_PATH) == before
    assert ours.recv() == (before, sys.path)
    process.join()
    for end in (ours, theirs):
        end.close()
