"""Whether the files of a finished run are those that it wrote: `longtail check`, and every report.

Two things are asked of a folder. Its files have the checksums in its checksums.json, which also
says whose they are. And its RP is that of its scores, weighted by the sizes of its tasks,

    RP = Σ_i n_i a_i / Σ_i n_i        over the tasks with test examples,

which holds for folders from before there were checksums too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longtail.runs.files import RunFiles, StackFiles, TrainingFiles
from longtail.support.files import digest

TOLERANCE = 1e-6


def identity(settings: dict[str, Any]) -> str:
    """The id of a run with these settings, without having to resolve those of another version."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def damage(files: TrainingFiles, *, weights: bool = True) -> str | None:
    """What is wrong with the files of a finished folder, as a sentence; None where nothing is.

    Args:
        weights: also look at those, which are large and which no report reads.
    """
    try:
        recorded = files.recorded()
    except (OSError, ValueError) as error:
        return f"its checksums cannot be read: {error}"
    if recorded is None:
        return None
    for name, wanted in recorded.sha256.items():
        if name in (RunFiles.WEIGHTS, RunFiles.AVERAGE) and not weights:
            continue
        if wrong := _difference(files, name, wanted):
            return wrong
    if isinstance(files, RunFiles) and (found := identity(files.read_settings())) not in (
        recorded.runs
    ):
        return f"its {files.SETTINGS} is of run {found}, its results are of {recorded.runs[0]}"
    return None


def weights_damage(files: RunFiles) -> str | None:
    """What is wrong with the weights of a finished run, as a sentence; None where nothing is.

    A report reads no weights, but says so. They are large: only those are read that were touched
    after the run had come to its end.
    """
    try:
        recorded = files.recorded()
        ended = _last_touched(files.checksums)
    except (OSError, ValueError):
        return None  # `damage` says it
    for name in (RunFiles.WEIGHTS, RunFiles.AVERAGE):
        wanted = recorded and recorded.sha256.get(name)
        path = files.folder / name
        as_it_was = path.is_file() and _last_touched(path) < ended
        if wanted and not as_it_was and (wrong := _difference(files, name, wanted)):
            return wrong
    return None


def _last_touched(path: Path) -> int:
    """When a file was last written or put there; `cp -p` gives an old time of writing."""
    state = path.stat()
    return max(state.st_mtime_ns, state.st_ctime_ns)


def _difference(files: TrainingFiles, name: str, wanted: str) -> str | None:
    """Why a file that the checksums name is not the one that was written; None where it is."""
    path = files.folder / name
    if path.name != name:
        return f"its {files.CHECKSUMS} speaks of {name!r:.80}, which is not one of its files"
    try:
        if not path.is_file():
            return f"{name} is missing"
        checksum = digest(path)
    except OSError as error:  # nobody may read it, or no file can have such a name
        return f"{name:.80} cannot be read: {error.strerror or error}"
    if checksum != wanted:
        return f"{name} is not the file that the run wrote: its checksum differs"
    return None


def wrong_score(summary: dict[str, Any], last: np.ndarray, sizes: np.ndarray | None) -> str | None:
    """Why RP is not that of these scores, as a sentence; None where it is, or cannot be known.

    Args:
        summary: of the run, which has its RP.
        last: the scores of all tasks at the end, [T].
        sizes: how many test examples they have, [T].
    """
    told = summary.get("RP")
    if sizes is None:
        return "the sizes of its tasks are missing, so its scores cannot be weighted"
    if not isinstance(told, int | float) or isinstance(told, bool) or not math.isfinite(told):
        return None  # it diverged
    tested = sizes > 0
    found = float(last[tested] @ sizes[tested] / sizes[tested].sum()) if tested.any() else 0.0
    if math.isclose(found, told, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return None
    if math.isnan(found):
        return "it has finished, but scores of its last evaluation are missing"
    return f"its RP is said to be {told:.6g}, its scores give {found:.6g}"


@dataclass
class Checked:
    """What `check_folder` found."""

    sound: int = 0  # folders whose checksums all hold
    without: int = 0  # finished ones from before there were checksums
    damaged: dict[str, str] = field(default_factory=dict)  # what is wrong, by folder


def check_folder(folder: Path) -> Checked:
    """Verify every finished run and stack below a folder, weights included."""
    if not folder.is_dir():
        raise ValueError(f"No folder {folder}")
    found = Checked()
    for files in finished_below(folder):
        try:
            wrong = damage(files)
        except (OSError, ValueError) as error:
            wrong = f"cannot be read: {error}"
        if wrong:
            found.damaged[str(files.folder)] = wrong
        elif files.checksums.exists():
            found.sound += 1
        else:
            found.without += 1
    return found


def finished_below(folder: Path) -> Iterator[RunFiles | StackFiles]:
    """The folders of runs and stacks at any depth that have an end mark, or say they had one."""
    for where, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != RunFiles.SNAPSHOTS)
        if StackFiles.RESULT in files or StackFiles.SETTINGS in files:
            kind: RunFiles | StackFiles = StackFiles(Path(where))
        else:
            kind = RunFiles(Path(where))
        if kind.RESULT in files or kind.CHECKSUMS in files:
            yield kind
