"""Stanford Sentiment Treebank, binary (Socher et al., 2013), in the forms it is found in.

======================  ==================================================================
comma separated         ``label,sentence``, with or without that head, in either order
tab separated, GLUE     ``sentence<tab>label``; GLUE's test file has no labels
Hugging Face            ``sentence``, ``label``, ``idx`` as CSV, JSON lines or Parquet
======================  ==================================================================

Labels are 0 and 1, or "negative" and "positive". Rows without a label (-1) are left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longtail.benchmarks.nlp5.examples import Example, flat, json_lines, whole_lines

QUESTION = "Is this review negative or positive?"
LABELS = {"0": "negative", "1": "positive", "negative": "negative", "positive": "positive"}
SENTENCE = ("sentence", "text", "review")


def read(path: Path) -> list[Example]:
    """The labelled sentences of one file."""
    if path.suffix == ".parquet":
        rows = _parquet(path)
    elif ".jsonl" in path.name:
        rows = ((f"{path}:{n}", _pick(f"{path}:{n}", row)) for n, row in json_lines(path))
    else:
        rows = _separated(path)
    found = [
        Example(flat(sentence), QUESTION, (_label(place, label),))
        for place, (sentence, label) in rows
        if str(label) != "-1"
    ]
    if not found:
        raise ValueError(f"{path} has no labelled sentence")
    return found


def _label(place: str, label: Any) -> str:
    try:
        return LABELS[str(label).strip().lower()]
    except KeyError:
        raise ValueError(f"{place}: label {label!r} is none of 0, 1, negative, positive") from None


def _pick(place: str, row: dict[str, Any]) -> tuple[str, Any]:
    name = next((name for name in SENTENCE if isinstance(row.get(name), str)), None)
    if name is None or "label" not in row:
        raise ValueError(f"{place}: needs 'sentence' and 'label', has {', '.join(map(str, row))}")
    return row[name], row["label"]


def _separated(path: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    tabs = path.suffix == ".tsv"
    # GLUE's files are not quoted: a quotation mark there is part of the sentence
    options: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    reader = csv.reader(io.StringIO(whole_lines(path), newline=""), **options)
    names: list[str] | None = None
    line = 1
    try:
        for row in reader:
            place, line = f"{path}:{line}", reader.line_num + 1
            if not row:
                continue
            if names is None:
                names = [name.strip().lower() for name in row]
                if "label" in names:
                    continue
                if "sentence" in names:
                    raise ValueError(
                        f"{path} has no labels (GLUE keeps those of its test file): "
                        "take it away, and the development file is the test"
                    )
                names = (
                    ["label", "sentence"]
                    if row[0].strip().lower() in LABELS
                    else ["sentence", "label"]
                )
            if len(row) != len(names):
                raise ValueError(f"{place}: {len(row)} fields, expected {len(names)}")
            yield place, _pick(place, dict(zip(names, row, strict=True)))
    except csv.Error as error:
        raise ValueError(f"{path}:{line}: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, tuple[str, Any]]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path.name} is a Parquet file and needs pyarrow: pip install 'longtail[parquet]'"
        ) from None
    try:
        table = parquet.read_table(path).to_pylist()
    except Exception as error:  # Arrow has errors of its own, in which no file is named
        raise ValueError(f"{path} is not a Parquet file that can be read: {error}") from None
    for number, row in enumerate(table):
        place = f"{path}, row {number}"
        yield place, _pick(place, row)
