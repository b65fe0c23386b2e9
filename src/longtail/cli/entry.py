"""The command line: `longtail run | study | report | check | data | list`.

Each command is a module with ``add_arguments(parser)`` and ``main(args) -> int``. Only the one that
was asked for is imported, so that `longtail --help` answers before torch could have been loaded.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from longtail.cli.parser import Parser
from longtail.support import doors
from longtail.support.terminal import guarded

COMMANDS = {
    "run": ("longtail.cli.run", "train one method on one benchmark"),
    "study": ("longtail.cli.study", "execute all runs of a study file"),
    "report": ("longtail.cli.report", "tables, figures and a page from a folder of runs"),
    "check": ("longtail.cli.check", "whether finished runs are as they were written"),
    "data": ("longtail.cli.data", "fetch or check a benchmark's files"),
    "list": ("longtail.cli.list", "benchmarks, methods, policies, studies"),
}
UNICODE = ("utf-8", "utf8", "utf-16", "utf-32")
EXAMPLES = """examples:
  longtail list                               what there is
  longtail run toy --method ewc               one run; calling it again resumes it
  longtail run toy --help                     every setting of a benchmark
  longtail study table1          a table of the paper
  longtail report runs/                       tables, figures and a page of what has been run
"""


def make_parser(command: str | None, words: Sequence[str] = ()) -> Parser:
    """The parser, with the arguments of ``command`` alone; `words` are all of the command line."""
    parser = Parser(
        prog="longtail",
        description="Continual learning over thousands of long-tailed tasks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == command:
            importlib.import_module(module).add_arguments(sub)
        if name == command == "data":
            _add_flags_of_benchmark(sub, words)
    return parser


def _add_flags_of_benchmark(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from longtail.cli.data import GROUP, add_flags_of

    offered = doors.offered(GROUP)
    add_flags_of(next((word for word in words if word in offered), None), parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 (failed), 2 (bad input), 130 or 143 (stopped)."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could follow
        from longtail.cli.completion import complete

        return complete(make_parser)
    argv = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    with guarded():
        return _answer(argv)


def _answer(argv: list[str]) -> int:
    interrupts: list[int] = []
    try:
        with _noting_interrupts(interrupts):
            return _dispatch(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "stopped", getattr(stop, "code", 130))
    except BrokenPipeError:  # the reader of a pipe went away, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        _reraise_for_debugging()
        # Ctrl-C within an import may come out as an ImportError, or whatever a package makes of it
        return _say("stopped", 130) if interrupts else _failed(error)


def _print_anything() -> None:
    """A pipe on Windows knows the letters of one language: others become a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in UNICODE:
            stream.reconfigure(errors="replace")


@contextmanager
def _noting_interrupts(interrupts: list[int]) -> Iterator[None]:
    """Within ``with``, Ctrl-C is also noted, as what it raises may be caught on the way."""

    def note(number: int, frame: Any) -> NoReturn:
        interrupts.append(number)
        raise KeyboardInterrupt

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # no handlers can be set here, or somebody has set their own
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _failed(error: Exception) -> int:
    """One sentence for an exception, and its exit code."""
    if isinstance(error, ValueError):
        return _say(str(error), 2)
    if isinstance(error, FloatingPointError):  # a run that diverged, with --stop-on-nan
        return _say(str(error), 1)
    if isinstance(error, MemoryError) and str(error):  # what a run says when it runs out of it
        return _say(str(error), 1)
    if isinstance(error, ModuleNotFoundError):
        return _say(f"this needs the package {error.name!r}, which is not installed", 1)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        named_by_user = error.errno == errno.ENAMETOOLONG  # no name of ours is that long
        return _say(f"{where}{error.strerror or error}", 2 if named_by_user else 1)
    text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    return _say(f"{text} (LONGTAIL_DEBUG=1 shows where)", 1)


def _dispatch(argv: list[str]) -> int:
    command = next((a for a in argv if not a.startswith("-")), None)
    parser = make_parser(command if command in COMMANDS else None, argv)
    if command is not None and command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(COMMANDS)}"
        raise ValueError(f"unknown command {command!r}; {hint}")
    if command == "run":  # its flags depend on the benchmark and the method
        from longtail.cli.run import parse

        if argv[0] != "run":
            parser.error(f"{argv[0]} stands before the command: `longtail run` has its own flags")
        args = parse(argv[1:])
    else:
        args = parser.parse_args(argv)
    if getattr(args, "version", False):
        from longtail import __version__

        print(__version__)
        return 0
    if command is None:
        parser.print_help()
        return 0
    return importlib.import_module(COMMANDS[command][0]).main(args)


def _say(text: str, code: int) -> int:
    print(f"longtail: {text}", file=sys.stderr)
    return code


def _reraise_for_debugging() -> None:
    if os.environ.get("LONGTAIL_DEBUG"):
        raise
