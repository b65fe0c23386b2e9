"""What is in a folder already: the user's own files stay, and ours are what we wrote.

Every test calls the command line in a process of its own, as a user does, in folders that hold what
users' folders hold.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and signals of POSIX")

RUN = ("run", "toy", "--tasks", "4", "--zero-shot", "0", "--device", "cpu", "--quiet")
STUDY = """
benchmark = "toy"
methods = ["finetune"]
seeds = "0-1"
stack = false
[data]
tasks = 4
zero_shot = 0
"""
OURS = ("--device", "cpu", "--quiet")
PLAIN = ("--no-figures", "--no-page", "--quiet")
MINE = b"mine, and of months of work"

# A user's method that waits in the middle of a run, for as long as there is no file `go`.
WAITS = """
import time
from pathlib import Path

from longtail.methods import Finetune


class Waits(Finetune):
    def end_task(self, *args, **kwargs):
        Path("here").touch()
        while not Path("go").exists():
            time.sleep(0.05)
        return super().end_task(*args, **kwargs)
"""
WAITING = (*RUN, "--method", "waits:Waits", "--evaluate-every", "1", "--out", "out")


def longtail(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longtail", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
    )


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder, links as what they say."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"a link to {os.readlink(path)}"
        else:
            found[name] = "a folder" if path.is_dir() else path.read_bytes()
    return found


def write(path: Path, content: bytes = MINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One sentence that has these parts, and exit code 2."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert [part for part in parts if part not in done.stderr] == []


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 200
    while not there():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours, to be copied."""
    place = tmp_path_factory.mktemp("finished")
    done = longtail(*RUN, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """The same run, in the current folder of a user."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("flags", [(), ("--fresh",), ("--replicas", "2")])
def test_a_run_leaves_a_folder_that_is_not_ours_alone(tmp_path: Path, flags: tuple[str, ...]):
    out = tmp_path / "project"
    for name in ("model.safetensors", "config.toml", "timing.json", "scores.jsonl", ".lock"):
        write(out / name)
    if "--fresh" in flags:
        write(out / "snapshot" / "best.pt")
        write(out / "tensorboard" / "events.out.tfevents.1")
    before = tree(out)
    refused(longtail(*RUN, "--out", out, *flags, cwd=tmp_path), "project", ".lock")
    assert tree(out) == before


def test_a_study_leaves_a_folder_that_is_not_ours_alone(tmp_path: Path):
    out, file = tmp_path / "project", write(tmp_path / "s.toml", STUDY.encode())
    for name in ("study.toml", "plan.json", "runs/notes.txt", "table.json", "draft.tmp"):
        write(out / name)
    before = tree(out)
    refused(longtail("study", file, "--out", out, *OURS, cwd=tmp_path), "project", "draft.tmp")
    whole = write(tmp_path / "all.toml", b'studies = ["s.toml"]\n')
    refused(longtail("study", whole, "--out", out, *OURS, cwd=tmp_path), "project", "draft.tmp")
    assert tree(out) == before


def test_a_report_leaves_a_folder_that_is_not_ours_alone(run: Path, tmp_path: Path):
    out = tmp_path / "project"
    write(out / "table.json")
    write(out / "figures" / "plane.png")
    before = tree(out)
    refused(longtail("report", run, "--out", out, *PLAIN, cwd=tmp_path), "project", "figures")
    assert tree(out) == before


def test_what_is_new_empty_or_ours_is_taken_and_marked(run: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new/folder"):
        assert longtail("report", run, "--out", place, *PLAIN, cwd=tmp_path).returncode == 0
        mark = json.loads((tmp_path / place / ".longtail.json").read_text())
        assert mark["kind"] == "report"
    assert json.loads((run / ".longtail.json").read_text())["kind"] == "run"
    write(run / "notes.txt")
    assert longtail(*RUN, "--out", run, cwd=tmp_path).returncode == 0
    refused(longtail(*RUN, "--out", run, "--replicas", "2", cwd=tmp_path), "of a run")
    assert (run / "notes.txt").read_bytes() == MINE


def test_a_report_beside_runs_of_ours_writes_over_nothing(run: Path, tmp_path: Path):
    """`report DIR`, where DIR is a user's and holds folders of ours."""
    runs = tmp_path / "runs"
    shutil.move(run, runs / "one")
    readme = write(runs / "README.md")
    write(runs / "table.json")
    before = tree(runs)
    refused(longtail("report", runs, *PLAIN, cwd=tmp_path), "table.json")
    assert tree(runs) == before

    (runs / "table.json").unlink()
    mine = write(runs / "data" / "train.csv")
    before = tree(runs)
    refused(longtail("report", runs, *PLAIN, cwd=tmp_path), "data", "--out")
    assert tree(runs) == before

    mine.unlink()
    mine.parent.rmdir()
    done = longtail("report", runs, *PLAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (runs / ".longtail.json").exists()
    assert readme.read_bytes() == MINE
    assert longtail("report", runs, *PLAIN, cwd=tmp_path).returncode == 0


def test_published_results_are_only_read(run: Path, tmp_path: Path):
    """Runs somebody has put into a repository, with their table and without our marks."""
    results = tmp_path / "results"
    shutil.move(run, results)
    (results / ".longtail.json").unlink(missing_ok=True)
    write(results / "table.json")
    before = tree(results)
    refused(longtail("report", results, *PLAIN, cwd=tmp_path), "results", "--out")
    assert tree(results) == before
    assert longtail("report", results, "--out", "here", *PLAIN, cwd=tmp_path).returncode == 0
    assert longtail("check", results, cwd=tmp_path).returncode == 0
    assert tree(results) == before


def test_pieces_of_a_study_are_copied_between_machines(tmp_path: Path):
    write(tmp_path / "s.toml", STUDY.encode())
    for policy in ("continual", "new"):
        words = ("study", "s.toml", "--out", policy, "--only", f"policy={policy}", "--no-report")
        assert longtail(*words, *OURS, cwd=tmp_path).returncode == 0
        shutil.copytree(tmp_path / policy / "runs", tmp_path / "both" / "runs", dirs_exist_ok=True)
    stamps = {p: p.read_bytes() for p in tmp_path.glob("both/runs/*/timing.json")}
    assert longtail("report", "both", *PLAIN, cwd=tmp_path).returncode == 0
    done = longtail("study", "s.toml", "--out", "both", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 runs computed, 4 were finished before" in done.stdout
    assert {path: path.read_bytes() for path in stamps} == stamps
    assert len(stamps) == 4


def test_fresh_removes_what_we_wrote_and_nothing_else(run: Path, tmp_path: Path):
    before = {name: (run / name).read_bytes() for name in ("scores.jsonl", "model.safetensors")}
    (old,) = (run / "snapshot").iterdir()
    mine = [
        write(run / name)
        for name in (
            "notes.txt",
            "draft.tmp",
            "snapshot/best.pt",
            "snapshot/1-best.pt",
            "tensorboard/mine/events.out.tfevents.1",
            "figures/mine.png",
        )
    ]
    stamp = (run / "timing.json").read_bytes()
    done = longtail(*RUN, "--out", run, "--fresh", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.read_bytes() for path in mine if path.exists()] == [MINE] * len(mine)
    assert (run / "timing.json").read_bytes() != stamp
    assert {name: (run / name).read_bytes() for name in before} == before
    assert sorted(p.name for p in (run / "snapshot").iterdir())[1:] == ["1-best.pt", "best.pt"]
    assert old.parent == run / "snapshot"


@pytest.mark.parametrize("what", ["draft.tmp", "x.tmp/draft"])
def test_a_run_that_is_refused_or_finished_removes_nothing(run: Path, tmp_path: Path, what: str):
    write(run / what)
    before = tree(run)
    assert longtail(*RUN, "--out", run, cwd=tmp_path).returncode == 0
    assert tree(run) == before
    refused(longtail(*RUN, "--out", run, "--seed", "1", cwd=tmp_path), "seed is 0 there")
    assert tree(run) == before


@pytest.mark.parametrize("name", ["snapshot", "scores.jsonl"])
def test_nothing_is_written_through_a_link(run: Path, tmp_path: Path, name: str):
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere / "best.pt")
    mine = write(tmp_path / "mine.jsonl")
    (run / "summary.json").unlink()  # so that it goes on
    if name == "snapshot":
        shutil.rmtree(run / name)
        (run / name).symlink_to(elsewhere)
    else:
        shutil.rmtree(run / "snapshot")
        (run / name).unlink()
        (run / name).symlink_to(mine)
    flags = ("--fresh",) if name == "snapshot" else ()
    refused(longtail(*RUN, "--out", run, *flags, cwd=tmp_path), name, "link")
    assert tree(elsewhere) == {"best.pt": MINE}
    assert mine.read_bytes() == MINE


def test_a_report_draws_through_no_link(run: Path, tmp_path: Path):
    write(tmp_path / "elsewhere" / "plane.png")
    write(tmp_path / "mine.md")
    assert longtail("report", run, *PLAIN, cwd=tmp_path).returncode == 0
    (run / "figures").symlink_to(tmp_path / "elsewhere")
    (run / "table.md").unlink()
    (run / "table.md").symlink_to(tmp_path / "mine.md")
    refused(longtail("report", run, "--no-page", "--quiet", cwd=tmp_path), "figures", "link")
    (run / "figures").unlink()
    assert longtail("report", run, *PLAIN, cwd=tmp_path).returncode == 0
    assert tree(tmp_path / "elsewhere") == {"plane.png": MINE}
    assert (tmp_path / "mine.md").read_bytes() == MINE
    assert not (run / "table.md").is_symlink()


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_weights_that_are_gone_are_said_by_run_and_report(run: Path, tmp_path: Path, how: str):
    weights = run / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.unlink()
    if how == "damaged":
        weights.write_bytes(content)
    before = tree(run)
    refused(longtail(*RUN, "--out", run, cwd=tmp_path), "model.safetensors", "--fresh")
    assert tree(run) == before
    done = longtail("report", run, "--out", "told", *PLAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout
    row = json.loads((tmp_path / "told" / "table.json").read_text())["rows"][0]
    assert row["RP"] is not None  # the scores are as they were
    assert longtail(*RUN, "--out", run, "--fresh", cwd=tmp_path).returncode == 0
    assert longtail(*RUN, "--out", run, cwd=tmp_path).returncode == 0


class Waiting:
    """A run that waits in its middle, and what it says when it is let go."""

    def __init__(self, place: Path) -> None:
        self.place = place
        write(place / "waits.py", WAITS.encode())
        command = [sys.executable, "-m", "longtail", *WAITING]
        self.process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True)
        until(lambda: (place / "here").exists() or self.process.poll() is not None)
        assert self.process.poll() is None

    def go(self) -> subprocess.CompletedProcess[str]:
        (self.place / "go").touch()
        _, said = self.process.communicate(timeout=200)
        return subprocess.CompletedProcess(WAITING, self.process.returncode, "", said)


@pytest.fixture
def waiting(tmp_path: Path):
    found = Waiting(tmp_path)
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, which nobody has disturbed."""
    place = tmp_path_factory.mktemp("alone")
    write(place / "waits.py", WAITS.encode())
    (place / "go").touch()
    assert longtail(*WAITING, cwd=place).returncode == 0
    return place / "out"


def test_without_its_lock_a_folder_still_belongs_to_one_process(
    waiting: Waiting, alone: Path, tmp_path: Path
):
    out = tmp_path / "out"
    (out / ".lock").unlink()
    second = subprocess.Popen(
        [sys.executable, "-m", "longtail", *WAITING],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = second.communicate(timeout=120)
    except subprocess.TimeoutExpired:  # it runs, too
        (tmp_path / "go").touch()
        _, said = second.communicate(timeout=200)
    refused(subprocess.CompletedProcess([], second.returncode, "", said), "out is in use")
    done = waiting.go()
    assert (done.returncode, done.stderr) == (0, "")
    assert (out / "scores.jsonl").read_bytes() == (alone / "scores.jsonl").read_bytes()
    assert longtail("check", out, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("how", ["longer", "removed"])
def test_scores_that_somebody_else_writes_stop_the_run(
    waiting: Waiting, alone: Path, tmp_path: Path, how: str
):
    """As a second process would, on a volume that knows no locks."""
    scores = tmp_path / "out" / "scores.jsonl"
    if how == "longer":
        with open(scores, "ab") as file:
            file.write(scores.read_bytes() or b'{"after": 0, "scores": {"0": 0.5}}\n')
    else:
        scores.unlink()
    refused(waiting.go(), "scores.jsonl", "the same command goes on")
    assert not (tmp_path / "out" / "summary.json").exists()
    done = longtail(*WAITING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert scores.read_bytes() == (alone / "scores.jsonl").read_bytes()
    assert longtail("check", "out", cwd=tmp_path).returncode == 0


def test_checksums_are_of_what_was_written(waiting: Waiting, tmp_path: Path):
    tasks = tmp_path / "out" / "tasks.json"
    tasks.write_bytes(tasks.read_bytes().replace(b"word", b"verb") + b"\n")
    assert waiting.go().returncode == 0
    done = longtail("check", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "tasks.json" in done.stderr


# A user's loop of their own: it saves what the optimizer knows beside each checkpoint.
SAVES = """
import os
import signal
import sys

import torch

from longtail import ContinualAdamW, save_memory

folder, number, times, how = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
model = torch.nn.Linear(2000, 100, bias=False)
optimizer = ContinualAdamW(model.parameters(), lr=0.1)
model.weight.grad = torch.full_like(model.weight, number)
optimizer.step()
optimizer.end_task()
if how == "killed":  # in the last moment, when all has been written
    os.replace = os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if how == "container":  # where every first process has this number
    os.getpid = lambda: 1
print("ready", flush=True)
sys.stdin.readline()
for _ in range(times):
    save_memory(optimizer, folder, model)
"""
READS = """
import sys

import torch
from safetensors.torch import load_file

from longtail import ContinualAdamW, load_memory

model = torch.nn.Linear(2000, 100, bias=False)
load_memory(ContinualAdamW(model.parameters(), lr=0.1), sys.argv[1], model)
for name, tensor in load_file(sys.argv[1] + "/longtail_memory.safetensors").items():
    assert len(tensor.unique()) <= 1, name
"""


def saving(place: Path, number: int, times: int, how: str) -> subprocess.Popen[str]:
    write(place / "saves.py", SAVES.encode())
    (place / "model").mkdir(exist_ok=True)
    words = ["saves.py", "model", str(number), str(times), how]
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_a_killed_save_leaves_is_cleaned_by_the_next(tmp_path: Path):
    write(tmp_path / "model" / "mine.tmp")
    for number in (1, 2):
        killed = saving(tmp_path, number, 1, "killed")
        killed.communicate("\n", timeout=200)
        assert killed.returncode == -9
    assert len(list((tmp_path / "model").iterdir())) > 1
    last = saving(tmp_path, 3, 1, "")
    _, said = last.communicate("\n", timeout=200)
    assert last.returncode == 0, said
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["longtail_memory.safetensors", "mine.tmp"]


def test_two_containers_with_one_process_number_tear_no_memory(tmp_path: Path):
    write(tmp_path / "reads.py", READS.encode())
    both = [saving(tmp_path, number, 150, "container") for number in (1, 2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    done = subprocess.run(
        [sys.executable, "reads.py", "model"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["longtail_memory.safetensors"]


def test_workers_of_a_study_run_no_file_of_the_current_folder(tmp_path: Path):
    """`threading.py` beside a study file, called as the installed command calls it."""
    (tmp_path / "bin").mkdir()
    program = "import sys\nfrom longtail.cli import main\n"
    program += 'if __name__ == "__main__":\n    sys.exit(main())\n'
    start = write(tmp_path / "bin" / "longtail.cmd.py", program.encode())
    project = tmp_path / "project"
    trap = "from pathlib import Path\nPath('ran').touch()\nraise SystemExit('mine')\n"
    write(project / "threading.py", trap.encode())
    write(project / "s.toml", STUDY.encode())
    command = [sys.executable, str(start), "study", "s.toml", "--jobs", "2", "--no-report"]
    done = subprocess.run(
        [*command, "--only", "policy=continual", "--out", "out", *OURS],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert not (project / "ran").exists()
    assert len(list(project.glob("out/runs/*/summary.json"))) == 2
