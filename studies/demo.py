"""What `make demo` runs: twenty runs of every row of Table 1, the checks, and Figure 2.

    python studies/demo.py [--seeds 0-19] [--out runs/demo]

No data to fetch and no GPU. It is `longtail study studies/table1.toml` with fewer seeds: interrupt
it and it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from longtail.cli import main as longtail

STUDY = Path(__file__).with_name("table1.toml")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0-19", help="runs, such as 0-19")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="study folder")
    args = parser.parse_args()
    command = ["study", str(STUDY), "--seeds", args.seeds, "--out", str(args.out), "--no-report"]
    code = longtail([*command, "--jobs", str(min(len(os.sched_getaffinity(0)), 4))])
    if code:
        return code
    # The page and the figures take as long as each other: one draws while the other is written.
    page = [sys.executable, "-m", "longtail.cli", "report", str(args.out), "--no-figures"]
    with subprocess.Popen([*page, "--quiet"], stdout=subprocess.DEVNULL) as writing:
        code = longtail(["report", str(args.out), "--no-page"])
        code = writing.wait() or code
    figures = sorted((args.out / "figures").glob("*difference*.svg"))
    for path in figures or sorted((args.out / "figures").glob("*.svg")):
        print(f"figure: {path}")
    if (args.out / "report.html").exists():
        print(f"page: {args.out / 'report.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
