"""`longtail report --compare A B`: two folders of runs side by side, in the terminal."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from longtail.names import METRICS
from longtail.report.groups import Group, group
from longtail.report.results import load
from longtail.report.statistics import Paired, paired
from longtail.report.tables import number
from longtail.runs.progress import finite
from longtail.support.console import Console


def compare(a: Path, b: Path, *, console: Console, as_json: bool = False) -> int:
    """Matches groups of the two by name (or takes the only one of each) and pairs them by seed."""
    left, right = (group(load(folder).runs) for folder in (a, b))
    for folder, groups in ((a, left), (b, right)):
        if not groups:
            raise ValueError(f"No finished run in {folder}")
    rows = [row for one, other in _matched(left, right) for row in _rows(one, other)]
    if not rows:
        names = ["; ".join(g.name for g in groups) for groups in (left, right)]
        raise ValueError(f"Nothing to compare: A has {names[0]}, B has {names[1]}")
    if as_json:
        sys.stdout.write(json.dumps(finite(rows), indent=1) + "\n")
        return 0
    title = Text(f"A = {a}, B = {b}")
    shown = RichTable(title=title, caption=Text("B minus A; paired by seed where seeds are shared"))
    for head in ("run", "metric", "A", "B", "difference", "95% interval", "p", "seeds"):
        shown.add_column(head, justify="left" if head in ("run", "metric") else "right")
    for row in rows:
        unit = row["unit"]
        interval = f"{number(row['low'], unit)} to {number(row['high'], unit)}"
        shown.add_row(
            Text(row["run"]), row["metric"], number(row["a"], unit), number(row["b"], unit),
            number(row["mean"], unit), interval if row["n"] > 1 else "-",
            f"{row['p']:.2g}" if row["n"] > 1 else "-", str(row["n"]),
        )  # fmt: skip
    # A pipe has no width to keep to.
    (console if console.is_terminal else Console(file=console.file, width=1000)).print(shown)
    return 0


def _matched(left: list[Group], right: list[Group]) -> list[tuple[Group, Group]]:
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    others = {g.name: g for g in right}
    return [(g, others[g.name]) for g in left if g.name in others]


def _rows(one: Group, other: Group) -> list[dict[str, Any]]:
    name = one.name if one.name == other.name else f"{one.name} | {other.name}"
    scores = [g.runs[0].score for g in (one, other)]
    if scores[0] != scores[1]:
        raise ValueError(f"{name}: the score of A is {scores[0]}, that of B {scores[1]}")
    unit = one.runs[0].unit
    scale = 100.0 if unit == "percent" else 1.0
    found = []
    for metric in METRICS:
        a, b = ({run.seed: run.metric(metric) * scale for run in g.runs} for g in (one, other))
        shared = sorted(a.keys() & b.keys())
        higher = one.runs[0].higher_is_better != (metric == "FGT")
        means = [_mean(list(x.values())) for x in (a, b)]
        if not any(np.isfinite(means)):  # one that diverged is shown as nan
            continue
        result: Paired = paired(
            np.array([b[s] for s in shared]),
            np.array([a[s] for s in shared]),
            higher_is_better=higher,
        )
        row = {"run": name, "metric": metric, "unit": unit, "a": means[0], "b": means[1]}
        row |= asdict(result)
        if not shared:
            row["mean"] = means[1] - means[0]
        found.append(row)
    return found


def _mean(values: list[float]) -> float:
    kept = [v for v in values if np.isfinite(v)]
    return float(np.mean(kept)) if kept else float("nan")
