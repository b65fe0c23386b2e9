"""`longtail data`: fetch or check the files a benchmark needs."""

from __future__ import annotations

import argparse
from typing import Any, Protocol

from longtail.support import doors

GROUP = "longtail.data"
EXAMPLES = """examples:
  longtail data mnist              fetch what is missing, check what is there
  longtail data wsd --check DIR    check the files in a folder, fetch nothing
  longtail data toy                says that this benchmark needs no files
"""


class DataCommand(Protocol):
    """What an entry point of the group ``longtail.data`` names: a module, or an object."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, args: argparse.Namespace) -> int: ...


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
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")


def add_flags_of(benchmark: str | None, parser: argparse.ArgumentParser) -> None:
    """The flags that one benchmark has beside those of all."""
    command = _command(benchmark)
    if command is not None:
        own = parser.add_argument_group(f"of {benchmark}")
        command.add_arguments(own)  # pyright: ignore[reportArgumentType]


def main(args: argparse.Namespace) -> int:
    if isinstance(args.check, str):
        if args.dir not in (None, args.check):
            raise ValueError(f"--check {args.check} and --dir {args.dir}: which folder is it?")
        args.dir, args.check = args.check, True
    command = _command(args.benchmark)
    if command is not None:
        return int(command.main(args) or 0)
    from longtail.runs.config import load_benchmark

    load_benchmark(args.benchmark)  # says so where there is none of this name
    if args.json:
        print(f'{{"benchmark": "{args.benchmark}", "files": []}}')
    elif not args.quiet:
        print(f"{args.benchmark} is generated and needs no files.")
    return 0


def _command(benchmark: Any) -> DataCommand | None:
    return doors.load(GROUP, benchmark) if benchmark in doors.offered(GROUP) else None
