"""Studies that go by a name: files ``NAME.toml`` of the packages that offer them.

longtail study table1                     the study of that name
longtail study table1 --show > mine.toml  a copy of it, to change
longtail study mine.toml                  a file of yours
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from longtail.runs.values import unknown
from longtail.support import doors

GROUP = "longtail.studies"
SUFFIX = ".toml"


@cache
def named_studies() -> dict[str, Path]:
    """The files of all studies that packages offer, by name."""
    files: dict[str, Path] = {}
    for _, package in doors.load_all(GROUP):
        folder = resources.files(package)
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(SUFFIX):
                files.setdefault(file.name.removesuffix(SUFFIX), Path(str(file)))
    return files


def study_file(text: str) -> Path:
    """The file that `longtail study` was given: a path, or the name of a study."""
    path = Path(text)
    if path.suffix or len(path.parts) > 1 or path.exists():
        return path
    files = named_studies()
    if text not in files:
        raise unknown("study", text, files, f", or a file{doors.hint()}")
    return files[text]
