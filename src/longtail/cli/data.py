"""`longtail data`: fetch or check the files a benchmark needs."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  longtail data mnist              fetch what is missing, check what is there
  longtail data wsd --check DIR    check the files in a folder, fetch nothing
  longtail data toy                says that this benchmark needs no files
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("benchmark", metavar="BENCHMARK", help="a name from `longtail list`")
    parser.add_argument("--dir", help="folder for the files (default: the benchmark's own)")
    parser.add_argument(
        "--check",
        nargs="?",
        const=True,
        default=False,
        metavar="DIR",
        help="only check the files (in DIR, or in --dir), fetch nothing",
    )
    parser.add_argument("--strict", action="store_true", help="vqa: refuse what is only counted")
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")


# Flags of one benchmark alone. What a user's own does with them is not known here.
OWNERS = {"strict": "vqa"}


def main(args: argparse.Namespace) -> int:
    from longtail.names import BENCHMARKS
    from longtail.runs.config import load_benchmark

    if isinstance(args.check, str):
        if args.dir not in (None, args.check):
            raise ValueError(f"--check {args.check} and --dir {args.dir}: which folder is it?")
        args.dir, args.check = args.check, True
    command = load_benchmark(args.benchmark).data_command
    for flag, owner in OWNERS.items():
        idle = command is None or (args.benchmark in BENCHMARKS and args.benchmark != owner)
        if idle and getattr(args, flag) not in (None, False):
            raise ValueError(
                f"--{flag} goes with {owner} alone: it says nothing to {args.benchmark}"
            )
    if command is not None:
        return int(command(args) or 0)
    if args.json:
        print(f'{{"benchmark": "{args.benchmark}", "files": []}}')
    elif not args.quiet:
        print(f"{args.benchmark} is generated and needs no files.")
    return 0
