"""What `make demo` runs: twenty seeds of every row of Table 1, the checks, and Figure 2.

    python bench/tools/demo.py [--seeds 0-19] [--out runs/demo]

No data to fetch and no GPU. It is `longtail study table1` with fewer seeds: interrupt
it and it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from longtail.cli import main as longtail
from longtail.support.machine import usable_cores


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0-19", help="runs, such as 0-19")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="study folder")
    args = parser.parse_args()
    say("1,000 tasks in three settings, twelve rows: about a minute on two free cores")
    command = ["study", "table1", "--seeds", args.seeds, "--out", str(args.out), "--no-report"]
    code = longtail([*command, "--jobs", str(min(len(usable_cores()), 4))])
    return code or report(args.out)


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def report(out: Path) -> int:
    """Table, checks, figures and page; at the end the finding and the page."""
    say("table, checks, figures and page: some ten seconds")
    # Imported here: the study's workers import this file and need none of them.
    from longtail.report import read
    from longtail.report.command import show, write
    from longtail.support.console import Console

    written = write(read(out), out)
    show(replace(written, paths={}), Console(), quiet=False)
    print(f"page: {(out / 'report.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
