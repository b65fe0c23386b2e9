"""Unselected tables: what `longtail report --no-select` has written, read again without its runs.

Such a table has a row for every value of the study's [select] keys, and rows of their own for the
seeds that choose. So it tells, when the runs themselves are gone, which values are best.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from longtail.names import METRICS
from longtail.report.groups import Group, measured
from longtail.report.labelling import CHOOSES
from longtail.report.selection import Tried, place
from longtail.support.files import parse_json

Row = dict[str, Any]


class Family(NamedTuple):
    """The rows that differ in the value of the [select] keys alone, by that value."""

    reported: dict[str, Row]
    choosing: dict[str, Row]

    def tried(self, *, higher_is_better: bool) -> Tried:
        """What its rows that choose have scored: on validation, or RP where one has none."""
        lines = [line for line in self.choosing.values() if not line.get("diverged")]
        held_out = bool(lines) and all(line.get("validation") is not None for line in lines)
        score = "validation" if held_out else "RP"
        means = {
            value: None if line.get("diverged") else line.get(score)
            for value, line in self.choosing.items()
        }
        return Tried(score, means, higher_is_better)


def read(path: Path, study: str, *, selected: bool = False) -> dict[str, Any]:
    """The content of a table.json.

    Args:
        study: the name of the study that it must be a table of.
        selected: whether it may be one that a selection was made for, with a row for its best
            value alone.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    try:
        table = parse_json(path, dict)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    kinds = {"unit": str, "higher_is_better": bool, "rows": list, "provenance": dict}
    for key, kind in kinds.items():
        if not isinstance(table.get(key), kind):
            raise ValueError(f"{path} is no table of a report: it has {key} = {table.get(key)!r}")
    name = table["provenance"].get("study", study)
    if name != study:
        raise ValueError(f"{path} is a table of the study {name!r}, not of {study!r}")
    for row in table["rows"]:
        _check_row(row, path, selected=selected)
    return table


def _check_row(row: Any, path: Path, *, selected: bool) -> None:
    if not isinstance(row, dict) or not {"seeds", *METRICS} <= row.keys():
        raise ValueError(f"{path}: this is no row of a report: {json.dumps(row)[:100]}")
    if not selected and ("selected" in row or "validation" not in row):
        raise ValueError(
            f"{path} is not an unselected table, see its row {name_of(row)}: "
            "`longtail report RUNS --no-select` makes one"
        )
    for key, value in row.items():
        if measured(key) and isinstance(value, str | bool):
            raise ValueError(f"{path}: {key} of {name_of(row)} is {value!r}, not a number")


def families(rows: Iterable[Row], keys: list[str]) -> dict[str, Family]:
    """The rows by what they are called without the [select] keys, as `place` names it.

    Tables may have their labels in another order: a family goes by the first name it has.
    """
    found: dict[str, Family] = {}
    names: dict[str, str] = {}
    for row in rows:
        labels = labels_of_row(row)
        chooses = labels.pop(CHOOSES, False)
        own, value = place(labels, keys)
        name = names.setdefault(json.dumps(json.loads(own), sort_keys=True), own)
        family = found.setdefault(name, Family({}, {}))
        (family.choosing if chooses else family.reported)[value] = row
    return found


def best_values(table: dict[str, Any], keys: list[str]) -> dict[str, str]:
    """For every family whose seeds have chosen, the values that are best."""
    higher = table["higher_is_better"]
    found = {
        name: family.tried(higher_is_better=higher).best
        for name, family in families(table["rows"], keys).items()
    }
    return {name: value for name, value in found.items() if value is not None}


def labels_of_row(row: Row) -> dict[str, Any]:
    """What names a row: all that stands before the number of its seeds."""
    keys = list(row)
    return {key: row[key] for key in keys[: keys.index("seeds")]}


def name_of(row: Row) -> str:
    """A row in the words of a reader."""
    return Group(labels_of_row(row), []).name
