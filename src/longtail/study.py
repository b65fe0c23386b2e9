"""Expand a study file to runs and execute those that are not finished."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """examples:
  longtail study studies/table1.toml --dry-run            the runs it stands for, and an estimate
  longtail study studies/table1.toml --out runs/table1    execute what is not finished, then report
  longtail study my.toml --only 'method=derpp' --jobs 4   some of the runs, in four processes
  longtail study my.toml --engine ray --address auto      the same runs on a Ray cluster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, help="study file (TOML)")
    parser.add_argument("--out", type=Path, help="study folder (default: runs/<name of the file>)")
    parser.add_argument("--dry-run", action="store_true", help="print the runs, execute nothing")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="execute only matching runs; may be given more than once",
    )
    parser.add_argument("--seeds", help="other seeds than the file's, such as 0-4 or 0,3,7")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="local processes")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--address", help="Ray cluster, such as auto (default: start a local one)")
    parser.add_argument(
        "--storage",
        choices=["shared", "fetch"],
        default="shared",
        help="with Ray: the study folder is on storage all workers share, or files are fetched back",
    )
    parser.add_argument("--no-report", action="store_true", help="leave out tables and page")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")


def main(args: argparse.Namespace) -> int:
    raise NotImplementedError
