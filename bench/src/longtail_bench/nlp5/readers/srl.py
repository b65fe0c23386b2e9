"""QA-SRL: who did what to whom, as questions about a sentence's verbs, answered by its phrases.

=================================  ==============================================================
original (He et al., 2015)         ``wiki1.train.qa``: text, see `_original`
gold standard (Roit et al., 2020)  ``wikinews.dev.gold.csv``, sentences in a file of their own
=================================  ==============================================================

A question has several answers where the sentence, or the annotators, give several.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from longtail_bench.nlp5.examples import (
    DAMAGE,
    Example,
    csv_rows,
    flat,
    malformed,
    require_end,
    text_of,
)

BETWEEN_SPANS = "~!~"
BETWEEN_ANSWERS = "###"


def read(path: Path) -> list[Example]:
    """The questions of one file of either form, told apart by its name."""
    return _gold(path) if path.suffix == ".csv" else list(_original(path))


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


def _gold(path: Path) -> list[Example]:
    """Rows of one question share sentence, verb and question; their answers are put together."""
    sentences = _sentences(path)
    answers: dict[tuple[str, str, str], list[str]] = {}
    for place, row in csv_rows(path):
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


def _sentences(gold: Path) -> dict[str, str]:
    """The sentences by their ids, from the file that belongs to one of the gold standard."""
    stem = gold.name.removesuffix(".gold.csv")
    path = gold.parent.parent / "sentences" / f"{stem}.full.csv"
    if not path.exists():
        raise ValueError(f"{gold} needs its sentences: put {path.name} into {path.parent}")
    sentences = {}
    for place, row in csv_rows(path):
        try:
            sentences[row["qasrl_id"]] = flat(row["tokens"])
        except DAMAGE as error:
            raise malformed(place, error) from None
    return sentences
