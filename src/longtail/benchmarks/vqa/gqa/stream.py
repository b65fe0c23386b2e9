"""Read a huge JSON object member by member, and count what is wrong with the members.

    for name, value in members(path): ...

A file of 1.6 GB passes through a buffer of a few megabytes: `JSONDecoder.raw_decode` reads the
value at the start of the buffer, and where the buffer ends first, more is read. GQA's files are one
line each, so a broken one is named with the byte where it breaks.
"""

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1 << 22
LONGEST = 1 << 28
"""Characters of one value; nobody publishes a scene graph of more, so the file must be broken."""

DUPLICATE = "id that was there before"

_SPACE = " \t\n\r"


class Problems:
    """What is wrong with data: counted and listed by kind, or refused at once (`strict`)."""

    SHOWN = 5
    LISTED = 100_000  # of a kind: a list for people, in bounded memory

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def note(self, kind: str, where: str) -> None:
        if self.strict:
            raise ValueError(f"{where}: {kind}")
        self.counts[kind] += 1
        if self.counts[kind] <= self.LISTED:
            self.examples.setdefault(kind, []).append(where)

    def merge(self, kind: str, count: int, examples: list[str]) -> None:
        """Add what was noted elsewhere, in an earlier reading of files that are cached."""
        if self.strict:
            raise ValueError(f"{examples[0]}: {kind}")
        self.counts[kind] += count
        self.examples.setdefault(kind, []).extend(examples)
        del self.examples[kind][self.LISTED :]

    def lines(self) -> list[str]:
        """One sentence a kind, with the first few."""
        return [
            f"{kind}: {count:,} ({', '.join(self.examples[kind][: self.SHOWN])}"
            f"{', ...' if count > self.SHOWN else ''})"
            for kind, count in self.counts.most_common()
        ]


def listed(value: Any) -> list[Any]:
    """A list; anything else where one should be counts as empty."""
    return value if isinstance(value, list) else []


def members(path: Path, chunk: int = CHUNK) -> Iterator[tuple[str, dict[str, Any]]]:
    """The members of the object in a file; ValueError with file, byte and line where it breaks."""
    with open(path, "rb") as file:
        buffer = _Buffer(file, path, chunk)
        buffer.expect("{")
        if buffer.peek() == "}":
            return buffer.end()
        while True:
            key = buffer.value()
            if not isinstance(key, str):
                raise buffer.broken(f"expected a name, found {str(key)[:40]!r}")
            buffer.expect(":")
            value = buffer.value()
            if not isinstance(value, dict):
                raise buffer.broken(f"{key} is a {type(value).__name__}, not an object")
            yield key, value
            if buffer.peek() == "}":
                return buffer.end()
            buffer.expect(",")


class _Buffer:
    """A window on the file's text, and where it is in the file."""

    def __init__(self, file: Any, path: Path, chunk: int) -> None:
        self.file, self.path, self.chunk = file, path, chunk
        self.decode = codecs.getincrementaldecoder("utf-8-sig")()
        self.scan = json.JSONDecoder().raw_decode
        self.text, self.at = "", 0
        self.bytes, self.lines = 0, 1  # of the text that has been let go
        self.ended = False

    def more(self) -> bool:
        """Let go of what was read and append to the rest; False at the end of the file."""
        if self.ended:
            return False
        gone, rest = self.text[: self.at], self.text[self.at :]
        self.bytes += len(gone) if gone.isascii() else len(gone.encode())
        self.lines += gone.count("\n")
        self.text, self.at = rest, 0
        # twice the rest: a value that does not fit is scanned again only as often as it doubles
        data = self.file.read(max(self.chunk, len(rest)))
        self.ended = not data
        try:
            self.text += self.decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self.broken(f"not UTF-8 ({error.reason})") from None
        return not self.ended

    def peek(self) -> str:
        """The next character that is no space, or "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def expect(self, character: str) -> None:
        found = self.peek()
        if found != character:
            raise self.broken(f"expected {character!r}, found {found!r}" if found else "it ends")
        self.at += 1

    def end(self) -> None:
        """The object closes here, and the file with it."""
        self.expect("}")
        if found := self.peek():
            raise self.broken(f"expected nothing more, found {found!r}")

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, self.at = self.scan(self.text, self.at)
                return value
            except json.JSONDecodeError as error:
                # within the last few characters, or in a string without end: perhaps cut off here
                unended = error.msg.startswith("Unterminated")
                cut = unended or error.pos > len(self.text) - 16
                if cut and not self.ended and len(self.text) - self.at < LONGEST:
                    self.more()
                    continue
                self.at = error.pos
                ends = unended or error.pos >= len(self.text.rstrip())
                raise self.broken("it ends within a value" if ends else error.msg) from None
            except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
                raise self.broken(str(error)) from None

    def broken(self, what: str) -> ValueError:
        before = self.text[: self.at]
        line = self.lines + before.count("\n")
        byte = self.bytes + len(before.encode())
        return ValueError(f"{self.path}, byte {byte:,} (line {line:,}): broken JSON: {what}")
