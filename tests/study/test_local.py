"""Studies in several processes: the same files as in one, whoever dies and when Ctrl-C comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from longtail import cli
from longtail.study import local

STUDY = """
    benchmark = "toy"
    methods = ["finetune"]
    policies = ["continual", "new"]
    seeds = "0-1"
    stack = false
    [data]
    tasks = 4
    zero_shot = 0
    """


def study_file(folder: Path, methods: str = '["finetune"]') -> Path:
    path = folder / "small.toml"
    path.write_text(textwrap.dedent(STUDY.replace('["finetune"]', methods)))
    return path


DEADLY = '''
import os
import signal

from longtail.methods import Finetune

class Deadly(Finetune):
    """Ends its process in the middle of a run, as a lack of memory would."""

    def end_task(self, train):
        os.kill(os.getpid(), signal.SIGKILL)
'''


def test_a_killed_worker_fails_its_job_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deadly_method.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    path = study_file(tmp_path, '["deadly_method:Deadly", "finetune"]')
    command = ["study", str(path), "--out", str(tmp_path / "out"), "--jobs", "2", "--no-report"]
    assert cli.main([*command, "--seeds", "0"]) == 1
    assert "2 runs computed, 0 were finished before; 2 failed" in capsys.readouterr().out
    errors = [json.loads(p.read_text()) for p in (tmp_path / "out").glob("runs/*/error.json")]
    assert [e["error"] for e in errors] == ["its process died with exit code -9"] * 2
    assert len(list((tmp_path / "out").glob("runs/*/summary.json"))) == 2


LATE = """
import os
import signal

from longtail.methods import Finetune
from longtail.study import jobs

class Late(Finetune):
    def end_task(self, train):
        jobs._free_memory = lambda: os.kill(os.getpid(), signal.SIGKILL)  # when all is written
"""


def test_a_run_whose_process_was_killed_after_its_end_has_no_error_beside_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "late_method.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    path = study_file(tmp_path, '["late_method:Late"]')
    command = ["study", str(path), "--out", str(tmp_path / "out"), "--jobs", "2", "--no-report"]
    assert cli.main([*command, "--seeds", "0"]) == 1
    assert len(list((tmp_path / "out").glob("runs/*/summary.json"))) == 2
    assert list((tmp_path / "out").glob("runs/*/error.json")) == []
    capsys.readouterr()
    assert cli.main([*command, "--seeds", "0"]) == 0
    assert "0 runs computed, 2 were finished before" in capsys.readouterr().out


class Pipe:
    """The worker's end of a pipe that has a job for it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def recv(self) -> str:
        return "a job"

    def send(self, message: tuple[str, dict[str, Any]]) -> None:
        self.sent.append(message)


def test_an_interrupt_that_came_while_a_worker_began_stops_it_before_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "train_job", lambda *_: pytest.fail("it took the job"))
    monkeypatch.setattr(local, "_placed", lambda slot, workers, options: options)
    monkeypatch.setattr(os, "setpgrp", lambda: None)
    pipe: Any = Pipe()
    before = signal.getsignal(signal.SIGINT)
    try:
        with local._interrupts_blocked():
            signal.raise_signal(signal.SIGINT)  # to this thread: a test worker has others
            local.take_jobs(pipe, 0, 1, tmp_path, local.JobOptions())
    finally:
        signal.signal(signal.SIGINT, before)
    assert pipe.sent == [("stopped", {})]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.slow
def test_ctrl_c_in_the_first_moments_ends_without_a_traceback(tmp_path: Path) -> None:
    """As from a terminal: every process of the group hears it, also one that only imports yet."""
    command = [sys.executable, "-m", "longtail", "study", study_file(tmp_path), "--jobs", "2"]
    command += ["--no-report", "--out", tmp_path / "out"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        while not _workers(process.pid):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert (
        said == "longtail: 0 runs computed, 0 were finished before; 4 left; "
        "the same command goes on\n"
    )


def _workers(parent: int) -> list[str]:
    """Processes that were started to take jobs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = path.read_text().rpartition(")")[2].split()
            if int(after[1]) == parent:
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    return [line for line in found if "spawn_main" in line]


@pytest.mark.parametrize("own_group", [True, False])
def test_each_interrupt_is_forwarded_once_and_only_to_workers_with_a_group_of_their_own(
    own_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, on Windows, a worker hears the terminal itself, and `os.kill` would end it."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(local, "OWN_GROUP", own_group)
    monkeypatch.setattr(os, "kill", lambda *args: sent.append(args))
    stop = local._Stop()
    stop.asked = 1
    stop.forward([5, 6])
    stop.forward([5, 6])  # which they have heard already
    once = [(5, signal.SIGINT), (6, signal.SIGINT)] if own_group else []
    assert sent == once
    stop.asked = 3  # twice more, before the parent had time to forward
    stop.forward([5, 6])
    assert sent == once * 3
