"""Kill runs and studies at random moments, go on with them, and compare every byte of their files
with those of a run that was left alone.

    python tests/fuzz/kill_soak.py --kills 1000 --jobs 2 --out bench/results/soak/kills.json
    python tests/fuzz/kill_soak.py --device cuda --kills 500 --jobs 8 --kinds run=3,study=1

There are four kinds of rounds. Each begins a command in a new folder, ends it at some moment and
starts it again, until it comes to its end.

======== ==========================================================================================
run      `longtail run`, in a process forked from one that has imported torch, which saves the two
         seconds of every start: it is as much a process, and as dead after SIGKILL, as any other
study    `longtail study`, runs and stacks in one process, forked too
command  `longtail run` as a user starts it, imports included
workers  `longtail study --jobs 2` as a user starts it; killed are the parent, a worker, or all
======== ==========================================================================================

Most signals are SIGKILL, every tenth is SIGTERM or SIGINT. Half of those to `run` and `study` wait
until a snapshot is being written. What is counted as "while a snapshot was written" left its
temporary file behind. Timing decides what is hit, so a seed fixes the plan and not the outcome.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

METHODS = ("finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem", "multitask")
POLICIES = ("continual", "new", "kept")
STUDIES = {
    "stacked 1": ("finetune", "agem"),
    "stacked 2": ("ewc", "reservoir"),
    "stacked 3": ("ewcpp", "derpp"),
    "single 1": ("finetune", "multitask"),
    "single 2": ("derpp", "ewc"),
}
SMALL = ["--tasks", "12", "--zero-shot", "1", "--features", "6", "--hidden", "8", "--cap", "60"]
QUIET = ["--snapshot-minutes", "0", "--quiet"]  # a snapshot after every step
FILES = ("config.toml", "stack.json", "tasks.json", "scores.jsonl", "scores.npz", "runs.json")
FILES += ("summary.json", "model.safetensors", "checksums.json")
SHARES = {"run": 5, "study": 2, "command": 1, "workers": 2}  # of the time
PATIENCE = 300.0  # seconds after which something hangs
SOME = 9  # variants of a kind that one worker takes turns with
MOST_KILLS = 400  # of one round: more, and it makes no progress
KILLED, WORKER_DIED = -signal.SIGKILL, "its process died with exit code -9"


@dataclass
class Counts:
    """What one worker saw of one kind."""

    kind: str
    device: str
    kills: int = 0
    while_a_snapshot_was_written: int = 0
    while_another_file_was_written: int = 0
    other_signals: int = 0
    compared: int = 0  # folders that came to their end, and were compared
    other_rounding: int = 0  # of them, with other bytes and the same numbers up to a GPU's rounding
    differing: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: dict[str, Any]) -> None:
        for name, value in other.items():
            if name not in ("kind", "device"):
                setattr(self, name, getattr(self, name) + value)


# --- processes -----------------------------------------------------------------------------------


class Process(Protocol):
    """A command that has been started."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, minus a signal's number where that ended it; None while it lives."""
        ...


class Forked:
    """A command line in a copy of this process."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, log)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


def _become(arguments: list[str], log: Path) -> None:
    """Be the command line from here on, in the process that was just forked."""
    code = 99
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        from longtail.cli.entry import main

        code = main(arguments)
    except KeyboardInterrupt:  # before the command line could take it
        code = 130
    finally:
        os._exit(code)


def started(arguments: list[str], log: Path) -> Process:
    """A command line in a process of its own, from nothing."""
    with open(log, "wb") as out:
        command = [sys.executable, "-m", "longtail", *arguments]
        return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def children(pid: int) -> list[int]:
    """The processes of a study that train: those that multiprocessing spawned."""
    found = []
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in listed:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    except OSError:  # gone meanwhile
        return found
    return found


def wait_until(done: Callable[[], Any], seconds: float, pause: float = 0.002) -> bool:
    """Whether it was done within that time."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def gone(pid: int) -> bool:
    """Whether a process that nobody waits for has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


# --- one kind of round ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What is started, how long it is left alone, and who is killed."""

    name: str
    start: Callable[[list[str], Path], Process]
    share: tuple[float, float]  # of the time of a whole run, between which a signal comes
    aimed: bool  # at snapshots that are being written
    study: bool
    jobs: int = 1


