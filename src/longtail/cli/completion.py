"""What a shell offers when Tab is pressed: commands, flags, names. Needs argcomplete.

    pip install 'longtail[complete]'
    eval "$(register-python-argcomplete longtail)"         in ~/.bashrc or ~/.zshrc

Names come from `names.py`, so nothing waits for torch; only where a flag was begun that no run
without a benchmark has, the settings of the benchmark are looked up, which takes a second or two.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from longtail.names import LOGGERS, METHOD_NAMES, POLICIES
from longtail.support import doors

NAMES = {
    "benchmark": ("toy", *doors.offered("longtail.benchmarks")),
    "method": (*METHOD_NAMES, *doors.offered("longtail.methods")),
    "optimizer": tuple(POLICIES),
    "log": LOGGERS,
    "device": ("auto", "cpu", "cuda"),
}


def complete(make_parser: Callable[[str | None], argparse.ArgumentParser], **options: Any) -> int:
    """Answers the shell, whose line is in the environment, and ends the process.

    Args:
        make_parser: the parser of a command, or of none.
        options: of argcomplete's `autocomplete`, for tests.
    """
    try:
        import argcomplete
    except ImportError:
        return 1
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0")) or None]
    words = line.split()[1:]
    command = next((word for word in words if not word.startswith("-")), "")
    known = _commands(make_parser(None))
    parser = make_parser(command if command in known else None)
    for action in _commands(parser)[command]._actions if command in known else ():
        if action.dest in NAMES and action.choices is None:
            offered = argcomplete.ChoicesCompleter(NAMES[action.dest])
            action.completer = offered  # pyright: ignore[reportAttributeAccessIssue]
    if command == "run":
        _add_settings(_commands(parser)["run"], words, begun=not line.endswith(" "))
    argcomplete.autocomplete(parser, **options)
    return 0


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(commands.choices)


def _add_settings(parser: argparse.ArgumentParser, words: list[str], *, begun: bool) -> None:
    """The flags of a benchmark's settings, where the word in hand is a flag that no run has."""
    last = words[-1] if words and begun else ""
    known = [flag for action in parser._actions for flag in action.option_strings]
    if len(words) < 3 or not last.startswith("--") or any(f.startswith(last) for f in known):
        return
    from longtail.cli.run import add_setting_flags
    from longtail.runs.config import options

    def after(flag: str, default: str) -> str:
        return words[words.index(flag) + 1] if flag in words[:-1] else default

    method = after("--method", "finetune")
    try:
        settings = options(words[1], method, after("--optimizer", "continual"))
    except (ValueError, ImportError):
        return
    add_setting_flags(parser, settings, method)
