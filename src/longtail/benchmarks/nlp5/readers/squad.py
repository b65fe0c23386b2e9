"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018) and XQuAD, in the forms they are found in.

=================  ============================================================================
published          ``{"data": [{"paragraphs": [{"context", "qas": [{"question", "answers":
                   [{"text", "answer_start"}], "is_impossible"}]}]}]}``
paragraphs         ``[{"context", "qas": [{"question", "answer"}]}]``
JSON lines         ``{"context", "question", "answers": {"text": [...], "answer_start": [...]}}``
=================  ============================================================================

A question of SQuAD 2.0 that has no answer is answered "unanswerable".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longtail.benchmarks.nlp5.examples import DAMAGE, Example, json_lines, malformed, parse_json

UNANSWERABLE = "unanswerable"


def read(path: Path) -> list[Example]:
    """The questions of one file."""
    if ".jsonl" in path.name:
        return [_checked(f"{path}:{n}", row["context"], row) for n, row in _rows(path)]
    found = parse_json(path)
    articles = found.get("data") if isinstance(found, dict) else found
    if not isinstance(articles, list):
        raise ValueError(f"{path} is not SQuAD: it has no list of articles under 'data'")
    return [_checked(place, text, qa) for place, text, qa in _questions(path, articles)]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in json_lines(path):
        if "context" not in row:
            raise ValueError(f"{path}:{number}: no field 'context'")
        yield number, row


def _questions(path: Path, articles: list[Any]) -> Iterator[tuple[str, str, Any]]:
    for a, article in enumerate(articles):
        place = f"{path}, article {a}"
        try:
            for p, paragraph in enumerate(article.get("paragraphs", [article])):
                place = f"{path}, article {a}, paragraph {p}"
                for q, qa in enumerate(paragraph["qas"]):
                    yield f"{place}, question {q}", paragraph["context"], qa
        except DAMAGE as error:
            raise malformed(place, error) from None


def _checked(place: str, context: str, qa: Any) -> Example:
    try:
        return _example(context, qa)
    except DAMAGE as error:
        raise malformed(place, error) from None


def _example(context: str, qa: dict[str, Any]) -> Example:
    if not isinstance(context, str):
        raise TypeError(f"the context is {context!r:.40}, no text")
    found = qa["answers"] if "answers" in qa else [{"text": qa["answer"]}]
    if isinstance(found, dict):  # columns, as Hugging Face keeps them
        starts = found.get("answer_start") or [-1] * len(found["text"])
        pairs = zip(found["text"], starts, strict=True)
        found = [{"text": text, "answer_start": at} for text, at in pairs]
    if qa.get("is_impossible") or not found:
        return Example(context, qa["question"].strip(), (UNANSWERABLE,))
    answers = tuple(dict.fromkeys(answer["text"].strip() for answer in found))
    if not all(answers):
        raise ValueError("an answer without text")
    at = found[0].get("answer_start", -1)
    if context[at : at + len(answers[0])] != answers[0]:
        at = context.find(answers[0])
    return Example(context, qa["question"].strip(), answers, at)
