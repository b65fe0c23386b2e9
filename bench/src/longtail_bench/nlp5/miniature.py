"""Made-up examples of all five tasks, small enough for a random model to learn something from.

The same forms as the real ones, from few words, so that a model of bytes sees each word often.
"""

from __future__ import annotations

import numpy as np

from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.readers import sst, wikisql, woz
from longtail_bench.nlp5.readers.wikisql import Query

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn")
PLACES = ("Oslo", "Rome", "Lima", "Cairo", "Kyoto", "Quito")
GOOD = ("bright", "warm", "lovely", "funny")
BAD = ("dull", "cold", "awful", "boring")
COLUMNS = ("name", "town", "year")
FOODS = ("thai", "greek", "cuban")
AREAS = ("north", "south", "centre")


def miniature(task: str, train: int = 64, test: int = 12) -> tuple[list[Example], list[Example]]:
    """So many examples for training and testing; the same ones every time."""
    draw = np.random.default_rng([*task.encode()])
    made = [_MAKERS[task](draw, number) for number in range(train + test)]
    return made[:train], made[train:]


def _one(draw: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[draw.integers(len(words))]


def _squad(draw: np.random.Generator, number: int) -> Example:
    name, place, year = _one(draw, NAMES), _one(draw, PLACES), str(draw.integers(1990, 2000))
    context = f"{name} went to {place} in {year}."
    question, answer = (
        (f"Where did {name} go?", place),
        (f"When did {name} go?", year),
        (f"Who went to {place}?", name),
    )[draw.integers(3)]
    return Example(context, question, (answer,), context.index(answer))


def _wikisql(draw: np.random.Generator, number: int) -> Example:
    column, where = draw.permutation(len(COLUMNS))[:2]
    value = (NAMES, PLACES, ("1991", "1992", "1993"))[where]
    aggregate = _one(draw, ("", "", "COUNT"))
    word = _one(draw, value)
    query = Query(aggregate, COLUMNS[column], ((COLUMNS[where], "=", word),))
    ask = "how many" if aggregate else "which"
    context = f"columns {', '.join(COLUMNS)} -- {ask} {COLUMNS[column]} has {COLUMNS[where]} {word}"
    return Example(context, wikisql.QUESTION, (str(query),), columns=COLUMNS)


def _sst(draw: np.random.Generator, number: int) -> Example:
    good = bool(draw.integers(2))
    words = [_one(draw, GOOD if good else BAD) for _ in range(2)]
    return Example(
        f"A {words[0]} and {words[1]} film.",
        sst.QUESTION,
        ("positive" if good else "negative",),
    )


def _qasrl(draw: np.random.Generator, number: int) -> Example:
    name, other = _one(draw, NAMES), _one(draw, NAMES)
    verb = _one(draw, ("saw", "met", "called"))
    context = f"{name} {verb} {other} ."
    first = bool(draw.integers(2))
    question = f"Who {verb} someone?" if first else f"Who did someone {verb}?"
    answer = name if first else other
    return Example(context, question, (answer,), context.find(answer))


def _woz(draw: np.random.Generator, number: int) -> Example:
    goals: dict[str, str] = {}
    requests: list[str] = []
    words = []
    if number % 2 == 0 or draw.integers(2):
        goals["food"] = _one(draw, FOODS)
        words.append(f"{goals['food']} food")
    if draw.integers(2):
        goals["area"] = _one(draw, AREAS)
        words.append(f"in the {goals['area']}")
    if draw.integers(2):
        requests.append("phone")
        words.append("what is the phone number?")
    text = " ".join(words) or "thanks"
    answer = woz.answer_of(goals, requests)
    return Example(text, woz.QUESTION, (answer,), group=str(number // 2))


_MAKERS = {"squad": _squad, "wikisql": _wikisql, "sst": _sst, "qasrl": _qasrl, "woz": _woz}
