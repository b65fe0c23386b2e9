"""What is said to the library of threads before torch loads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from longtail.support import threads


@pytest.fixture
def undecided(monkeypatch):
    for name in threads.DECIDED:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.usefixtures("undecided")
def test_threads_that_wait_give_their_core_away_soon():
    threads.share_cores()
    assert int(os.environ["GOMP_SPINCOUNT"]) <= 1000
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(
    ("name", "value"), [("GOMP_SPINCOUNT", "30000"), ("OMP_WAIT_POLICY", "active")]
)
def test_a_user_who_has_decided_is_left_alone(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    threads.share_cores()
    assert {n: os.environ[n] for n in threads.DECIDED if n in os.environ} == {name: value}


@pytest.mark.usefixtures("undecided")
def test_after_torch_was_imported_it_would_change_nothing_and_is_not_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    threads.share_cores()
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["study", "no such file.toml"], []),
        (["study", "no such file.toml", "--jobs", "2"], ["False", "1000"]),
    ],
)
def test_it_is_said_for_runs_beside_each_other_and_before_torch_is_loaded(command, said):
    """GCC's library reads its variables once: later would be too late."""
    program = """
import os, sys
from longtail.support import threads
said = threads.share_cores
def share_cores():
    said()
    print("torch" in sys.modules, os.environ["GOMP_SPINCOUNT"])
threads.share_cores = share_cores
from longtail.cli import main
sys.exit(main(sys.argv[1:]))
"""
    words = [sys.executable, "-c", program, *command]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.split() == said
