"""Rows of a table: mean and standard error over seeds, as table.json has them, and their shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from longtail.names import METRICS, POLICY_NAMES
from longtail.report import papers
from longtail.report.checks import Row
from longtail.report.frame import Frames, Kinds, Line
from longtail.report.labels import display, measured, named_row
from longtail.report.statistics import GROWTH, growth

COUNTS = ("seeds", "diverged", "selected", "tasks")


@dataclass(frozen=True)
class Table:
    """Rows and the shape that they are shown in.

    Attributes:
        title: above it.
        rows: the long form, as in table.json.
        metrics: that it shows.
        kinds: units and directions of its scores.
        index: labels that name a line.
        columns: the label that is spread over columns, where one is.
        paper: the published table whose numbers stand beside ours.
        notes: sentences below it.
    """

    title: str
    rows: list[Row]
    metrics: list[str]
    kinds: Kinds
    index: list[str]
    columns: str | None = None
    paper: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.kinds.lead.unit

    @property
    def scale(self) -> float:
        return self.kinds.scale("RP")


def build(frames: Frames) -> Table:
    """The study's table; settings of its file's [report] decide, defaults come from what varies."""
    report = frames.plan.get("report", {})
    # Further metrics are in table.json, for checks, and not shown.
    asked = (*report.get("metrics", METRICS), *report.get("further", ()))
    rows = []
    for line in frames.lines:
        rows.append(_row(line, frames.kinds, report.get("paper"), asked))
    plan = {**frames.plan, "name": frames.plan.get("name") or frames.folder.name}
    table = from_rows(rows, plan, frames.kinds)
    missing = frames.finished["run"].nunique() < max(
        len(frames.plan.get("runs", [])), frames.counted
    )
    return replace(table, notes=(*table.notes, frames.state)) if missing else table


def from_rows(rows: list[Row], plan: Mapping[str, Any], kinds: Kinds) -> Table:
    """The table of these rows, which are in its unit, in the shape of the plan's [report]."""
    report = plan.get("report", {})
    metrics = []
    for metric in report.get("metrics", METRICS):
        if any(is_finite(row.get(metric)) for row in rows):
            metrics.append(metric)
    columns = report.get("columns") or _default_columns(rows)
    index = report.get("index") or _default_index(rows, columns)
    table = Table(
        title=str(report.get("title") or plan["name"]),
        rows=rows,
        metrics=metrics,
        kinds=kinds,
        index=_telling_apart(rows, list(index), columns),
        columns=columns,
        paper=report.get("paper"),
    )
    return replace(table, notes=tuple(_notes(table, plan)))


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _row(line: Line, kinds: Kinds, paper: str | None, asked: Iterable[str]) -> Row:
    row: Row = {**line.labels, "seeds": len(line.entries)}
    tasks = line.entries[0].summary.get("tasks")
    if tasks is not None:
        row["tasks"] = row.get("tasks") or tasks  # as a setting, 0 stands for all there are
    if line.chosen:
        row["selected"] = line.chosen
    if line.lost:
        row["diverged"] = line.lost
    seeds = list(map(str, line.runs["seed"]))
    for metric in dict.fromkeys((*METRICS, *asked)):
        values = line.values(metric)
        mean, error = mean_and_error(values)
        row[metric], row[f"{metric}_se"] = mean, error
        # Checks compare RP, LP, FGT and BWT seed by seed, those of parts of the tasks too.
        if error is not None and metric.rpartition(".")[2] in METRICS:
            row[f"{metric}_by_seed"] = _by_seed(seeds, values)
    row |= _curve(line, kinds.scale("RP"))
    if paper:
        theirs = papers.numbers(paper, row)
        row |= {f"{name}_paper": theirs[name] for name in METRICS if name in theirs}
    return row


def mean_and_error(values: np.ndarray) -> tuple[float | None, float | None]:
    """The mean of the values that are finite, and its standard error where they are several."""
    whole = values[np.isfinite(values)]
    if len(whole) < 2:
        return (float(whole.mean()), None) if len(whole) else (None, None)
    return float(whole.mean()), float(whole.std(ddof=1) / len(whole) ** 0.5)


