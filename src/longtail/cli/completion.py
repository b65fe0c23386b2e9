"""What a shell offers when Tab is pressed: commands, flags, names. Needs argcomplete.

    pip install 'longtail[complete]'
    eval "$(register-python-argcomplete longtail)"         in ~/.bashrc or ~/.zshrc

Names come from `names.py` and from entry points, so that nobody waits for torch. The settings of a
benchmark, of which only its code knows, are shown by `longtail run BENCHMARK --help`.
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
    "policy": tuple(POLICIES),
    "optimizer": ("adamw", "adam", *doors.offered("longtail.optimizers")),
    "log": LOGGERS,
    "device": ("auto", "cpu", "cuda"),
}


def complete(make_parser: Callable[[str | None], argparse.ArgumentParser], **options: Any) -> int:
    """Answers the shell, whose line is in the environment, and ends the process.

    Args:
        make_parser: the parser, with the arguments of one command.
        options: of argcomplete's `autocomplete`, for tests.
    """
    try:
        import argcomplete
    except ImportError:
        return 1
    words = os.environ.get("COMP_LINE", "").split()[1:]
    command = next((word for word in words if not word.startswith("-")), "")
    parser = make_parser(command)
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for action in commands.choices[command]._actions if command in commands.choices else ():
        if action.dest in NAMES and action.choices is None:
            names = argcomplete.ChoicesCompleter(NAMES[action.dest])
            action.completer = names  # pyright: ignore[reportAttributeAccessIssue]
    argcomplete.autocomplete(parser, **options)
    return 0
