"""`longtail data`: fetch or check the files a benchmark needs."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  longtail data mnist        fetch what is missing, check what is there
  longtail data toy          says that this benchmark needs no files
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("benchmark", metavar="BENCHMARK", help="a name from `longtail list`")
    parser.add_argument("--dir", help="folder for the files (default: the benchmark's own)")
    parser.add_argument("--check", action="store_true", help="only check, fetch nothing")
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")


def main(args: argparse.Namespace) -> int:
    from longtail.settings import load_benchmark

    command = getattr(load_benchmark(args.benchmark), "data_command", None)
    if command is not None:
        return int(command(args) or 0)
    if args.json:
        print(f'{{"benchmark": "{args.benchmark}", "files": []}}')
    elif not args.quiet:
        print(f"{args.benchmark} is generated and needs no files.")
    return 0
