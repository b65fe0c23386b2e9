"""Try damaged and made-up input on every reader, and count what becomes of it.

    python tests/fuzz/input_soak.py --inputs 1000000 --jobs 14 --out bench/results/soak/inputs.json

An input is taken, and what was made of it is looked at; or it is refused with a `ValueError` that
says something. It is unclear where anything else is raised or what was made of it is wrong, a hang
where it takes longer than ten seconds, and code where a process is started, a connection opened or
a file or folder made or changed elsewhere while data are read. Every input follows from the seed,
its attack and its number: `--only NAME --first N --inputs 1` tries one again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "bench" / "tests")]

SLOW = 10.0  # seconds; longer is a hang
SILENT = 60.0  # seconds without a word from a worker: it hangs where no signal is heard
MEMORY = 4 << 30  # bytes that inputs may ask for, beyond what is there at the start
SHOWN = 20  # examples that are kept of each kind of failure
FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen")
FORBIDDEN += ("pty.spawn", "socket.connect", "socket.bind", "ctypes.dlopen", "webbrowser.open")
CHANGING = ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.chmod")
CHANGING += ("os.truncate", "tempfile.mkdtemp", "tempfile.mkstemp")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class HangError(BaseException):
    """An input took too long; no handler of errors catches it."""


@dataclass
class Counts:
    """What became of the inputs of one attack."""

    target: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    unclear: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Watch:
    """Notes what data must never bring about, while `place` is set."""

    def __init__(self, work: Path) -> None:
        self.work, self.place = str(work), ""
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.place:
            return
        outside = event == "open" and self._writes_elsewhere(*args)
        changed = event in CHANGING and any(map(self._elsewhere, args))
        if outside or changed or event in FORBIDDEN:
            self.seen.append(f"{self.place}: {event} {args!r:.120}")

    def _writes_elsewhere(self, path: Any, mode: Any, flags: int) -> bool:
        return bool(flags & WRITING) and self._elsewhere(path)

    def _elsewhere(self, path: Any) -> bool:
        if not isinstance(path, str | bytes):
            return False
        name = os.path.abspath(os.fsdecode(path))
        return not name.startswith((self.work, "/dev/null"))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within `with`, `HangError` after some seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(number: int, frame: Any) -> None:
    raise HangError


def work_through(args: argparse.Namespace) -> None:
    """One worker: its share of every attack's inputs, told as it goes."""
    from helpers.attacks import attacks

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    work: Path = args.worker
    made = [a for a in attacks(work) if args.only in (None, a.name)]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    watch = Watch(work)
    shares = sum(attack.share for attack in made)
    progress = Progress(work, [Counts(attack.name) for attack in made])
    for attack, counts in zip(made, progress.counts, strict=True):
        inputs = -(-args.inputs * attack.share // shares)
        began = time.monotonic()
        for number in range(args.first + args.number, args.first + inputs, args.jobs):
            key = f"{args.seed}/{attack.name}/{number}"
            progress.now(key)
            try_one(attack, key, counts, watch)
        counts.seconds = time.monotonic() - began
    progress.tell()


def try_one(attack: Any, key: str, counts: Counts, watch: Watch) -> None:
    """Make one input, try it, and count what becomes of it."""
    from helpers.attacks import drawn, mutated

    draw = random.Random(key)
    whole = draw.choice(attack.contents)
    damaged = mutated(whole, drawn(draw))
    counts.inputs += 1
    try:
        with limited(SLOW):
            watch.place = key
            try:
                attack.attempt(whole, damaged)
            finally:
                watch.place = ""
    except ValueError as error:
        counts.refused += 1
        if not str(error).strip():
            note(counts.unclear, f"{key}: a ValueError that says nothing")
    except HangError:
        note(counts.hangs, key)
    except BaseException as error:
        note(counts.unclear, f"{key}: {type(error).__name__}: {str(error)[:200]}")
    else:
        counts.accepted += 1
    if watch.seen:
        counts.code += watch.seen
        watch.seen.clear()


def note(kept: list[str], text: str) -> None:
    kept.append(text if len(kept) < SHOWN else text.partition(":")[0])


class Progress:
    """What a worker has done, in a file, for who waits for it."""

    def __init__(self, work: Path, counts: list[Counts]) -> None:
        self.path, self.counts, self.told = work / "counts.json", counts, 0.0
        self.doing = os.open(work / "doing", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def now(self, key: str) -> None:
        """The input that is tried next: what a process that dies leaves behind."""
        os.pwrite(self.doing, key.ljust(120).encode("utf-8"), 0)
        if time.monotonic() - self.told > 2:
            self.tell()

    def tell(self) -> None:
        self.told = time.monotonic()
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps([asdict(counts) for counts in self.counts]))
        draft.replace(self.path)


def soak(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The counts of all attacks, from workers that share the inputs."""
    # Every child inherits them: a CPU's AMX may be forbidden, and then torch dies of it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        places = [Path(folder) / str(number) for number in range(args.jobs)]
        workers = []
        for number, place in enumerate(places):
            place.mkdir()
            command = [sys.executable, __file__, "--worker", str(place), "--number", str(number)]
            command += ["--inputs", str(args.inputs), "--jobs", str(args.jobs)]
            command += ["--seed", str(args.seed), "--first", str(args.first)]
            command += ["--only", args.only] if args.only else []
            workers.append(subprocess.Popen(command))
        told = time.monotonic()
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.5)
            for worker, place in zip(workers, places, strict=True):
                if worker.poll() is None and silent(place):
                    worker.kill()
            if time.monotonic() - told > 20:
                told = time.monotonic()
                print(f"{sum(c.inputs for c in total(places)):,} inputs", flush=True)
        found = total(places)
        for worker, place in zip(workers, places, strict=True):
            if worker.returncode:
                known = place / "doing"
                doing = known.read_text().strip() if known.exists() else "its preparation"
                text = f"{doing}: the process ended with {worker.returncode}"
                found[0].crashes.append(text)
    return [asdict(counts) for counts in found]


def silent(place: Path) -> bool:
    try:
        return time.time() - (place / "doing").stat().st_mtime > SILENT
    except FileNotFoundError:
        return False


def total(places: list[Path]) -> list[Counts]:
    found: dict[str, Counts] = {}
    for path in (place / "counts.json" for place in places):
        for one in json.loads(path.read_text()) if path.exists() else ():
            counts = found.setdefault(one["target"], Counts(one["target"]))
            for name, value in one.items():
                if name != "target":
                    setattr(counts, name, getattr(counts, name) + value)
    for counts in found.values():
        counts.seconds = round(counts.seconds, 1)
    return list(found.values()) or [Counts("none")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", help="one attack, by its name")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--work", type=Path, help="where files are written (default: a new folder)")
    parser.add_argument("--out", type=Path, help="add the counts to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work_through(args)
        return 0
    began = time.monotonic()
    rows = soak(args)
    took = round(time.monotonic() - began, 1)
    bad = [t for row in rows for k in ("unclear", "hangs", "code", "crashes") for t in row[k]]
    for row in rows:
        print(json.dumps({k: v for k, v in row.items() if v != []}))
    print(f"{sum(row['inputs'] for row in rows):,} inputs in {took} s, {len(bad)} failures")
    if args.out:
        from helpers.soak import add, session

        settings = {"seed": args.seed, "jobs": args.jobs, "wall_seconds": took}
        print(json.dumps(add(args.out, [session("cpu", settings, rows)]), indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
