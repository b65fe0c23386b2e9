"""Where the five tasks' files are published, and which of those in a folder are for what.

A folder has one subfolder a task, with any of the published forms in it:

    squad/    train-v1.1.json dev-v1.1.json, v2.0, XQuAD          nlp5_squad.py
    wikisql/  train.jsonl train.tables.jsonl dev... test...       nlp5_wikisql.py
    sst/      train_binary_sent.csv dev... test..., GLUE, ...     nlp5_sst.py
    qasrl/    wiki1.train.qa ..., orig/train.jsonl.gz, gold/*.csv nlp5_srl.py
    woz/      woz_train_en.json woz_validate_en.json ...          nlp5_woz.py

Files are for training or testing by their names. A task without a training file trains on its
development file; one without a test file is tested on it.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

from longtail.benchmarks import nlp5_squad, nlp5_srl, nlp5_sst, nlp5_wikisql, nlp5_woz
from longtail.benchmarks.nlp5_examples import Example
from longtail.downloads import Meter, Remote, cache_folder, fetch

READERS: dict[str, Callable[[Path], list[Example]]] = {
    "squad": nlp5_squad.read,
    "wikisql": nlp5_wikisql.read,
    "sst": nlp5_sst.read,
    "qasrl": nlp5_srl.read,
    "woz": nlp5_woz.read,
}
TASKS = tuple(READERS)

_SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
_WIKISQL = "https://github.com/salesforce/WikiSQL/raw/master/"
_SST = (
    "https://raw.githubusercontent.com/openai/generating-reviews-discovering-sentiment/master/data/"
)
_QASRL = "https://dada.cs.washington.edu/qasrl/data/"
_WOZ = "https://raw.githubusercontent.com/nmrksic/neural-belief-tracker/master/data/woz/"


def _remotes(place: str, *names: str, md5: tuple[str, ...] = ()) -> tuple[Remote, ...]:
    sums = md5 or ("",) * len(names)
    return tuple(Remote(n, (place + n,), md5=m) for n, m in zip(names, sums, strict=True))


# Checksums where the publishers' files have known ones; the others are checked by reading them.
REMOTES: dict[str, tuple[Remote, ...]] = {
    "squad": _remotes(
        _SQUAD,
        "train-v1.1.json",
        "dev-v1.1.json",
        md5=("981b29407e0affa3b1b156f72073b945", "3e85deb501d4e538b6bc56f786231552"),
    ),
    "wikisql": _remotes(_WIKISQL, "data.tar.bz2"),
    "sst": _remotes(_SST, *(f"{part}_binary_sent.csv" for part in ("train", "dev", "test"))),
    "qasrl": _remotes(_QASRL, *(f"wiki1.{part}.qa" for part in ("train", "dev", "test"))),
    "woz": _remotes(_WOZ, *(f"woz_{part}_en.json" for part in ("train", "validate", "test"))),
}
# Questions for training and testing in the published files above.
PUBLISHED = {
    "squad": (87599, 10570),
    "wikisql": (56355, 15878),
    "sst": (6920, 1821),
    "qasrl": (6414, 2201),
    "woz": (2536, 1646),
}
_PATTERNS = {
    "squad": ("*.json", "*.jsonl"),
    "wikisql": ("train.jsonl", "dev.jsonl", "test.jsonl"),
    "sst": ("*.csv", "*.tsv", "*.jsonl", "*.parquet"),
    "qasrl": ("*.qa", "**/*.jsonl.gz", "**/*.jsonl", "gold/*.csv", "*.gold.csv"),
    "woz": ("woz_*_en.json",),
}
_TEST, _DEVELOPMENT = ("test", "xquad"), ("dev", "valid", "validate", "validation")


def files_of(folder: Path, task: str) -> dict[str, list[Path]]:
    """The files for "train" and for "test", in the order of their names."""
    root = _root(folder) / task
    found = sorted({path for pattern in _PATTERNS[task] for path in root.glob(pattern)})
    kinds: dict[str, list[Path]] = {"train": [], "dev": [], "test": []}
    for path in found:
        words = set(path.name.lower().replace("-", ".").replace("_", ".").split("."))
        kind = "test" if words & set(_TEST) else "dev" if words & set(_DEVELOPMENT) else "train"
        kinds[kind].append(path)
    train = kinds["train"] or kinds["dev"]
    test = kinds["test"] or (kinds["dev"] if kinds["train"] else [])
    if not train or not test:
        lacking = "test" if train else "training"
        raise ValueError(f"{root} has no {lacking} file; {where_to_get(task, root)}")
    return {"train": train, "test": test}


def _root(folder: Path) -> Path:
    """The folder itself, or the folder `nlp5` in it where the tasks' are there."""
    inner = folder / "nlp5"
    return inner if any((inner / task).is_dir() for task in TASKS) else folder


def where_to_get(task: str, folder: Path) -> str:
    """A sentence that says which files to put where, and where they are published."""
    names = ", ".join(remote.name for remote in REMOTES[task])
    return f"put {names} into {folder} (published at {REMOTES[task][0].urls[0]})"


def read_task(folder: Path, task: str) -> tuple[list[Example], list[Example]]:
    """The questions to train on and to be tested on."""
    files = files_of(folder, task)
    train, test = (
        [example for path in files[kind] for example in READERS[task](path)]
        for kind in ("train", "test")
    )
    for kind, found in (("train", train), ("test", test)):
        if not found:
            raise ValueError(f"{', '.join(map(str, files[kind]))}: no question in it")
    return train, test


def data_command(args: argparse.Namespace) -> int:
    """`longtail data nlp5`: fetch what no folder has yet, read all of it, print the counts."""
    folder = Path(args.dir).expanduser() if args.dir else cache_folder("nlp5")
    counts: dict[str, dict[str, int]] = {}
    for task in TASKS:
        try:
            files_of(folder, task)
        except ValueError:
            if args.check:
                raise
            _fetch(task, _root(folder) / task, quiet=args.quiet or args.json)
        train, test = read_task(folder, task)
        counts[task] = {"train": len(train), "test": len(test)}
        if not args.quiet and not args.json:
            found = (len(train), len(test))
            whole = "as published" if found == PUBLISHED[task] else "a part, or another form"
            print(f"{task}: {found[0]} questions for training, {found[1]} for testing ({whole})")
    if args.json:
        print(json.dumps({"benchmark": "nlp5", "folder": str(folder), "tasks": counts}))
    elif not args.quiet:
        print(f"nlp5: all five tasks can be read from {folder}")
    return 0


def _fetch(task: str, folder: Path, quiet: bool) -> None:
    try:
        for remote in REMOTES[task]:
            path = fetch(remote, folder, progress=None if quiet else Meter())
            if path.name.endswith(".tar.bz2"):
                _unpack(path)
    except OSError as error:
        raise ValueError(f"{error}. By hand: {where_to_get(task, folder)}") from None


def _unpack(path: Path) -> None:
    """The JSON lines of WikiSQL's archive, beside it."""
    try:
        with tarfile.open(path, "r:bz2") as archive:
            for member in archive.getmembers():
                name = Path(member.name).name
                source = archive.extractfile(member) if name.endswith(".jsonl") else None
                if source is not None:
                    (path.parent / name).write_bytes(source.read())
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}): delete it and try again") from None