KINDS = {
    kind.name: kind
    for kind in (
        Kind("run", Forked, (0.0, 0.5), True, False),
        Kind("study", Forked, (0.0, 0.4), True, True),
        Kind("command", started, (0.3, 1.1), False, False),
        Kind("workers", started, (0.3, 1.0), False, True, jobs=2),
    )
}


@dataclass(frozen=True)
class Variant:
    """One command; what it is left to write is known by its name."""

    name: str
    arguments: tuple[str, ...]


def variants(kind: Kind, device: str, work: Path) -> list[Variant]:
    """The commands of a kind, without their --out."""
    where = ["--device", device, *QUIET]
    if kind.study:
        names = [work / f"{name}.toml" for name in STUDIES]
        rest = ["--no-report", "--jobs", str(kind.jobs), *where]
        return [Variant(path.stem, ("study", str(path), *rest)) for path in names]
    graphs = ("true", "false") if device == "cuda" else ("false",)
    choices = itertools.product(METHODS, POLICIES, ("0", "0.2"), graphs)
    return [
        Variant(
            f"{method} {policy} validation {share} graph {graph}",
            (
                *("run", "toy", "--method", method, "--policy", policy, "--threads", "1"),
                *("--set", f"train.validation={share}", "--set", f"train.cuda_graph={graph}"),
                *(*SMALL, "--minimum", "8", *where),
            ),
        )
        for method, policy, share, graph in choices
    ]


def write_studies(work: Path, device: str) -> None:
    """The study files: their runs share stacks, or are single."""
    data = "tasks = 4\nzero_shot = 1\nfeatures = 6\nhidden = 8\ncap = 40\n"
    graph = f"cuda_graph = {str(device == 'cuda').lower()}\n"
    for name, methods in STUDIES.items():
        text = f'benchmark = "toy"\nmethods = {json.dumps(methods)}\nseeds = "0-1"\n'
        text += f"stack = {str('single' not in name).lower()}\n"
        text += f"policies = {json.dumps(POLICIES[: 1 if 'single' in name else 2])}\n"
        (work / f"{name}.toml").write_text(f"{text}[data]\n{data}[train]\n{graph}")


