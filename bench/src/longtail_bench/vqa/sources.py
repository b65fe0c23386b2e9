"""From a source of questions and pictures to a benchmark: `prepare(options)`.

Real GQA, your own files in its form, and the generated world all go through here.
"""

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from longtail.support.cache import cache_folder
from longtail_bench.prepared import complete, key, whole_folder, write
from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.prepared import FORM, ImageRegions, PreparedVQA, store_regions
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.tasks import Question, TaskQuestions, questions_of_tasks

MISSING = "image without features"
NO_FEATURES = "question whose image has no features, left out"
EMPTY_TASK = "object left without training or test questions, no task"

_FOLLOWS = (NO_FEATURES, EMPTY_TASK, MISSING)  # what is wrong because something else is


class Source(Protocol):
    """Where objects, questions and pictures come from."""

    @property
    def made_of(self) -> Any:
        """What everything else depends on, as JSON knows it."""
        ...

    def names(self, problems: Problems) -> list[str]:
        """The objects' names, the most frequent first."""
        ...

    def train(self, problems: Problems) -> Iterable[Question]: ...

    def test(self, problems: Problems) -> Iterable[Question]: ...

    def regions(
        self, wanted: Container[str], problems: Problems, most: int
    ) -> Iterator[ImageRegions]:
        """The regions of the wanted images, at most `most` each; 0: all."""
        ...


def source_of(options: DataOptions) -> Source:
    if options.source == "gqa" and not options.miniature:
        from longtail_bench.vqa.gqa.files import Files

        return Files(options)
    from longtail_bench.vqa.world.generator import GeneratedWorld, world_of

    return GeneratedWorld(world_of(options))


def prepare(options: DataOptions, problems: Problems | None = None) -> PreparedVQA:
    """The benchmark, from the cache where the same was prepared before."""
    problems = Problems(options.strict) if problems is None else problems
    source = source_of(options)
    asked = [options.tasks, options.smallest_task, options.largest, options.exclude]
    folder = cache_folder("vqa") / key(FORM, source.made_of, *asked, options.regions)
    if not complete(folder):
        with whole_folder(folder) as work:
            _write(source, options, work)
    content = PreparedVQA.load(folder)
    for kind, (count, examples) in content.problems.items():
        problems.merge(kind, count, examples)
    return content


def read_questions(source: Source, options: DataOptions, problems: Problems) -> TaskQuestions:
    """The questions of all tasks, whether or not their images have features."""
    names = source.names(problems)
    return questions_of_tasks(names, source.train, source.test, options, problems)


def _write(source: Source, options: DataOptions, work: Path) -> None:
    problems = Problems(options.strict)
    questions = read_questions(source, options, problems)
    wanted = dict.fromkeys(questions.images)
    regions = store_regions(work, source.regions(wanted, problems, options.regions))
    values = _joined(questions, regions["image_names"], problems)
    noted = {kind: (count, problems.examples[kind]) for kind, count in problems.counts.items()}
    write(FORM, work, {**regions, **values, "counts": questions.counts, "problems": noted})


def _joined(questions: TaskQuestions, seen: list[str], problems: Problems) -> dict[str, Any]:
    """Questions and the images that are seen; questions whose image is not are left out."""
    place = {image: k for k, image in enumerate(seen)}
    for image in dict.fromkeys(questions.images):
        if image not in place:
            problems.note(MISSING, f"image {image}")
    images = np.array([place.get(image, -1) for image in questions.images], np.int64)
    for n in np.flatnonzero(images < 0).tolist():
        where = f"question {questions.ids[n]}, image {questions.images[n]}"
        problems.note(NO_FEATURES, where)

    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    names: list[str] = []
    for i, name in enumerate(questions.task_names):
        rows = []
        for ends, all_rows in (
            (questions.train_offsets, questions.train_rows),
            (questions.test_offsets, questions.test_rows),
        ):
            of_task = all_rows[ends[i] : ends[i + 1]]
            rows.append(of_task[images[of_task] >= 0])
        if len(rows[0]) and len(rows[1]):
            names.append(name)
            train.append(rows[0])
            test.append(rows[1])
        else:
            problems.note(EMPTY_TASK, name)
    if not names:
        others = [line for line in problems.lines() if not line.startswith(_FOLLOWS)]
        why = "; ".join(others[:3]) or "they are named in no file of features"
        raise ValueError(f"no task is left whose train and test images have features ({why})")
    return {
        "questions": questions.questions,
        "answers": questions.answers,
        "images": images.clip(0),
        "answer_names": questions.answer_names,
        "task_names": names,
        "train_offsets": np.cumsum([0, *map(len, train)]),
        "train_rows": np.concatenate(train),
        "test_offsets": np.cumsum([0, *map(len, test)]),
        "test_rows": np.concatenate(test),
    }
