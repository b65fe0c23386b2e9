"""Read files that may be damaged: what they should hold, or a sentence that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longtail.report.labelling import BESIDE
from longtail.runs.files import StudyFiles, TrainingFiles
from longtail.support.files import parse_json


def read_json(path: Path, kind: type, problems: list[str]) -> Any:
    """The content of a JSON file; a missing file, or a damaged one, gives an empty `kind`.

    What is wrong with a damaged one is added to `problems`, as a sentence.
    """
    try:
        return parse_json(path, kind)
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        note(problems, path, f"cannot be read: {why(error)}")
        return kind()


def note(problems: list[str], path: Path, text: str) -> None:
    """Adds a sentence that names a file, once."""
    sentence = f"{Path(*path.parts[-3:])} {text}"
    if sentence not in problems:
        problems.append(sentence)


def why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


def read_plan(folder: Path, problems: list[str]) -> dict[str, Any]:
    """A study's plan.json without what is not of its type."""
    path = StudyFiles(folder).plan
    plan = read_json(path, dict, problems)
    types: dict[str, type] = {"runs": list}
    types |= dict.fromkeys(("report", "select", "stacks", "code", "chosen"), dict)
    for key in [k for k, kind in types.items() if not isinstance(plan.get(k, kind()), kind)]:
        note(problems, path, f"has {key} = {plan.pop(key)!r}, which is left out")
    report = plan.get("report", {})
    for key in [key for key, value in report.items() if not _fits(key, value)]:
        note(problems, path, f"has report.{key} = {report.pop(key)!r}, which is left out")
    runs = [e for e in plan.get("runs", []) if _is_planned(e)]
    if len(runs) < len(plan.get("runs", [])):
        note(problems, path, f"has {len(plan['runs']) - len(runs)} runs that cannot be read")
        plan["runs"] = runs
    return plan


def _fits(key: str, value: Any) -> bool:
    """Whether a value of [report] is of the kind that a study file may give it."""
    if key in ("title", "paper", "unit", "columns"):
        return isinstance(value, str)
    if key == "average":
        return isinstance(value, bool) or value == BESIDE
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return texts and (key != "pair" or len(value) == 2)


def _is_planned(entry: Any) -> bool:
    labels = entry.get("labels") if isinstance(entry, dict) else None
    named = isinstance(labels, dict) and {"method", "policy"} <= labels.keys()
    return named and isinstance(entry.get("id"), str)


def read_error(files: TrainingFiles, problems: list[str]) -> str | None:
    """Why a run failed, from its error.json."""
    found = read_json(files.error, dict, problems).get("error")
    return None if found is None else str(found)


def names_of(tasks: dict[str, Any], files: TrainingFiles, problems: list[str]) -> list[str]:
    """The names in the content of a tasks.json."""
    names = tasks.get("names", [])
    if isinstance(names, list):
        return list(map(str, names))
    note(problems, files.tasks, f"has names = {names!r}, which is not a list")
    return []
