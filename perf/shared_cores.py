"""What do two runs cost each other on the same cores? Ratios, all taken in one run.

    python perf/shared_cores.py [--no-fail] [--json FILE] [--replicas 28] [--tasks 200] [--rounds 3]

A process trains a stack of synthetic tasks with a thread for each core; then two such processes at
the same time. "sharing" is the time of two at once over twice the time of one alone: 1 where they
share the cores without a loss. With GCC's default a thread that waits for the others keeps its core
(`support/threads.py`). "alone" is one process over one with GCC's default, by itself: what giving
the core away costs where nobody wants it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import provenance

from longtail.support import threads
from longtail.support.machine import usable_cores

PROGRAM = "import sys\nfrom longtail.cli import main\nsys.exit(main(sys.argv[1:]))\n"
SHARING = "from longtail.support import threads\nthreads.share_cores()\n"
WAYS = {"GCC's default": PROGRAM, "ours": SHARING + PROGRAM}
BARS = {"sharing": 1.5, "alone": 1.3}


def start(program: str, arguments: list[str], out: str) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k not in threads.DECIDED}
    threads_each = ["--threads", str(max(2, len(usable_cores())))]  # one would wait for nobody
    command = [sys.executable, "-c", program, "run", "synthetic", *arguments, *threads_each]
    return subprocess.Popen([*command, "--quiet", "--no-weights", "--out", out], env=environment)


def seconds(program: str, arguments: list[str], count: int) -> float:
    """Of the slowest of `count` runs that are started together, as each has recorded it."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [str(Path(folder) / str(number)) for number in range(count)]
        processes = [start(program, arguments, out) for out in outs]
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit(f"a run failed: exit codes {codes}")
        timings = [json.loads((Path(out) / "timing.json").read_text("utf-8")) for out in outs]
        return max(timing["seconds"] for timing in timings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--replicas", default=28, type=int, help="runs in a stack")
    parser.add_argument("--tasks", default=200, type=int, help="tasks of each run")
    parser.add_argument("--rounds", default=3, type=int, help="of which the median counts")
    options = parser.parse_args()
    arguments = ["--replicas", str(options.replicas), "--tasks", str(options.tasks)]
    taken: dict[tuple[str, int], list[float]] = {(w, n): [] for w in WAYS for n in (1, 2)}
    for _ in range(options.rounds):  # in turn, so that all see the same noise
        for (way, count), times in taken.items():
            times.append(seconds(WAYS[way], arguments, count))
    middle = {key: statistics.median(times) for key, times in taken.items()}
    rows = []
    for way in WAYS:
        one, two = middle[way, 1], middle[way, 2]
        rows.append(
            {
                "waiting": way,
                "one alone s": one,
                "two at once s": two,
                "sharing": two / (2 * one),
                "alone": one / middle["GCC's default", 1],
                "each round, one alone s": taken[way, 1],
                "each round, two at once s": taken[way, 2],
            }
        )
        shown = [f"{k} {v:.2f}" for k, v in rows[-1].items() if isinstance(v, float)]
        print("  ".join([way, *shown]))
    holds = {name: rows[-1][name] <= bar for name, bar in BARS.items()}
    print(f"ours: {holds}, bars: {BARS}")
    if options.json:
        settings = {k: getattr(options, k) for k in ("replicas", "tasks", "rounds")}
        provenance.write(options.json, rows, "cpu", settings=settings, bars=BARS, holds=holds)
    sys.exit(0 if all(holds.values()) or options.no_fail else 1)


if __name__ == "__main__":
    main()
