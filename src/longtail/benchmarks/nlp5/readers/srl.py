"""QA-SRL: who did what to whom, as questions about a sentence's verbs, answered by its phrases.

==================================  =============================================================
original (He et al., 2015)          ``wiki1.train.qa``: text, see `_original`
Bank 2.0 (FitzGerald et al., 2018)  ``train.jsonl.gz``: one sentence a line, spans of its tokens
gold standard (Roit et al., 2020)   ``wikinews.dev.gold.csv``, sentences in a file of their own
==================================  =============================================================

A question has several answers where the sentence, or the annotators, give several.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longtail.benchmarks.nlp5.examples import (
    DAMAGE,
    Example,
    flat,
    json_lines,
    malformed,
    require_end,
    text_of,
    whole_lines,
)

BETWEEN_SPANS = "~!~"
BETWEEN_ANSWERS = "###"


def read(path: Path) -> list[Example]:
    """The questions of one file of any of the three forms, told apart by its name."""
    if path.name.endswith(".qa"):
        return list(_original(path))
    if ".jsonl" in path.name:
        return [example for n, row in json_lines(path) for example in _bank(f"{path}:{n}", row)]
    if path.suffix == ".csv":
        return _gold(path)
    raise ValueError(f"{path} is none of .qa, .jsonl, .jsonl.gz and .csv")


def _example(sentence: str, question: str, answers: list[str]) -> Example:
    kept = tuple(dict.fromkeys(flat(answer) for answer in answers if answer.strip()))
    if not kept:
        raise ValueError("a question without an answer")
    return Example(sentence, flat(question), kept, sentence.find(kept[0]))


def _original(path: Path) -> Iterator[Example]:
    """Blocks between empty lines, fields between tabs::

        WIKI1_0<tab>1                                     sentence id, number of verbs
        The band began recording in May .                 the sentence
        2<tab>began<tab>1                                 index, verb, number of questions
        who<tab>_<tab>_<tab>began<tab>something<tab>_<tab>_<tab>?<tab>The band ### it

    Slots of a question that are empty hold an underscore.
    """
    sentence, expected = "", 0
    text = text_of(path)
    lines = text.split("\n")
    state = "id"
    for number, line in enumerate(lines, 1):
        place, fields = f"{path}:{number}", line.strip().split("\t")
        if not line.strip():
            if expected:
                raise ValueError(f"{place}: {expected} questions missing")
            state = "id"
        elif state == "id":
            if len(fields) != 2 or not fields[1].isdigit():
                raise ValueError(f"{place}: expected a sentence id and a number of verbs")
            state = "sentence"
        elif state == "sentence":
            sentence, state = flat(line), "verbs"
        elif expected:
            question, mark, answers = line.partition("?")
            if not mark or not answers.strip():
                raise ValueError(f"{place}: a question without an answer")
            words = " ".join(word for word in question.split() if word != "_")
            expected -= 1
            yield _example(sentence, f"{words}?", answers.split(BETWEEN_ANSWERS))
        elif len(fields) == 3 and fields[0].isdigit() and fields[2].isdigit():
            expected = int(fields[2])
        else:
            raise ValueError(f"{place}: expected a verb's index, the verb, a number of questions")
    if expected or state == "sentence":
        what = f"{expected} questions" if expected else "a sentence"
        raise ValueError(f"{path}:{len(lines)}: it ends, and {what} missing")
    require_end(path, text)


def _bank(place: str, row: dict[str, Any]) -> Iterator[Example]:
    """Questions that most annotators call valid, with the spans of those who do."""
    try:
        tokens = row["sentenceTokens"]
        sentence = flat(" ".join(tokens))
        for verb in row["verbEntries"].values():
            for text, label in verb["questionLabels"].items():
                judgments = label["answerJudgments"]
                valid = [judgment for judgment in judgments if judgment["isValid"]]
                if 2 * len(valid) <= len(judgments):
                    continue
                spans = [span for judgment in valid for span in judgment["spans"]]
                answers = [" ".join(tokens[start:end]) for start, end in spans]
                yield _example(sentence, label.get("questionString", text), answers)
    except DAMAGE as error:
        raise malformed(place, error) from None


def _gold(path: Path) -> list[Example]:
    """Rows of one question share sentence, verb and question; their answers are put together."""
    sentences = _sentences(path)
    answers: dict[tuple[str, str, str], list[str]] = {}
    for place, row in _rows(path):
        try:
            if row["qasrl_id"] not in sentences:
                raise ValueError(f"there is no sentence {row['qasrl_id']}")
            key = (row["qasrl_id"], row["verb_idx"], row["question"])
            found = row["answer"].split(BETWEEN_SPANS)
            if not any(answer.strip() for answer in found):
                raise ValueError("a question without an answer")
            answers.setdefault(key, []).extend(found)
        except DAMAGE as error:
            raise malformed(place, error) from None
    return [_example(sentences[key[0]], key[2], found) for key, found in answers.items()]


def _sentences(path: Path) -> dict[str, str]:
    stem = path.name.removesuffix(".csv").removesuffix(".gold")
    folders = (path.parent, path.parent.parent / "sentences")
    names = [f"{stem}{end}.csv" for end in (".full", ".sentences", "")]
    places = [folder / name for folder in folders for name in names]
    beside = next((place for place in places if place.exists() and place != path), None)
    if beside is None:
        raise ValueError(f"{path} needs its sentences: put {names[0]} into {folders[1]}")
    found = {}
    for place, row in _rows(beside):
        try:
            found[row["qasrl_id"]] = flat(row.get("tokens") or row["sentence"])
        except DAMAGE as error:
            raise malformed(place, error) from None
    return found


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
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
