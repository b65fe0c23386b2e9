"""Which questions make a task, and which objects are tasks.

A task is an object name. With Q(o) the training questions that mention object o,

    tasks = the objects with  smallest <= |Q(o)| <= largest,  the most frequent first

The paper says of its 1,000 tasks: the largest is 'appliance' with 2,396 questions, "questions
containing the word", and a task has 137.86 question-image pairs on average. In all of GQA, 'man' is
in forty times as many questions as 'appliance', so the most frequent objects must have been left
out. docs/benchmarks/vqa.md has the counts by which the default rule was chosen.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from longtail.benchmarks.vqa.gqa.questions import Question
from longtail.benchmarks.vqa.options import MentionRule

PAPER = {"tasks": 1000, "largest": 2396, "largest_name": "appliance", "mean": 137.86}
PAPER_ANSWERS = 1853

_WORDS = re.compile(r"[a-z0-9'-]+")


class Mentions:
    """The objects that a question is about, as numbers in `names`.

    Args:
        names: the object names.
        rule: "text": names in the question's words; "program": names its program selects or
            relates; "annotation": names of the scene graph's objects that it points to; "any".
        object_name: (image, object id) -> name; needed by "annotation" and "any".
    """

    def __init__(
        self,
        names: Sequence[str],
        rule: MentionRule = "text",
        object_name: Callable[[str, str], str | None] | None = None,
    ) -> None:
        self.rule, self.object_name = rule, object_name
        self.number = {name: i for i, name in enumerate(names)}
        spoken = {tuple(_WORDS.findall(name.lower())): i for i, name in enumerate(names)}
        self.spoken = spoken
        self.longest = max(map(len, spoken), default=0)

    def __call__(self, question: Question) -> list[int]:
        found: set[int] = set()
        if self.rule in ("text", "any"):
            found |= self.in_text(question.text)
        if self.rule in ("program", "any"):
            found |= self._known(question.program_names())
        if self.rule in ("annotation", "any") and self.object_name is not None:
            get = self.object_name
            found |= self._known(get(question.image, id_) for id_ in question.objects)
        return sorted(found)

    def in_text(self, text: str) -> set[int]:
        """Names that stand in the text as whole words; 'coffee table' holds 'table' as well."""
        words = _WORDS.findall(text.lower())
        return {
            number
            for length in range(1, self.longest + 1)
            for start in range(len(words) - length + 1)
            if (number := self.spoken.get(tuple(words[start : start + length]))) is not None
        }

    def _known(self, names: Iterable[str | None]) -> set[int]:
        return {self.number[name] for name in names if name in self.number}


def select_tasks(
    train: np.ndarray,
    test: np.ndarray,
    *,
    tasks: int,
    largest: int = 0,
    smallest: int = 1,
    exclude: Iterable[int] = (),
) -> np.ndarray:
    """The objects that become tasks, the most frequent first; ties in the order of the names.

    `train` and `test` count the questions of each object. `largest` 0 means no limit; an object
    without a test question cannot be scored and is no task.
    """
    fits = (train >= max(smallest, 1)) & (test > 0)
    if largest:
        fits &= train <= largest
    fits[list(exclude)] = False
    chosen = np.flatnonzero(fits)
    return chosen[np.argsort(-train[chosen], kind="stable")][:tasks]


def segments(rows: Sequence[Sequence[int]], chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and rows of the chosen objects, from the objects mentioned in each row."""
    place = {int(name): i for i, name in enumerate(chosen)}
    pairs = [(place[m], n) for n, mentioned in enumerate(rows) for m in mentioned if m in place]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    found = found[np.argsort(found[:, 0], kind="stable")]
    sizes = np.bincount(found[:, 0], minlength=len(chosen))
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), found[:, 1].copy()
