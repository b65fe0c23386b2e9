"""The parser of the command line: one sentence for a mistake, and the nearest flag that exists."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence and suggests the nearest flag."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)

    def parse_args(self, args=None, namespace=None):  # type: ignore[override]
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            command = _command_parser(self, parsed)
            command.error(unknown_argument(extra[0], command))
        return parsed


def _command_parser(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> Any:
    """The parser of the command that was given, whose flags are those one may have meant."""
    for action in parser._actions:
        chosen = getattr(parsed, action.dest, None)
        if isinstance(action, argparse._SubParsersAction) and chosen in action.choices:
            return _command_parser(action.choices[chosen], parsed)
    return parser


def unknown_argument(argument: str, parser: argparse.ArgumentParser) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    flag = flag_of(argument)
    known = [o for action in parser._actions for o in action.option_strings]
    near = difflib.get_close_matches(flag, known, n=1, cutoff=0.6)
    return f"unknown flag {flag}" + (f", did you mean {near[0]}?" if near else "")


def folder(text: str) -> Path:
    """A folder to write to; an empty one, of a shell's unset variable, would be the current one."""
    if not text:
        raise argparse.ArgumentTypeError("it must name a folder, got '' (. is the current one)")
    return Path(text)


def flag_of(argument: str) -> str:
    """`--lr` of `--lr=0.1`."""
    return argument.partition("=")[0]
