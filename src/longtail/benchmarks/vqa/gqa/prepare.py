"""From files in GQA's form to a benchmark: `prepare(options)`.

Real GQA, the generated world, its miniature and your own scene graphs all go through here.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from longtail.benchmarks.vqa.gqa.features import MISSING, find_features, fingerprint, read_regions
from longtail.benchmarks.vqa.gqa.questions import question_files, read_questions
from longtail.benchmarks.vqa.gqa.scenes import name_counts, read_scenes, scene_files
from longtail.benchmarks.vqa.gqa.stream import Problems
from longtail.benchmarks.vqa.gqa.tasks import Mentions, segments, select_tasks
from longtail.benchmarks.vqa.options import DataOptions
from longtail.benchmarks.vqa.prepared import PreparedVQA, Regions, whole_folder
from longtail.support.downloads import cache_folder

NO_FEATURES = "question whose image has no features, left out"
EMPTY_TASK = "object left without training or test questions, no task"

_FOLLOWS = (NO_FEATURES, EMPTY_TASK, MISSING)  # what is wrong because something else is

VERSION = 3
"""Of the prepared form; a change makes old caches unused."""


def data_folder(options: DataOptions) -> Path:
    """Where the files of these options lie; a generated world is made if it is not there."""
    if options.source == "gqa":
        folder = Path(options.folder).expanduser() if options.folder else cache_folder("gqa")
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; `longtail data vqa` says what goes there")
        return folder
    from longtail.benchmarks.vqa.world.generator import ensure_world, world_of

    return ensure_world(world_of(options), Path(options.folder) if options.folder else None)


def prepare(options: DataOptions, problems: Problems | None = None) -> PreparedVQA:
    """The benchmark, from the cache where the same files were prepared before."""
    problems = Problems(options.strict) if problems is None else problems
    folder = data_folder(options)
    prepared = prepare_questions(options, problems, folder)
    used = [prepared.facts["images"][k] for k in np.unique(prepared.images)]
    features = find_features(folder)
    regions = read_regions(
        features, used, problems, width=options.feature_width, most=options.regions
    )
    return with_regions(prepared, regions, problems)


def prepare_questions(
    options: DataOptions, problems: Problems, folder: Path | None = None
) -> PreparedVQA:
    """Questions and tasks without regions, cached."""
    folder = data_folder(options) if folder is None else folder
    train = question_files(folder, "train", options.questions)
    test = question_files(folder, options.test_split, options.questions)
    for split, found in (("train", train), (options.test_split, test)):
        if not found:
            raise ValueError(f"{folder} has no {split}_{options.questions}_questions.json")
    scenes = scene_files(folder)
    asked = {name: value for name, value in asdict(options).items() if name in _OF_QUESTIONS}
    text = json.dumps([VERSION, options.largest, asked, fingerprint([*train, *test, *scenes])])
    key = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    target = cache_folder("vqa") / f"questions-{key}"
    if not (target / "names.json").is_file():
        found = Problems(problems.strict)
        with whole_folder(target) as work:
            _read(options, train, test, scenes, found).save(work)
    prepared = PreparedVQA.load(target, NO_REGIONS)
    for kind, (count, examples) in prepared.facts["problems"].items():
        problems.merge(kind, count, examples)
    return prepared


_OF_QUESTIONS = ("tasks", "smallest_task", "mention", "exclude", "questions", "test_split")
NO_REGIONS = Regions(
    [],
    np.zeros(1, np.int64),
    np.zeros((0, 1), np.float16),
    np.zeros((0, 4), np.float32),
    np.zeros(0, np.int32),
    [],
    np.zeros((0, 2), np.int32),
)


def _read(
    options: DataOptions, train: list[Path], test: list[Path], scenes: list[Path], found: Problems
) -> PreparedVQA:
    """Two passes: the first counts, the second keeps the questions of the tasks."""
    names, object_name = _names(options, train, scenes, found)
    mentions = Mentions(names, options.mention, object_name)
    number = {name: i for i, name in enumerate(names)}
    excluded = [word.strip() for word in options.exclude.split(",") if word.strip()]
    for word in excluded:
        if word not in number:
            raise ValueError(f"Invalid exclude: {word!r} is no object of these files")
    answers: Counter[str] = Counter()
    counts = np.zeros((2, len(names)), np.int64)
    totals = [0, 0]
    for part, paths in enumerate((train, test)):
        for question in read_questions(paths, found):
            totals[part] += 1
            answers[question.answer] += 1
            counts[part, mentions(question)] += 1
    chosen = select_tasks(
        counts[0],
        counts[1],
        tasks=options.tasks,
        largest=options.largest,
        smallest=options.smallest_task,
        exclude=[number[word] for word in excluded],
    )
    if not len(chosen):
        raise ValueError(
            f"no object of {train[0].parent} is mentioned by {options.smallest_task} to "
            f"{options.largest or 'any number of'} training questions and by a test question"
        )
    facts = {
        "train_questions": totals[0],
        "test_questions": totals[1],
        "object_names": len(names),
        "objects_mentioned": int(np.count_nonzero(counts[0])),
        "objects_above_largest": int(np.count_nonzero(counts[0] > options.largest))
        if options.largest
        else 0,
    }
    return _keep(train, test, mentions, names, chosen, sorted(answers), facts, found)


def _names(
    options: DataOptions, train: list[Path], scenes: list[Path], found: Problems
) -> tuple[list[str], Callable[[str, str], str | None] | None]:
    """Object names, the most frequent first: of the scene graphs, else of the programs."""
    if not scenes:
        if options.mention in ("annotation", "any"):
            raise ValueError(f"mention = {options.mention} needs scene graphs, and there are none")
        names: Counter[str] = Counter()
        for question in read_questions(train, Problems()):
            names.update(sorted(question.program_names()))
        return [name for name, _ in names.most_common()], None
    if options.mention in ("text", "program"):
        return [name for name, _ in name_counts(read_scenes(scenes, found)).most_common()], None
    graphs = {
        scene.image: {id_: entry.name for id_, entry in scene.objects.items()}
        for scene in read_scenes(scenes, found)
    }
    counted = Counter(name for graph in graphs.values() for name in graph.values())
    names_ = [name for name, _ in counted.most_common()]
    return names_, lambda image, id_: graphs.get(image, {}).get(id_)


def _keep(
    train: list[Path],
    test: list[Path],
    mentions: Mentions,
    names: list[str],
    chosen: np.ndarray,
    answer_names: list[str],
    facts: dict[str, Any],
    found: Problems,
) -> PreparedVQA:
    answer_number = {answer: i for i, answer in enumerate(answer_names)}
    images: dict[str, int] = {}
    ids, texts, groups, answers, of_image = [], [], [], [], []
    parts: dict[str, np.ndarray] = {}
    tasks = set(chosen.tolist())
    for part, paths in (("train", train), ("test", test)):
        rows: list[list[int]] = [[] for _ in ids]
        for question in read_questions(paths, Problems()):  # noted in the first pass
            mentioned = mentions(question)
            if tasks.isdisjoint(mentioned):
                continue
            rows.append(mentioned)
            ids.append(question.id)
            texts.append(question.text)
            groups.append(question.group)
            answers.append(answer_number[question.answer])
            of_image.append(images.setdefault(question.image, len(images)))
        parts[f"{part}_offsets"], parts[f"{part}_rows"] = segments(rows, chosen)
    noted = {kind: (count, found.examples[kind]) for kind, count in found.counts.items()}
    return PreparedVQA(
        ids=ids,
        questions=texts,
        answers=np.array(answers, np.int64),
        images=np.array(of_image, np.int64),
        answer_names=answer_names,
        task_names=[names[i] for i in chosen],
        groups=groups,
        regions=NO_REGIONS,
        facts={**facts, "images": list(images), "problems": noted},
        **parts,
    )


def with_regions(prepared: PreparedVQA, regions: Regions, problems: Problems) -> PreparedVQA:
    """Questions and regions together; questions whose image has no features are left out."""
    place = {name: k for k, name in enumerate(regions.images)}
    table = np.array([place.get(name, -1) for name in prepared.facts["images"]], np.int64)
    images = table[prepared.images]
    seen = (images >= 0) & (np.diff(regions.offsets) > 0)[images]
    for n in np.flatnonzero(~seen).tolist():
        image = prepared.facts["images"][prepared.images[n]]
        problems.note(NO_FEATURES, f"question {prepared.ids[n]}, image {image}")
    parts = {
        part: [rows(i)[seen[rows(i)]] for i in range(len(prepared.task_names))]
        for part, rows in (("train", prepared.train), ("test", prepared.test))
    }
    alive = [i for i in range(len(prepared.task_names)) if len(parts["train"][i])]
    alive = [i for i in alive if len(parts["test"][i])]
    for i in sorted(set(range(len(prepared.task_names))) - set(alive)):
        problems.note(EMPTY_TASK, prepared.task_names[i])
    if not alive:
        others = [line for line in problems.lines() if not line.startswith(_FOLLOWS)]
        why = "; ".join(others[:3]) or "they are named in no file of features"
        raise ValueError(f"no task is left whose train and test images have features ({why})")
    arrays: dict[str, Any] = {"images": np.where(seen, images, 0)}
    for part, rows in parts.items():
        kept = [rows[i] for i in alive]
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, kept)])
        arrays[f"{part}_rows"] = np.concatenate(kept)
    facts = {name: value for name, value in prepared.facts.items() if name != "images"}
    values = {**vars(prepared), **arrays, "regions": regions, "facts": facts}
    return PreparedVQA(**{**values, "task_names": [prepared.task_names[i] for i in alive]})
