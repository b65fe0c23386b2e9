"""A file that names other study files, so that one command trains a table over several benchmarks.

    name = "rivals"                                         # default: the file's name
    studies = ["rivals_mnist.toml", "rivals_fsmol.toml"]    # paths as seen from this file

Each part has a folder of its own, by its name, below that of the whole. Flags go to every part;
`--only study=rivals_mnist` asks for some of them, and a part that has nothing of what `--only` asks
for is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longtail.runs.config import read_toml
from longtail.runs.values import check, unknown
from longtail.study.expand import expand, matching
from longtail.study.file import check_report, read_study

KEY = "studies"
CONDITION = "study="


@dataclass(frozen=True)
class Collection:
    """Study files by the names of their studies, in the order of the file."""

    name: str
    parts: dict[str, Path]


def read_collection(path: Path) -> Collection | None:
    """The parts that a file names; None where it is a study itself.

    Raises:
        ValueError: a part is missing, named twice or no study, or the file says more than names.
    """
    tree = read_toml(path)
    if KEY not in tree:
        return None
    for key in tree:
        if key not in (KEY, "name"):
            raise ValueError(
                f"{path}: {key} is for a study, and with {KEY} this file only names some"
            )
    named = check(tree[KEY], list[str], KEY)
    if not named:
        raise ValueError(f"{path}: {KEY} must be a list of study files, got []")
    parts: dict[str, Path] = {}
    for text in named:
        part = path.parent / text
        if KEY in read_toml(part):
            raise ValueError(f"{path}: {text} names studies, and is none itself")
        name = read_study(part).name
        if name in parts:
            raise ValueError(f"{path}: two parts are called {name!r}, and would share a folder")
        parts[name] = part
    return Collection(check(tree.get("name", path.stem), str, "name"), parts)


def parts_asked(collection: Collection, only: Sequence[str], seeds: str | None) -> dict[str, Path]:
    """The parts that have runs which meet all conditions; every part has been read and checked.

    Raises:
        ValueError: no part has such a run.
    """
    found: dict[str, Path] = {}
    wrong: list[ValueError] = []
    for name, file in _named(collection, only).items():
        study = read_study(file, seeds)
        planned = expand(study)
        check_report(study.report, [run.labels for run in planned])
        try:
            if matching(planned, conditions(only)):
                found[name] = file
        except ValueError as error:  # this part has no such method, say
            wrong.append(error)
    if not found:
        raise wrong[0] if wrong else ValueError(f"no run of a part matches {' '.join(only)}")
    return found


def conditions(only: Sequence[str]) -> tuple[str, ...]:
    """What `--only` asks of runs, not of parts."""
    return tuple(text for text in only if not text.startswith(CONDITION))


def _named(collection: Collection, only: Sequence[str]) -> dict[str, Path]:
    left = collection.parts
    for text in only:
        if text.startswith(CONDITION):
            names = [name.strip() for name in text.removeprefix(CONDITION).split(",")]
            for name in names:
                if name not in collection.parts:
                    raise unknown("study of --only", name, collection.parts)
            left = {name: file for name, file in left.items() if name in names}
    return left
