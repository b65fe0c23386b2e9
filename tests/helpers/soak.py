"""What the soak publishes: sessions, each with its provenance, and the sums of their counts.

    {"sessions": [{"provenance": {...}, "settings": {...}, "rows": [...]}, ...], "totals": {...}}

A session is one command on one machine, in the schema of perf/provenance.py. Its rows have counts,
which `totals` adds up over all sessions, and lists of what went wrong, of which the totals have the
lengths. A session that found something is published in a folder `mended` once that has been
mended, and counts nowhere else.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helpers.scripts import load

provenance = load("perf/provenance.py")
NAMES = ("kind", "device", "target")  # what a row is about; its other numbers are counts


def session(device: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What this process has found, and where."""
    return {"provenance": provenance.provenance(device), "settings": settings, "rows": rows}


def add(path: Path, sessions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add sessions to a file, which may be new, and return its totals.

    A session that the file has already is not counted twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        known: list[dict[str, Any]] = json.loads(text)["sessions"] if text else []
        for one in sessions:
            if wrong := provenance.problems(one):
                raise ValueError(f"{path}: {'; '.join(wrong)}")
            if one not in known:
                known.append(one)
        content = {"sessions": known, "totals": totals(known)}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(content, indent=1) + "\n")
    return content["totals"]


def totals(sessions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sums of all rows' counts, and how long their lists are together."""
    found: dict[str, Any] = {}
    for row in (row for one in sessions for row in one["rows"]):
        for name, value in row.items():
            if name not in NAMES:
                count = len(value) if isinstance(value, list) else value
                found[name] = found.get(name, 0) + count
    return {name: round(n, 1) if isinstance(n, float) else n for name, n in found.items()}
