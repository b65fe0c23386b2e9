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
from longtail.study.expand import Planned, expand, matching
from longtail.study.file import check_name, check_report, read_study

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
        name = read_study(part).name
        if name in parts:
            raise ValueError(f"{path}: two parts are called {name!r}, and would share a folder")
        parts[name] = part
    name = check(tree.get("name", path.stem), str, "name")
    check_name(name)
    return Collection(name, parts)


def parts_asked(
    collection: Collection, only: Sequence[str], seeds: str | None
) -> dict[str, tuple[str, ...]]:
    """The parts that have runs which meet all conditions, and these as each part knows them.

    Of a list of values, `method=ewc,lwf`, a part is asked for those it has. Every part is read
    and checked.

    Raises:
        ValueError: no part has such a run, or none knows a key or a value.
    """
    studies = {name: read_study(file, seeds) for name, file in _named(collection, only).items()}
    planned = {name: expand(study) for name, study in studies.items()}
    for name, study in studies.items():
        check_report(study.report, [run.labels for run in planned[name]])
    asked: dict[str, list[str]] = {name: [] for name in planned}
    for text in only:
        if text.startswith(CONDITION):
            continue
        known = {name: _known(runs, text) for name, runs in planned.items()}
        values = {value for some in known.values() for value in some}
        for value in _values(text) if text not in values else ():
            if value not in values:
                matching(next(iter(planned.values())), [value])  # says what is wrong with it
        for name, some in known.items():
            key = text.partition("=")[0]
            joined = ",".join(value.partition("=")[2] for value in some)
            if some:
                asked.get(name, []).append(f"{key}={joined}")
            else:
                asked.pop(name, None)
    found = {name: tuple(some) for name, some in asked.items() if matching(planned[name], some)}
    if not found:
        raise ValueError(f"no run of a part matches {' '.join(only)}")
    return found


def _known(runs: list[Planned], text: str) -> list[str]:
    """A condition as it is where a part knows it; else one for each of its values that it knows."""
    for some in ([text], _values(text)):
        found = [one for one in some if _is_known(runs, one)]
        if found:
            return found
    return []


def _values(text: str) -> list[str]:
    key, _, values = text.partition("=")
    return [f"{key}={value.strip()}" for value in values.split(",")]


def _is_known(runs: list[Planned], text: str) -> bool:
    try:
        matching(runs, [text])
    except ValueError:
        return False
    return True


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
