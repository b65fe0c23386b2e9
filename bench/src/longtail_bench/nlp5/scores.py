"""What an answer is worth, by the measure of its task's field; 0 to 1 per example.

=========  ====================================================================================
squad      F1 of the words shared with an answer, both normalised, best over the answers
qasrl      the same
wikisql    1 where the query, parsed, has the logical form of the answer
sst        1 where the text is the answer
woz        1 where all goals of the dialogue up to this turn are right (joint goal)
=========  ====================================================================================

Normalised: lower case, without punctuation, articles and surplus space (SQuAD's rules).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from longtail_bench.nlp5.examples import Example, flat
from longtail_bench.nlp5.readers.wikisql import AGGREGATES, OPERATORS, Query
from longtail_bench.nlp5.readers.woz import NOTHING

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """SQuAD's rules: lower case, no punctuation, no articles, single spaces."""
    return flat(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)))


def f1(prediction: str, answer: str) -> float:
    """The harmonic mean of precision and recall over normalised words, counted with repetition.

    Two texts of which nothing is left (of one, too) agree where both are empty.
    """
    ours, theirs = normalise(prediction).split(), normalise(answer).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def best_f1(prediction: str, example: Example) -> float:
    return max(f1(prediction, answer) for answer in example.answers)


def exact(prediction: str, example: Example) -> float:
    return float(flat(prediction) in example.answers)


def parse_sql(text: str, columns: Sequence[str]) -> Query | None:
    """The query a text says, in lower case; None where it is none, or of unknown columns.

    Column names hold spaces and signs of all sorts, so they are looked for as they are, the longest
    first; a value goes on to the next ``AND column operator`` or to the end.
    """
    names = sorted({flat(name).lower() for name in columns}, key=len, reverse=True)
    found = re.fullmatch(r"select (.+?) from table(?: where (.+))?", flat(text).lower())
    if found is None or not names:
        return None
    head, tests = found.groups()
    aggregate, _, rest = head.partition(" ")
    if head in names:
        aggregate, column = "", head
    elif aggregate.upper() in AGGREGATES[1:] and rest in names:
        column = rest
    else:
        return None
    conditions = [] if tests is None else _conditions(tests, names)
    return None if conditions is None else Query(aggregate.upper(), column, tuple(conditions))


def _conditions(text: str, names: list[str]) -> list[tuple[str, str, str]] | None:
    columns = "|".join(map(re.escape, names))
    operators = "|".join(map(re.escape, (op.lower() for op in OPERATORS)))
    found = list(re.finditer(rf"(?:^|(?<= )and )({columns}) ({operators}) ", text))
    if not found or found[0].start() != 0:
        return None
    ends = [match.start() for match in found[1:]] + [len(text)]
    values = [text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)]
    if not all(values):
        return None
    pairs = zip(found, values, strict=True)
    return [(match[1], match[2].upper(), value) for match, value in pairs]


def same_query(a: Query, b: Query) -> bool:
    """Equal aggregate, column and set of conditions: their order means nothing."""
    return a[:2] == b[:2] and set(a.conditions) == set(b.conditions)


def logical_form(prediction: str, example: Example) -> float | None:
    """1 or 0; None where the prediction cannot be parsed."""
    ours = parse_sql(prediction, example.columns)
    theirs = parse_sql(example.answers[0], example.columns)
    if ours is None:
        return None
    if theirs is None:  # a value that itself reads like a condition
        return float(flat(prediction).lower() == flat(example.answers[0]).lower())
    return float(same_query(ours, theirs))


def parse_state(text: str) -> tuple[dict[str, str], set[str]]:
    """Goals and requests of ``food: thai, area: east; phone``; what makes no sense is left out."""
    if text.strip() == NOTHING:
        return {}, set()
    before, _, after = text.lower().partition(";")
    pairs = [part.partition(":") for part in before.split(",")]
    goals = {flat(slot): flat(value) for slot, colon, value in pairs if colon and value.strip()}
    return goals, {flat(part) for part in after.split(",") if part.strip()}


def joint_goals(predictions: Sequence[str], examples: Sequence[Example]) -> list[float]:
    """1 for each turn after which the goals of its dialogue, put together, are all right.

    The turns of a dialogue follow one another; its goals begin empty.
    """
    scores: list[float] = []
    group: str | None = None
    ours: dict[str, str] = {}
    theirs: dict[str, str] = {}
    for prediction, example in zip(predictions, examples, strict=True):
        if example.group != group:
            group, ours, theirs = example.group, {}, {}
        ours.update(parse_state(prediction)[0])
        theirs.update(parse_state(example.answers[0])[0])
        scores.append(float(ours == theirs))
    return scores


def score(
    task: str, predictions: Sequence[str], examples: Sequence[Example]
) -> tuple[list[float], list[bool]]:
    """The score of each prediction, and whether it could not be parsed (WikiSQL)."""
    if task == "woz":
        return joint_goals(predictions, examples), [False] * len(examples)
    each = _SCORES[task]
    found = [each(prediction, e) for prediction, e in zip(predictions, examples, strict=True)]
    return [value or 0.0 for value in found], [value is None for value in found]


_SCORES: dict[str, Callable[[str, Example], float | None]] = {
    "squad": best_f1,
    "wikisql": logical_form,
    "sst": exact,
    "qasrl": best_f1,
}