def _by_seed(seeds: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """The finite values by the seed they are of."""
    whole = np.isfinite(values)
    return dict(zip(np.array(seeds, object)[whole], values[whole].tolist(), strict=True))


def _curve(line: Line, scale: float) -> Row:
    """RP along the way, and how it moves with the number of tasks, in the mean and by seed."""
    row: Row = {}
    after, curves = line.curves
    if len(after) > 1:
        whole = curves[np.isfinite(curves).all(1)]
        mean = (whole if len(whole) else curves).mean(0)
        row |= {"RP_after": after.tolist(), "RP_curve": (mean * scale).tolist()}
        seeds = [str(entry.seed) for entry in line.evaluated]
        for name, values in growth(after, curves * scale).items():
            mean, error = mean_and_error(values)
            row[f"RP_{name}"] = mean
            if error is not None:
                row |= {f"RP_{name}_se": error, f"RP_{name}_by_seed": _by_seed(seeds, values)}
    elif line.lost == len(line.entries):
        # Checks find that it has no curve, not that it has no row.
        row |= {"RP_after": [], "RP_curve": []}
        row |= dict.fromkeys(map("RP_{}".format, GROWTH))
    after, curves = line.average_curves
    if len(after) > 1:
        row["average.RP_after"] = after.tolist()
        row["average.RP_curve"] = (curves.mean(0) * scale).tolist()
    return row


def labels_of_row(row: Row) -> Row:
    """What names a row: all that stands before the number of its seeds."""
    keys = list(row)
    return {key: row[key] for key in keys[: keys.index("seeds")]}


# The shape ---------------------------------------------------------------------------------------


def _default_columns(rows: Sequence[Row]) -> str | None:
    policies = {row.get("policy") for row in rows}
    return "policy" if len(policies) > 1 and policies <= POLICY_NAMES.keys() else None


def _label_names(rows: Sequence[Row], columns: str | None) -> list[str]:
    """The keys of rows that are no numbers of them, but for the one that is spread."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return [name for name in names if not measured(name) and name != columns]


def _default_index(rows: Sequence[Row], columns: str | None) -> list[str]:
    varied = []
    for name in _label_names(rows, columns):
        if name not in COUNTS and len({str(row.get(name)) for row in rows}) > 1:
            varied.append(name)
    return varied or ["method"]


def _telling_apart(rows: Sequence[Row], index: list[str], columns: str | None) -> list[str]:
    """The index with labels added to it until no two rows would be drawn in one place."""

    def places(names: Sequence[str]) -> int:
        drawn = set()
        for row in rows:
            drawn.add((*line_of(names, row), str(row.get(str(columns)))))
        return len(drawn)

    for name in _label_names(rows, columns):
        if places(index) == len(rows):
            break
        if name in (*index, "seeds", "diverged"):
            continue
        if places([*index, name]) > places(index):
            index = [*index, name]
    return index


def line_of(index: Sequence[str], row: Row) -> tuple[str, ...]:
    """The labels that name a row's line, as a reader sees them; a numbered row by its name."""
    texts = []
    for name in index:
        numbered = name == "row" and "row" in row
        texts.append(named_row(row) if numbered else display(name, row.get(name)))
    return tuple(texts)


def _notes(table: Table, plan: Mapping[str, Any]) -> list[str]:
    rows, kinds = table.rows, table.kinds
    seeds = sorted({row["seeds"] for row in rows}) or [0]
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    plural = "s" * (counts != "1")
    notes = [f"Mean ± standard error over {counts} seed{plural}, unit: {table.unit}."]
    if seeds == [1]:
        notes = [f"One seed, so no standard error; unit: {table.unit}."]
    if any(f"{metric}_paper" in row for row in rows for metric in table.metrics):
        notes.append(f"In brackets or grey: the paper ({papers.caption(str(table.paper))}).")
    diverged = sum(row.get("diverged", 0) for row in rows)
    if diverged:
        words = "run diverged (NaN) and is" if diverged == 1 else "runs diverged (NaN) and are"
        notes.append(f"{diverged} {words} left out of the means (marked †).")
    for name in dict.fromkeys(metric.split(".")[-2] for metric in table.metrics if "." in metric):
        if name in kinds.others and kinds.others[name].unit != table.unit:
            notes.append(f"Unit of {name}: {kinds.others[name].unit}.")
    asked = plan.get("report", {}).get("metrics", ())
    missing = [metric for metric in asked if metric not in table.metrics]
    if missing and rows:
        notes.append(f"No run has a value of {', '.join(missing)}.")
    return [*notes, *map(str, plan.get("selected", []))]
