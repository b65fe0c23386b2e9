"""Questions, and which of them make a task.

A task is an object name. With Q(o) the training questions in whose words object o stands,

    tasks = the objects with  smallest <= |Q(o)| <= largest,  the most frequent first

The paper says of its 1,000 tasks: the largest is 'appliance' with 2,396 questions, "questions
containing the word", and a task has 137.86 question-image pairs on average. In all of GQA, 'man' is
in forty times as many questions as 'appliance', so the most frequent objects must have been left
out. docs/benchmarks/vqa.md has the counts by which the rule was chosen.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.problems import Problems

PAPER = {"tasks": 1000, "largest": 2396, "largest_name": "appliance", "mean": 137.86}
PAPER_ANSWERS = 1853

_WORDS = re.compile(r"[a-z0-9'-]+")


@dataclass(frozen=True, slots=True)
class Question:
    """One question; `image` is the image's name."""

    id: str
    image: str
    text: str
    answer: str


Questions = Callable[[Problems], Iterable[Question]]
"""Reads the questions of a split from the first one on: there may be too many to be held."""


@dataclass(frozen=True)
class TaskQuestions:
    """The questions of all tasks, training and test; see `prepared.PreparedVQA`.

    Attributes:
        ids, questions, images: of each question its id, text and image.
        counts: of what was read and what was left out.
    """

    ids: list[str]
    questions: list[str]
    images: list[str]
    answers: np.ndarray
    answer_names: list[str]
    task_names: list[str]
    train_offsets: np.ndarray
    train_rows: np.ndarray
    test_offsets: np.ndarray
    test_rows: np.ndarray
    counts: dict[str, int]


class Mentions:
    """The objects in whose name a text speaks, as numbers in `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.numbers = {tuple(_WORDS.findall(name.lower())): i for i, name in enumerate(names)}
        self.longest = max(map(len, self.numbers), default=0)

    def __call__(self, text: str) -> list[int]:
        """Names that stand in the text as whole words; 'coffee table' holds 'table' as well."""
        words = _WORDS.findall(text.lower())
        mentioned: set[int] = set()
        for length in range(1, self.longest + 1):
            for start in range(len(words) - length + 1):
                number = self.numbers.get(tuple(words[start : start + length]))
                if number is not None:
                    mentioned.add(number)
        return sorted(mentioned)


def questions_of_tasks(
    names: list[str],
    train: Questions,
    test: Questions,
    options: DataOptions,
    problems: Problems,
) -> TaskQuestions:
    """Two passes over the questions: the first counts, the second keeps those of the tasks.

    Args:
        names: of the objects, the most frequent first.
        train, test: the questions.
        options: which objects are tasks.
        problems: takes what is wrong with questions.
    """
    mentions = Mentions(names)
    answers: set[str] = set()
    mentioned = np.zeros((2, len(names)), np.int64)
    totals = [0, 0]
    for part, read in enumerate((train, test)):
        for question in read(problems):
            totals[part] += 1
            answers.add(question.answer)
            mentioned[part, mentions(question.text)] += 1
    chosen = _chosen(names, mentioned, options)
    answer_names = sorted(answers)
    counts = {
        "train_questions": totals[0],
        "test_questions": totals[1],
        "object_names": len(names),
        "objects_mentioned": int(np.count_nonzero(mentioned[0])),
        "objects_above_largest": 0,
    }
    if options.largest:
        counts["objects_above_largest"] = int(np.count_nonzero(mentioned[0] > options.largest))

    answer_number = {answer: i for i, answer in enumerate(answer_names)}
    tasks = set(chosen.tolist())
    kept: list[Question] = []
    parts: dict[str, np.ndarray] = {}
    for part, read in (("train", train), ("test", test)):
        rows: list[list[int]] = [[] for _ in kept]
        for question in read(Problems()):  # what is wrong was noted in the first pass
            found = mentions(question.text)
            if not tasks.isdisjoint(found):
                rows.append(found)
                kept.append(question)
        parts[f"{part}_offsets"], parts[f"{part}_rows"] = segments(rows, chosen)
    return TaskQuestions(
        ids=[question.id for question in kept],
        questions=[question.text for question in kept],
        images=[question.image for question in kept],
        answers=np.array([answer_number[question.answer] for question in kept], np.int64),
        answer_names=answer_names,
        task_names=[names[i] for i in chosen],
        counts=counts,
        **parts,
    )


def _chosen(names: list[str], mentioned: np.ndarray, options: DataOptions) -> np.ndarray:
    """The objects that are tasks, from how many training and test questions speak of each."""
    number = {name: i for i, name in enumerate(names)}
    excluded = [word.strip() for word in options.exclude.split(",") if word.strip()]
    for word in excluded:
        if word not in number:
            raise ValueError(f"Invalid exclude: {word!r} is no object of these files")
    chosen = select_tasks(
        mentioned[0],
        mentioned[1],
        tasks=options.tasks,
        largest=options.largest,
        smallest=options.smallest_task,
        exclude=[number[word] for word in excluded],
    )
    if not len(chosen):
        raise ValueError(
            f"no object is mentioned by {options.smallest_task} to "
            f"{options.largest or 'any number of'} training questions and by a test question"
        )
    return chosen


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