class Soak:
    """One worker: rounds of some kinds, until there is a file named `stop`."""

    def __init__(self, work: Path, device: str, seed: str, shares: dict[str, int]) -> None:
        self.work, self.device, self.shares = work, device, shares
        self.draw = random.Random(seed)
        self.counts = {name: Counts(name, device) for name in shares}
        self.known: dict[str, tuple[dict[str, str], float]] = {}
        self.log = work / "log"
        write_studies(work, device)
        # some of them for each worker: every one is also trained undisturbed, once
        every = {name: variants(KINDS[name], device, work) for name in shares}
        self.variants = {k: self.draw.sample(v, min(SOME, len(v))) for k, v in every.items()}

    def stopped(self) -> bool:
        return (self.work.parent / "stop").exists()

    def go(self) -> None:
        if {"run", "study"} & self.shares.keys():
            _import_what_runs_need()
        while not self.stopped():
            name = min(self.shares, key=lambda k: self.counts[k].seconds / self.shares[k])
            began = time.monotonic()
            self.round(KINDS[name], self.draw.choice(self.variants[name]), self.counts[name])
            self.counts[name].seconds += time.monotonic() - began
            self.tell()

    def tell(self) -> None:
        """Leave the counts so far where the parent reads them."""
        draft = self.work / "counts.draft"
        draft.write_text(json.dumps([asdict(counts) for counts in self.counts.values()]))
        draft.replace(self.work / "counts.json")

    def round(self, kind: Kind, variant: Variant, counts: Counts) -> None:
        whole = self.whole(kind, variant, counts)
        if whole is None:
            return
        expected, seconds = whole
        key = f"{kind.name}, {variant.name}"
        out = self.work / "pieces"
        shutil.rmtree(out, ignore_errors=True)
        for number in itertools.count():
            most = self.draw.uniform(*kind.share) * seconds
            if self.stopped():
                most = PATIENCE  # to its end, to be compared
            began = time.monotonic()
            code = self.attempt(kind, variant, out, most, counts)
            if code == 0:
                if number == 0:  # it was faster than the whole run, whose kernels were compiled
                    self.known[key] = (expected, min(seconds, time.monotonic() - began))
                break
            if code is None or number > MOST_KILLS:
                if code is not None:
                    counts.hangs.append(f"{kind.name}, {variant.name}: no end in {number} pieces")
                return
        self.compare(key, expected, out, counts)

    def whole(
        self, kind: Kind, variant: Variant, counts: Counts
    ) -> tuple[dict[str, str], float] | None:
        """The files of the undisturbed command and the time it took; None where it failed."""
        key = f"{kind.name}, {variant.name}"
        if key not in self.known:
            out = self.work / "whole" / hashlib.sha256(key.encode()).hexdigest()[:12]
            began = time.monotonic()
            if self.attempt(kind, variant, out, PATIENCE, counts) != 0:
                return None
            self.known[key] = (digests(out), time.monotonic() - began)
        return self.known[key]

    def attempt(
        self, kind: Kind, variant: Variant, out: Path, seconds: float, counts: Counts
    ) -> int | None:
        """Start it, end it after some seconds: 0 where it was done before, None where it failed."""
        before = {*being_written(out), *temporary(out)}  # left by an earlier kill
        process = kind.start([*variant.arguments, "--out", str(out)], self.log)
        alone = seconds == PATIENCE
        if not wait_until(lambda: process.poll() is not None, seconds) and not alone:
            if kind.aimed and self.draw.random() < 0.5:
                until = lambda: process.poll() is not None or set(being_written(out)) - before  # noqa: E731
                wait_until(until, 0.5, 0.0002)
            self.strike(kind, process, out, before, counts)
        if not wait_until(lambda: process.poll() is not None, PATIENCE):
            os.kill(process.pid, signal.SIGKILL)
            counts.hangs.append(f"{kind.name}, {variant.name}: {self.said()}")
            return None
        code = process.poll()
        died = code == 1 and WORKER_DIED in self.log.read_text(errors="replace")
        if code in (0, KILLED, -signal.SIGTERM, -signal.SIGINT, 130, 143) or died:
            return code
        counts.unclear.append(f"{kind.name}, {variant.name}: exit code {code}: {self.said()}")
        return None

    def strike(
        self, kind: Kind, process: Process, out: Path, before: set[Path], counts: Counts
    ) -> None:
        """Send a signal to the process, or to what it started, and count it if it hit."""
        number = signal.SIGKILL
        if self.draw.random() < 0.1:
            number = self.draw.choice((signal.SIGTERM, signal.SIGINT))
        others = children(process.pid) if kind.jobs > 1 else []
        victims = [process.pid]
        if others and number == signal.SIGKILL:
            one = [self.draw.choice(others)]
            victims = self.draw.choice(([process.pid], one, one, [process.pid, *others]))
        if process.poll() is not None:
            return
        hit = [pid for pid in victims if _signalled(pid, number)]
        if number != signal.SIGKILL:
            counts.other_signals += len(hit)
            return
        if process.pid in victims:
            wait_until(lambda: process.poll() is not None, PATIENCE)
            if process.poll() != KILLED:  # it was over
                return
            # workers see that their parent is gone, save and leave
            if not wait_until(lambda: all(map(gone, others)), PATIENCE):
                counts.hangs.append(f"{kind.name}: workers outlive their parent")
        else:
            wait_until(lambda: all(map(gone, victims)), PATIENCE)
        counts.kills += len(hit)
        snapshots, others = (
            len({*found} - before) for found in (being_written(out), temporary(out))
        )
        counts.while_a_snapshot_was_written += min(snapshots, len(hit))
        counts.while_another_file_was_written += min(others, len(hit) - min(snapshots, len(hit)))

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-300:].strip().replace(str(self.work), "WORK")

    def compare(self, what: str, expected: dict[str, str], out: Path, counts: Counts) -> None:
        from longtail.runs.integrity import check_folder

        counts.compared += len({Path(name).parent for name in expected})
        found = digests(out)
        differing = [n for n in expected | found if expected.get(n) != found.get(n)]
        damaged = check_folder(out).damaged
        if self.device != "cpu" and differing and not damaged and expected.keys() == found.keys():
            whole = self.work / "whole" / hashlib.sha256(what.encode()).hexdigest()[:12]
            if same_numbers(whole, out, differing):
                counts.other_rounding += len({Path(name).parent for name in differing})
                return
        counts.differing += [f"{what}: {name}" for name in differing]
        counts.differing += [f"{what}: {wrong}" for wrong in damaged.values()]


def _import_what_runs_need() -> None:
    """Before the first fork; nothing is computed here, so no thread and no GPU is shared."""
    import longtail.cli.run
    import longtail.cli.study
    import longtail.runs.session
    import longtail.study.command  # noqa: F401


