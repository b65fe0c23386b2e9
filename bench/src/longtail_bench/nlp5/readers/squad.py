"""SQuAD 1.1 (Rajpurkar et al., 2016) and XQuAD, as published or as a list of paragraphs.

==========  ====================================================================================
published   ``{"data": [{"paragraphs": [{"context", "qas": [{"question",
            "answers": [{"text", "answer_start"}]}]}]}]}``
paragraphs  ``[{"context", "qas": [{"question", "answer"}]}]``
==========  ====================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longtail_bench.nlp5.examples import DAMAGE, Example, malformed, parse_json


def read(path: Path) -> list[Example]:
    """The questions of one file."""
    content = parse_json(path)
    articles = content.get("data") if isinstance(content, dict) else content
    if not isinstance(articles, list):
        raise ValueError(f"{path} is not SQuAD: it has no list of articles under 'data'")
    examples: list[Example] = []
    for a, article in enumerate(articles):
        place = f"{path}, article {a}"
        try:
            for p, paragraph in enumerate(article.get("paragraphs", [article])):
                place = f"{path}, article {a}, paragraph {p}"
                for q, qa in enumerate(paragraph["qas"]):
                    place = f"{path}, article {a}, paragraph {p}, question {q}"
                    examples.append(_example(paragraph["context"], qa))
        except DAMAGE as error:
            raise malformed(place, error) from None
    return examples


def _example(context: str, qa: dict[str, Any]) -> Example:
    if not isinstance(context, str):
        raise TypeError(f"the context is {context!r:.40}, no text")
    given = qa["answers"] if "answers" in qa else [{"text": qa["answer"]}]
    answers = tuple(dict.fromkeys(answer["text"].strip() for answer in given))
    if not answers or not all(answers):
        raise ValueError("a question without an answer")
    at = given[0].get("answer_start", -1)
    if context[at : at + len(answers[0])] != answers[0]:
        at = context.find(answers[0])
    return Example(context, qa["question"].strip(), answers, at)
