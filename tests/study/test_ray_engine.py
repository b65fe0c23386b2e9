"""Studies on a Ray cluster of two workers on this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.folders import contents
from longtail.study.display import Overview
from longtail.study.expand import expand
from longtail.study.file import read_study
from longtail.study.jobs import JobOptions, make_jobs
from longtail.study.local import train_jobs_here
from longtail.study.ray_engine import pack, unpack
from longtail.support.files import FolderBusyError, FolderLock

STUDY = """
benchmark = "toy"
methods = ["finetune", "derpp"]
policies = ["continual"]
seeds = "0-1"
[data]
tasks = 300
[train]
evaluate_every = 50
"""


def test_without_an_address_ray_starts_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ray = pytest.importorskip("ray")
    from longtail.study.ray_engine import train_jobs_on_ray

    class AskedError(Exception): ...

    def init(address: str, **_: object) -> None:
        raise AskedError(address)

    monkeypatch.setattr(ray, "init", init)
    for address, expected in ((None, "local"), ("auto", "auto")):
        with pytest.raises(AskedError, match=expected):
            train_jobs_on_ray([], tmp_path, JobOptions(), Overview([], 0), {}, address=address)


@pytest.mark.parametrize("address", ["localhost:1", "auto"])
def test_an_address_where_nobody_answers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
):
    ray = pytest.importorskip("ray")
    from longtail.study.ray_engine import train_jobs_on_ray

    def init(**_: object) -> None:
        assert address == "auto", "asked Ray, which would try for minutes"
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify one.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ValueError, match=rf"^--address {address}: no Ray cluster answers \(.+\)$"):
        train_jobs_on_ray([], tmp_path, JobOptions(), Overview([], 0), {}, address=address)


def test_folders_travel_whole(tmp_path: Path):
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "snapshot").mkdir(parents=True)
    (source / "scores.jsonl").write_text("{}\n")
    new, old = (f"0000000{number}-{'0' * 64}.pt" for number in (2, 1))
    (source / "snapshot" / new).write_bytes(b"new")
    (source / ".lock").write_text("12")
    (target / "snapshot").mkdir(parents=True)
    (target / "snapshot" / old).write_bytes(b"old")
    (target / "error.json").touch()
    (target / "notes.txt").write_text("mine")
    (tmp_path / "mine.txt").write_text("mine")
    (target / "scores.jsonl").symlink_to(tmp_path / "mine.txt")
    unpack(pack(source), target)
    assert contents(target) == {"scores.jsonl": b"{}\n", "notes.txt": b"mine"}
    assert [p.name for p in target.glob("snapshot/*")] == [new]
    assert (tmp_path / "mine.txt").read_text() == "mine"
    unpack(pack(tmp_path / "nothing"), target)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("storage", ["shared", "fetch"])
def test_killed_worker_is_replaced_and_the_files_are_the_same(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
):
    ray = pytest.importorskip("ray")
    from longtail.study import ray_engine as cluster

    monkeypatch.setattr(cluster, "SEND_SECONDS", 0.5)
    (tmp_path / "study.toml").write_text(STUDY)
    runs = expand(read_study(tmp_path / "study.toml"))
    options = JobOptions(device="cpu", threads=1, snapshot_minutes=0)  # at every step
    here = tmp_path / "here"
    jobs = make_jobs(runs, here, stack=False, earlier={})
    train_jobs_here(jobs, here, options, Overview(jobs, 0))

    out = tmp_path / "cluster"
    shown = Overview(jobs, 0)
    killed: list[int] = []
    starts: list[str] = []
    event = shown.event

    def note(kind: str, job, content) -> None:
        if kind == "start":
            starts.append(job.id)
        event(kind, job, content)

    monkeypatch.setattr(shown, "event", note)

    def kill_one() -> None:
        while not killed:
            for state in _tasks_of(ray):
                if shown.states[jobs[0].id].done > 100:
                    os.kill(state, signal.SIGKILL)
                    killed.append(state)
                    return
            time.sleep(0.1)

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        killer = threading.Thread(target=kill_one, daemon=True)
        killer.start()
        cluster.train_jobs_on_ray(jobs, out, options, shown, {"cpus": 1}, storage=storage)
    finally:
        ray.shutdown()
    assert killed
    assert len(starts) == len(jobs) + 1
    assert shown.count("finished") == 4
    assert contents(out) == contents(here)
    timings = [json.loads(path.read_text()) for path in out.glob("runs/*/timing.json")]
    assert sorted(t["sessions"] for t in timings) == [1, 1, 1, 2]  # it went on, not from the start


def _tasks_of(ray) -> list[int]:
    """Processes that are executing a run, found by the title Ray gives them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::train_job_remotely" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_lost_head_node_ends_the_study_and_leaves_what_was_done(tmp_path: Path):
    """The machine is gone, workers and all, and Ray gives up after a minute.

    The same command, on a new cluster or none, goes on.
    """
    pytest.importorskip("ray")
    file, out = tmp_path / "study.toml", tmp_path / "out"
    text = STUDY.replace('"0-1"', '"0"').replace("[data]", "stack = false\n[data]")
    file.write_text(text + "[resources]\ncpus = 1\n")  # threads, whose number may change bits
    command = [sys.executable, "-m", "longtail", "study", str(file), "--device", "cpu", "--quiet"]
    command += ["--no-report", "--snapshot-minutes", "0", "--out"]
    with subprocess.Popen([*command, str(out), "--engine", "ray"], stderr=subprocess.PIPE) as study:
        while study.poll() is None and not any(out.glob("runs/*/snapshot/*.pt")):
            time.sleep(0.2)
        node = _descendants(study.pid)  # the node's own processes first, then its workers
        head = [pid for pid in node if b"gcs_server" in _command_of(pid)]
        assert head
        for pid in node:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        study.communicate(timeout=180)
    assert study.returncode not in (0, 2)
    assert any(out.glob("runs/*/snapshot/*.pt"))
    _wait_for_free_folders(out)
    again = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    timings = [json.loads(path.read_text()) for path in out.glob("runs/*/timing.json")]
    assert max(timing["sessions"] for timing in timings) == 2  # it went on, not from the start
    whole = tmp_path / "whole"
    assert subprocess.run([*command, str(whole)], timeout=300).returncode == 0
    assert contents(out / "runs") == contents(whole / "runs")


def _descendants(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in listed] + [x for c in listed for x in _descendants(int(c))]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _wait_for_free_folders(out: Path, seconds: float = 60.0) -> None:
    """Until the workers of the lost node, which end by themselves, hold no folder any more."""
    end = time.monotonic() + seconds
    for folder in out.glob("runs/*"):
        while True:
            try:
                with FolderLock(folder):
                    break
            except FolderBusyError:
                assert time.monotonic() < end
                time.sleep(0.5)
