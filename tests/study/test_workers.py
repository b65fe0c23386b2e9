"""Workers that import beside their parent: when there are any, and that they work."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from longtail.study import workers as preload


@pytest.mark.parametrize(
    ("line", "several"),
    [
        ("study a.toml --jobs 4", True),
        ("study a.toml --jobs=2", True),
        ("study a.toml", False),
        ("study a.toml --jobs 1", False),
        ("study a.toml --jobs 4 --dry-run", False),
        ("study a.toml --jobs 4 --engine ray", False),
        ("report a --jobs 4", False),
    ],
)
def test_only_several_local_processes_are_prepared(line: str, several: bool) -> None:
    assert preload.wanted(line.split()) is several


def test_without_a_start_workers_begin_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "_begun", False)  # another test may have started it
    assert preload.context().get_start_method() == "spawn"


@pytest.mark.parametrize(
    ("line", "device"),
    [("--device cuda:1 --jobs 2", "cuda:1"), ("--device=cpu", "cpu"), ("--jobs 2", None)],
)
def test_the_device_is_read_before_there_is_a_parser(line: str, device: str | None) -> None:
    assert preload._value(line.split(), "--device") == device


EARLY = """
import sys
from longtail.study import workers as preload

if __name__ == "__main__":
    preload.begin(["study", "a.toml", "--jobs", "3", "--device", "auto"])
    early = preload._early
    early.join()
    assert sorted(early.started) == [0, 1], early.started
    pids = [process.pid for _, process in early.started.values()]
    first = preload.worker(0, "auto")
    assert first[1].pid == pids[0]
    left = early.started[1][1]
    preload.dismiss()
    left.join(30)
    assert left.exitcode == 0, left.exitcode
    assert first[1].is_alive()
    other = preload.worker(1, "auto")
    assert other[1].pid not in pids
    for pipe, process in (first, other):
        pipe.close()
        process.join(30)
        assert process.exitcode == 0
    early = preload._early = preload._Early(1, "auto")
    early.start()
    early.join()
    early.started[0][1].kill()
    early.started[0][1].join(30)
    pipe, process = preload.worker(0, "auto")  # another, for one that died
    assert process.is_alive()
    pipe.close()
    process.join(30)
    assert "torch" not in sys.modules
"""


def test_workers_that_came_early_are_taken_or_sent_away(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    done = subprocess.run([sys.executable, tmp_path / "early.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


DEAF = """
import os
import signal
from multiprocessing import forkserver
from pathlib import Path

from longtail.study import workers as preload


def work(pipe, slot, device):
    os.kill(os.getpid(), signal.SIGINT)  # as from a terminal, while it is still deaf
    preload.receive_interrupts()
    pipe.send("forgotten")
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pipe.send("heard")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has none
    preload.begin(["study", "a.toml", "--jobs", "2", "--device", "cpu"])
    status = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert blocked >> (signal.SIGINT - 1) & 1, status
    pipe, theirs = preload.context().Pipe()
    process = preload.context().Process(target=work, args=(theirs, 0, "cpu"), daemon=True)
    process.start()
    theirs.close()
    assert [pipe.recv(), pipe.recv()] == ["forgotten", "heard"]
    process.join(30)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux tells")
def test_interrupts_are_the_parents_until_a_worker_works(tmp_path: Path) -> None:
    """Ctrl-C in the first seconds would end in the fork server's traceback otherwise."""
    (tmp_path / "deaf.py").write_text(DEAF)
    done = subprocess.run([sys.executable, tmp_path / "deaf.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_study_in_two_processes_computes_what_one_computes(tmp_path: Path) -> None:
    study = tmp_path / "small.toml"
    text = """
        benchmark = "toy"
        optimizers = ["continual", "reset"]
        seeds = "0-1"
        stack = false
        [data]
        tasks = 4
        zero_shot = 0
        """
    study.write_text(textwrap.dedent(text))
    found = {}
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        command = [sys.executable, "-m", "longtail.cli", "study", str(study), "--quiet"]
        device = "auto" if jobs == "2" else "cpu"  # for which workers start early
        command += ["--out", str(out), "--no-report", "--device", device, "--jobs", jobs]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        found[jobs] = {p.parent.name: p.read_bytes() for p in out.glob("runs/*/summary.json")}
    assert len(found["1"]) == 4
    assert found["1"] == found["2"]
