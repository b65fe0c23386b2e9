"""Which files of a folder are for what in the five tasks.

A folder has one subfolder a task:

    squad/    train-v1.1.json dev-v1.1.json, XQuAD, paragraphs    readers/squad.py
    wikisql/  train.jsonl train.tables.jsonl dev... test...       readers/wikisql.py
    sst/      train_binary_sent.csv dev... test...                readers/sst.py
    qasrl/    wiki1.train.qa ..., else gold/*.csv                 readers/srl.py
    woz/      woz_train_en.json woz_validate_en.json ...          readers/woz.py

Files are for training or testing by their names. A task without a training file trains on its
development file; one without a test file is tested on it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from longtail.support.cache import cache_folder
from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.readers import squad, srl, sst, wikisql, woz
from longtail_bench.nlp5.urls import PUBLISHED, REMOTES, agrees, fetch_task, where_to_get

READERS: dict[str, Callable[[Path], list[Example]]] = {
    "squad": squad.read,
    "wikisql": wikisql.read,
    "sst": sst.read,
    "qasrl": srl.read,
    "woz": woz.read,
}
TASKS = tuple(READERS)

_NAMES: dict[str, tuple[str, ...]] = {
    "squad": ("*.json",),
    "wikisql": ("train.jsonl", "dev.jsonl", "test.jsonl"),
    "sst": ("*.csv",),
    "qasrl": ("*.qa",),
    "woz": ("woz_*_en.json",),
}
_GOLD = "gold/*.gold.csv"  # of QA-SRL, where the files of 2015 are not there
_TEST, _DEVELOPMENT = ("test", "xquad"), ("dev", "valid", "validate", "validation")


class Files(NamedTuple):
    """A task's files, each list in the order of names."""

    train: list[Path]
    test: list[Path]
    development: list[Path]  # that are for neither


def files_of(folder: Path, task: str) -> Files:
    """Which files are for what."""
    root = _root(folder) / task
    paths = sorted(path for name in _NAMES[task] for path in root.glob(name))
    if task == "qasrl" and not paths:
        paths = sorted(root.glob(_GOLD))
    kinds: dict[str, list[Path]] = {"train": [], "dev": [], "test": []}
    for path in paths:
        kinds[_kind(path)].append(path)
    train = kinds["train"] or kinds["dev"]
    test = kinds["test"] or (kinds["dev"] if kinds["train"] else [])
    if not train or not test:
        lacking = "test" if train else "training"
        raise ValueError(f"{root} has no {lacking} file; {where_to_get(task, root)}")
    spare = kinds["train"] and kinds["test"]
    return Files(train, test, kinds["dev"] if spare else [])


def _kind(path: Path) -> str:
    words = set(path.name.lower().replace("-", ".").replace("_", ".").split("."))
    return "test" if words & set(_TEST) else "dev" if words & set(_DEVELOPMENT) else "train"


def _root(folder: Path) -> Path:
    """The folder itself, or the folder `nlp5` in it where the tasks' are there."""
    inner = folder / "nlp5"
    return inner if any((inner / task).is_dir() for task in TASKS) else folder


def read_task(folder: Path, task: str) -> tuple[list[Example], list[Example]]:
    """The questions to train on and to be tested on."""
    files = files_of(folder, task)
    return _read(task, files.train), _read(task, files.test)


def _read(task: str, paths: list[Path]) -> list[Example]:
    found = [example for path in paths for example in READERS[task](path)]
    if not found:
        raise ValueError(f"{', '.join(map(str, paths))}: no question in it")
    return found


def data_command(args: argparse.Namespace) -> int:
    """`longtail data nlp5`: fetch what no folder has yet, read all of it, print the counts."""
    folder = Path(args.dir).expanduser() if args.dir else cache_folder("nlp5")
    counts: dict[str, dict[str, int]] = {}
    for task in TASKS:
        try:
            files = files_of(folder, task)
        except ValueError:
            if args.check:
                raise
            fetch_task(task, _root(folder) / task, quiet=args.quiet or args.json)
            files = files_of(folder, task)
        parts = {"train": files.train, "test": files.test, "development": files.development}
        counts[task] = {name: len(_read(task, paths)) for name, paths in parts.items() if paths}
        if not args.quiet and not args.json:
            print(_line(task, counts[task], _root(folder) / task))
    if args.json:
        print(json.dumps({"benchmark": "nlp5", "folder": str(folder), "tasks": counts}))
    elif not args.quiet:
        print(f"nlp5: all five tasks can be read from {folder}")
    return 0


def _line(task: str, counts: dict[str, int], folder: Path) -> str:
    """What `longtail data` says of a task."""
    text = f"{task}: {counts['train']} questions for training, {counts['test']} for testing"
    if "development" in counts:
        text += f", {counts['development']} for development, not used"
    whole = (counts["train"], counts["test"]) == PUBLISHED[task]
    text += " (as many as published" if whole else " (a part, or another form"
    agree = [agrees(folder / remote.name, remote) for remote in REMOTES[task]]
    if all(agree):
        text += ", checksums too"
    elif False in agree:
        names = (r.name for r, same in zip(REMOTES[task], agree, strict=True) if same is False)
        text += f"; not the published {', '.join(names)}"
    return f"{text})"
