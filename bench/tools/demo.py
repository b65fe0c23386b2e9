"""What `make demo` runs: twenty seeds of every row of Table 1, the checks, and Figure 2.

    python bench/tools/demo.py [--seeds 0-19] [--out runs/demo]

No data to fetch and no GPU. It is `longtail study table1` with fewer seeds: interrupt
it and it goes on where it was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from longtail.cli import main as longtail
from longtail.support.machine import usable_cores

BESIDE = ("difference_by_tasks", "task_sizes")  # with the page they take as long as the others


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0-19", help="runs, such as 0-19")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="study folder")
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.beside:
        return write_beside(args.out)
    say("1,000 tasks in three settings, twelve rows: about a minute on two free cores")
    command = ["study", "table1", "--seeds", args.seeds, "--out", str(args.out), "--no-report"]
    code = longtail([*command, "--jobs", str(min(len(usable_cores()), 4))])
    return code or report(args.out)


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def report(out: Path) -> int:
    """Table, checks, figures and page, in two processes; at the end the finding and the page."""
    say("table, checks, figures and page: some ten seconds")
    beside = [sys.executable, __file__, "--beside", "--out", str(out)]
    with subprocess.Popen(beside) as writing:
        # Imported here: the study's workers import this file and need none of them.
        from longtail.report.command import show, write
        from longtail.report.figures import NAMES
        from longtail.report.results import load
        from longtail.support.console import Console

        results = load(out)
        others = [name for name in NAMES if name not in BESIDE]
        written = write(results, out, with_figures=others, with_page=False)
        code = writing.wait()
        show(results, replace(written, paths={}), Console(), quiet=False)
    print(f"page: {(out / 'report.html').resolve()}")
    return code


def write_beside(out: Path) -> int:
    """The second process of `report`."""
    from longtail.report.command import write
    from longtail.report.results import load

    write(load(out), out, with_figures=BESIDE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
