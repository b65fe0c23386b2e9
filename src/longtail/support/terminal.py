"""What reaches a terminal is text: nothing that a file holds may command it.

A name in somebody else's folder may hold escape sequences, which hide lines, rename the window or
write to the clipboard. Every command prints to `guarded` streams, tables to a `console.Console`;
both write such characters out, as ``\\u001b`` for escape.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

# Control characters but tab and newline, and what turns the direction of a line around.
_COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What progress bars of other packages write: to the start of the line, and up to another bar.
_PROGRESS = re.compile("\r|(\x1b\\[A)+$")


def printable(text: str) -> str:
    """The text with each character that commands a terminal written out, as JSON writes it.

    >>> printable("a\\x1b[2Jb")
    'a\\\\u001b[2Jb'
    """
    return _COMMANDING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Guard:
    """A stream of text that commands no terminal; all else is as the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        start = match[0] if (match := _PROGRESS.match(text)) else ""
        self.stream.write(start + printable(text[len(start) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Within ``with``, what is printed commands no terminal."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Guard(sys.stdout), Guard(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def unguarded(stream: TextIO | Guard) -> TextIO:
    """The stream itself, for who writes colours to it and nothing else that commands."""
    while isinstance(stream, Guard):
        stream = stream.stream
    return stream
