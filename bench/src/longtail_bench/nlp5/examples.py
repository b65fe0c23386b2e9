"""One example of the five NLP tasks: a context, a question and its answers, all of them text.

The form of decaNLP (McCann et al., 2018) and LAMOL (Sun et al., 2020): whatever the task, a model
reads context and question and writes the answer.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """One question.

    Attributes:
        context: what the question is about.
        question: the question.
        answers: answers that count as right; the first is the one to learn.
        at: where the first answer begins in the context, -1 where it is not part of it.
        group: what belongs together when scored: the turns of a dialogue (WOZ).
        columns: the table's columns, by which the answer is parsed (WikiSQL).
    """

    context: str
    question: str
    answers: tuple[str, ...]
    at: int = -1
    group: str = ""
    columns: tuple[str, ...] = ()


def flat(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


def text_of(path: Path) -> str:
    """The content of a file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def whole_lines(path: Path) -> str:
    """The content of a file of lines; `ValueError` where it is empty or was cut off."""
    text = text_of(path)
    if not text.strip():
        raise ValueError(f"{path} is empty")
    require_end(path, text)
    return text


def require_end(path: Path, text: str) -> None:
    """Refuse a last line without its end: half a line of a file that was cut may look whole."""
    if not text.endswith("\n"):
        raise ValueError(
            f"{path} ends in the middle of a line, as a part of a file does; if it is whole, end "
            "its last line"
        )


def parse_json(path: Path) -> Any:
    """A JSON file; `ValueError` names the file and the line that is broken."""
    text = text_of(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise ValueError(f"{path}: not JSON that can be read: {error}") from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers; empty lines are passed over."""
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
            raise ValueError(f"{path}:{number}: not JSON that can be read: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"{path}:{number}: a {type(found).__name__}, not an object")
        yield number, found


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file by the names in its head, each with the place where it stands."""
    # strict: a quotation mark that is never closed would swallow the rest of the file
    reader = csv.DictReader(io.StringIO(whole_lines(path), newline=""), strict=True)
    line = 2
    try:
        for row in reader:
            place, line = f"{path}:{line}", reader.line_num + 1
            if None in row or None in row.values():
                raise ValueError(f"{place}: a field too many or too few")
            yield place, row
    except csv.Error as error:
        raise ValueError(f"{path}:{line}: {error}") from None


def malformed(place: str, error: Exception) -> ValueError:
    """What to raise where a record lacks a field or has one of a wrong kind."""
    missing = f"no field {error}" if isinstance(error, KeyError) else str(error)
    return ValueError(f"{place}: {missing}")


# What reading a field of a damaged record can raise.
DAMAGE = (KeyError, TypeError, AttributeError, IndexError, ValueError)
