"""How long does Table 1 take, against training its 3,300 sequences one at a time?

    python perf/synthetic_study.py [--device cpu|cuda] [--seeds 100] [--tasks 1000] [--jobs N]
                                   [--no-fail] [--json FILE]

Times the whole command `longtail study table1 --jobs N` (11 rows, 3 settings, 100
runs, 1,000 tasks), imports included; N is the number of cores on a CPU, and two on a GPU, where
multi-task training is a stack of its own that runs beside the ten rows. Then, in the same run, some
tasks of single sequences with `torch.optim.Adam(fused=True)` in a bare loop, scaled to all of them
by the number of steps. Memory is what all processes of the command took together, at its highest.
Bars: 300 s on two CPU cores, 15 s on an H200, a hundred times the bare loop, less than 4 GiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import provenance
import torch
from torch import nn

from longtail.runs.config import resolve
from longtail.study.file import parse_seeds
from longtail.support.machine import usable_cores
from longtail_bench.synthetic import build

STUDY = Path(__file__).parent.parent / "studies" / "table1.toml"
ROWS = 10
BARS = {"cpu": 300.0, "cuda": 15.0}
RATIO_BAR, MEMORY_BAR = 100.0, 4.0


def steps_per_task(sizes, train) -> torch.Tensor:
    return torch.as_tensor(-(-sizes // train.batch_size)) * train.epochs


def bare(tasks: list[int], device: str) -> tuple[float, int]:
    """Seconds and steps of these tasks of one sequence: a fresh fused Adam per task, no library.

    On one thread, since a second one only slows such small operations down.
    """
    torch.set_num_threads(1)
    config = resolve("synthetic")
    sequence = build(config.data, 0).sequence.to(device)
    model = nn.Linear(config.data.d, 1, bias=False, device=device)
    data = {t: (sequence.train(t)[:], sequence.test(t)[:]) for t in tasks}
    seconds, steps = 0.0, 0
    for i, t in enumerate([tasks[-1], *tasks]):
        (x, y), (x_test, y_test) = data[t]
        begin = time.perf_counter()
        done = _bare_task(model, x, y, config.train)
        with torch.no_grad():
            (model(x_test).squeeze(-1) - y_test).square().mean().item()
        if i > 0:  # the first one warms up
            seconds, steps = seconds + time.perf_counter() - begin, steps + done
    return seconds, steps


def _bare_task(model: nn.Module, x, y, train) -> int:
    optimizer = torch.optim.Adam(model.parameters(), lr=train.lr, fused=True)
    steps = -(-len(y) // train.batch_size) * train.epochs
    done = 0
    for _ in range(train.epochs):
        order = torch.randperm(len(y), device=x.device)
        for rows in order.split(train.batch_size):
            if train.schedule == "linear":
                optimizer.param_groups[0]["lr"] = train.lr * (1 - done / steps)
            optimizer.zero_grad(set_to_none=True)
            loss = (model(x[rows]).squeeze(-1) - y[rows]).square().mean()
            loss.backward()
            optimizer.step()
            done += 1
    return done


def study(device: str, seeds: str, tasks: int, jobs: int) -> tuple[float, float, list[float]]:
    """Seconds from start to end of the command, peak GiB, and the seconds of each stack, which
    leave out planning and imports."""
    with tempfile.TemporaryDirectory() as folder:
        text = STUDY.read_text(encoding="utf-8").replace(
            "[train]", f"[data]\ntasks = {tasks}\n\n[train]"
        )
        if device == "cuda":
            text = text.replace("[train]", "[train]\ncuda_graph = true")
        file, out = Path(folder) / "table1.toml", Path(folder) / "out"
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "longtail", "study", str(file), "--seeds", seeds]
        command += ["--out", str(out), "--device", device, "--no-report", "--quiet"]
        command += ["--jobs", str(jobs)]
        begin = time.perf_counter()
        process = subprocess.Popen(command, start_new_session=True)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, memory_of_session(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        seconds = time.perf_counter() - begin
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
        timings = sorted(out.glob("stacks/*/timing.json"))
        stacks = [json.loads(path.read_text(encoding="utf-8"))["seconds"] for path in timings]
    return seconds, peak, stacks


def memory_of_session(leader: int) -> float:
    """GiB that the processes of a session take now: their own pages, forked ones shared out among
    them, and once the libraries that are mapped into all. (All pages of each, where the system
    does not tell them apart.)"""
    own = mapped = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            if os.getsid(int(path.name)) == leader:
                told = path / "smaps_rollup"
                kib = _kib(told if told.exists() else path / "status")
                own += kib.get("Pss_Anon", kib.get("VmRSS", 0))
                mapped = max(mapped, kib.get("Rss", 0) - kib.get("Anonymous", 0))
    return (own + mapped) / 2**20


def _kib(path: Path) -> dict[str, int]:
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return {line[0].rstrip(":"): int(line[1]) for line in lines if line[2:] == ["kB"]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", default="0-99")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--jobs", type=int, help="processes (default: one per core, two on a GPU)")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    config = resolve("synthetic", flags={"data.tasks": args.tasks})
    sequence = build(config.data, 0).sequence
    count = len(parse_seeds(args.seeds))
    steps = int(steps_per_task(sequence.train_sizes, config.train).sum())
    union = resolve("synthetic", flags={"method": "multitask"}).train
    union_steps = -(-int(sequence.train_sizes.sum()) // union.batch_size) * union.epochs
    total = 3 * count * (ROWS * steps + union_steps)

    sample = list(range(0, args.tasks, max(1, args.tasks // 40)))
    bare_seconds, bare_steps = bare(sample, args.device)
    bare_total = bare_seconds / bare_steps * total
    jobs = args.jobs or (2 if args.device == "cuda" else len(usable_cores()))
    seconds, peak, stacks = study(args.device, args.seeds, args.tasks, jobs)
    result = {
        "run": "measured",
        "jobs": jobs,
        "study_seconds": seconds,
        "stack_seconds": stacks,
        "bare_seconds_scaled": bare_total,
        "ratio": bare_total / seconds,
        "peak_gib": peak,
    }
    print(f"Table 1: {33 * count:,} sequences of {args.tasks:,} tasks on {args.device}")
    print(f"  study            {seconds:10.1f} s    bar {BARS[args.device]:.0f} s")
    print(f"  one at a time    {bare_total:10.0f} s    from {bare_steps:,} steps in a bare loop")
    print(f"  ratio            {result['ratio']:10.0f}      bar {RATIO_BAR:.0f}")
    print(f"  peak memory      {peak:10.2f} GiB  bar {MEMORY_BAR:.0f} GiB")
    if args.json:
        settings = {"seeds": count, "tasks": args.tasks}
        bars = {"study_seconds": BARS[args.device], "ratio": RATIO_BAR, "peak_gib": MEMORY_BAR}
        provenance.write(args.json, [result], args.device, settings=settings, bars=bars)
    full = count == 100 and args.tasks == 1000
    good = not full or (
        seconds <= BARS[args.device] and result["ratio"] >= RATIO_BAR and peak < MEMORY_BAR
    )
    return 0 if good or args.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