def _signalled(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def being_written(out: Path) -> Iterator[Path]:
    """Snapshots that somebody is writing, or was when killed."""
    for depth in ("", "runs/*/", "stacks/*/"):
        yield from out.glob(f"{depth}snapshot/.*.draft")


def temporary(out: Path) -> Iterator[Path]:
    """Other files of which that is so."""
    for depth in ("", "runs/*/", "stacks/*/"):
        yield from out.glob(f"{depth}.*.draft")


def digests(out: Path) -> dict[str, str]:
    """SHA-256 of the files of the runs and stacks below a folder that must not depend on time."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.name in FILES or path.name == "error.json"
    }


def same_numbers(whole: Path, pieces: Path, names: list[str]) -> bool:
    """Whether weights and scores are equal up to the rounding of a GPU, as tests/gpu asks it."""
    import numpy as np
    from safetensors.numpy import load_file

    for name in names:
        if name.endswith(".safetensors"):
            ours, theirs, near = load_file(whole / name), load_file(pieces / name), 1e-4
        elif name.endswith(".npz"):
            with np.load(whole / name) as a, np.load(pieces / name) as b:
                ours, theirs, near = dict(a), dict(b), 0.02
        elif name.endswith("summary.json"):
            a, b = (json.loads((at / name).read_text())["RP"] for at in (whole, pieces))
            ours, theirs, near = {"RP": np.array(a)}, {"RP": np.array(b)}, 0.02
        else:
            continue  # of the same scores, or checksums of the same files
        if any(not np.allclose(ours[k], theirs[k], 1e-3, near, equal_nan=True) for k in ours):
            return False
    return True


# --- many workers --------------------------------------------------------------------------------


def soak(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The counts of all kinds, from workers that share the work."""
    # Every child inherits them: a CPU's AMX may be forbidden, and then torch dies of it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        work = Path(folder)
        workers = []
        for number in range(args.jobs):
            (work / str(number)).mkdir()
            command = [sys.executable, __file__, "--worker", str(work / str(number))]
            command += ["--device", args.device, "--seed", f"{args.seed}.{number}"]
            workers.append(subprocess.Popen([*command, "--kinds", args.kinds]))
        end, told = time.monotonic() + args.seconds, 0.0
        while any(worker.poll() is None for worker in workers):
            found = total(work, args)
            kills = sum(counts.kills for counts in found)
            if kills >= args.kills or time.monotonic() > end:
                (work / "stop").touch()
            if time.monotonic() - told > 20:
                told = time.monotonic()
                print(" ".join(f"{c.kind}: {c.kills} kills;" for c in found), flush=True)
            time.sleep(1)
        found = total(work, args)
        if bad := [worker.returncode for worker in workers if worker.returncode]:
            found[0].unclear.append(f"workers of the soak itself ended with {bad}")
    return [asdict(counts) for counts in found]


def total(work: Path, args: argparse.Namespace) -> list[Counts]:
    found = {name: Counts(name, args.device) for name in shares(args.kinds)}
    for path in work.glob("*/counts.json"):
        for one in json.loads(path.read_text()):
            found[one["kind"]].add(one)
    for counts in found.values():
        counts.seconds = round(counts.seconds, 1)
    return list(found.values())


def shares(text: str) -> dict[str, int]:
    found = {name: int(value) for name, _, value in (p.partition("=") for p in text.split(","))}
    if unknown := found.keys() - KINDS.keys():
        raise ValueError(f"Unknown kind {min(unknown)!r}; known: {', '.join(KINDS)}")
    return {name: value for name, value in found.items() if value > 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="end after so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="or after so long")
    parser.add_argument("--jobs", type=int, default=2, help="processes that kill")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kinds", default=",".join(f"{k}={v}" for k, v in SHARES.items()))
    parser.add_argument("--work", type=Path, help="where runs are trained (default: a new folder)")
    parser.add_argument("--out", type=Path, help="add the counts to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        Soak(args.worker, args.device, args.seed, shares(args.kinds)).go()
        return 0
    began = time.monotonic()
    rows = soak(args)
    took = round(time.monotonic() - began, 1)
    print(json.dumps(rows, indent=1))
    if args.out:
        from helpers.soak import add, session

        settings = {"seed": args.seed, "jobs": args.jobs, "wall_seconds": took}
        print(json.dumps(add(args.out, [session(args.device, settings, rows)]), indent=1))
    return 1 if any(row["differing"] + row["unclear"] + row["hangs"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
