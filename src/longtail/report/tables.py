"""Tables in the paper's shape: one long form (a row per group of seeds), one grid to show it by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from longtail.names import METRICS, POLICY_NAMES
from longtail.report import papers
from longtail.report.groups import Group, display, group, measured, named_row
from longtail.report.results import Result, Results, ScoreKind, count
from longtail.report.statistics import GROWTH, growth

HEADINGS = {
    "method": "Method",
    "policy": "Policy",
    "row": "Policy",
    "first_moment": "1st moment",
    "second_moment": "2nd moment",
    "lr_adjust": "lr adjust",
}
_COUNTS = ("seeds", "diverged", "selected", "tasks")


@dataclass
class Table:
    title: str
    rows: list[dict[str, Any]]  # the long form, as in table.json
    metrics: list[str]
    unit: str
    higher_is_better: bool
    index: list[str]  # labels that name a line
    columns: str | None  # label that is spread over columns
    paper: str | None = None
    mixed: bool = False  # of several scores, which are not compared
    notes: list[str] = field(default_factory=list)
    others: dict[str, ScoreKind] = field(default_factory=dict)  # scores beside the leading one

    def kind(self, metric: str) -> ScoreKind:
        """How a metric is read: by the score in its path, `top5.RP`, or by the leading one."""
        return _kind(metric, ScoreKind(self.unit, self.higher_is_better), self.others)


@dataclass(frozen=True)
class Cell:
    mean: float
    se: float | None
    paper: float | None
    best: bool
    agreement: str | None  # "close", "near", "far" from the paper
    unit: str
    diverged: bool = False  # without the seeds that ended in NaN


@dataclass(frozen=True)
class Grid:
    """What is drawn: headings of the index, (metric, column) pairs, lines of texts and cells."""

    index: list[str]
    columns: list[tuple[str, str]]
    lines: list[tuple[list[str], list[Cell | None]]]


def build(results: Results, groups: list[Group] | None = None) -> Table:
    """The study's table; settings of its file's [report] decide, defaults come from what varies."""
    groups = group(results.runs) if groups is None else groups
    wanted = results.plan.get("report", {})
    firsts = [g.runs[0] for g in groups]
    scores = list(dict.fromkeys(run.score for run in firsts))
    units = list(dict.fromkeys(run.unit for run in firsts))
    unit = asked_unit(wanted)
    if not unit:  # of several scores each stays in its own unit
        unit = units[0] if len(units) == 1 else " and ".join(scores)
    higher = firsts[0].higher_is_better if firsts else True
    others: dict[str, ScoreKind] = {}
    for run in firsts:
        others |= {name: kind for name, kind in run.score_kinds.items() if name not in scores}
    scales = _Scales(ScoreKind(unit, higher), others)
    further = wanted.get("further", ())  # in table.json, for checks, but not shown
    asked = (*wanted.get("metrics", METRICS), *further)
    rows = [_row(g, scales, wanted.get("paper"), asked) for g in groups]
    plan = {**results.plan, "name": results.plan.get("name") or results.folder.name}
    mixed = len(scores) > 1
    table = from_rows(rows, plan, unit, higher_is_better=higher, mixed=mixed, others=others)
    if count(results.finished) < max(len(results.plan.get("runs", [])), count(results.runs)):
        table.notes.append(results.state)
    return table


def asked_unit(report: dict[str, Any]) -> str | None:
    """The unit that a study's [report] gives its table, itself or by the paper's table."""
    return report.get("unit") or (papers.unit(report["paper"]) if report.get("paper") else None)


def from_rows(
    rows: list[dict[str, Any]],
    plan: dict[str, Any],
    unit: str,
    *,
    higher_is_better: bool,
    mixed: bool = False,
    others: Mapping[str, ScoreKind] | None = None,
) -> Table:
    """The table of these rows, which are in this unit, in the shape of the plan's [report]."""
    wanted = plan.get("report", {})
    asked = wanted.get("metrics", METRICS)
    metrics = [m for m in asked if any(_finite(r.get(m)) for r in rows)]
    columns = wanted.get("columns") or _default_columns(rows)
    index = wanted.get("index") or _default_index(rows, columns)
    index = _telling_apart(rows, list(index), columns)
    table = Table(
        str(wanted.get("title") or plan["name"]),
        rows,
        metrics,
        unit,
        higher_is_better,
        index,
        columns,
        wanted.get("paper"),
        mixed=mixed,
        others=dict(others or {}),
    )
    table.notes = _notes(table, plan)
    return table


def better(table: Table, metric: str) -> bool:
    """Whether larger is better: forgetting (FGT) runs against the score, the others with it."""
    return table.kind(metric).higher_is_better != (metric.rpartition(".")[2] == "FGT")


def _kind(metric: str, lead: ScoreKind, others: Mapping[str, ScoreKind]) -> ScoreKind:
    for part in metric.split(".")[:-1]:
        if part in others:
            return others[part]
    return lead


@dataclass(frozen=True)
class _Scales:
    """What metrics are multiplied by, each by the unit of its own score."""

    lead: ScoreKind
    others: dict[str, ScoreKind]

    def __getitem__(self, metric: str) -> float:
        return 100.0 if _kind(metric, self.lead, self.others).unit == "percent" else 1.0


def _row(g: Group, scales: _Scales, paper_key: str | None, asked: Iterable[str]) -> dict[str, Any]:
    scale = scales["RP"]
    row: dict[str, Any] = {**g.labels, "seeds": len(g.runs)}
    tasks = g.runs[0].summary.get("tasks")
    if tasks is not None:
        row["tasks"] = row.get("tasks") or tasks  # as a setting, 0 stands for all there are
    if g.runs[0].chosen:
        row["selected"] = g.runs[0].chosen
    if g.diverged:
        row["diverged"] = len(g.diverged)
    for metric in dict.fromkeys((*METRICS, *asked)):
        in_unit = g.values(metric) * scales[metric]
        values = in_unit[np.isfinite(in_unit)]
        row[metric] = float(values.mean()) if len(values) else None
        se = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        row[f"{metric}_se"] = se
        # Checks compare RP, LP, FGT and BWT seed by seed, those of parts of the tasks too.
        if len(values) > 1 and metric.rpartition(".")[2] in METRICS:
            row[f"{metric}_by_seed"] = _by_seed(g.runs, in_unit)
    after, curves = g.curves
    if len(after) > 1:  # evaluated along the way: what checks on growth are made from
        whole = curves[np.isfinite(curves).all(1)]
        mean = (whole if len(whole) else curves).mean(0)
        row["RP_after"], row["RP_curve"] = after.tolist(), (mean * scale).tolist()
        row.update(_growth(g.evaluated, after, curves * scale))
    elif (
        g.diverged and not g.finite_runs
    ):  # checks find that it has no curve, not that it has no row
        row.update({"RP_after": [], "RP_curve": []})
        row.update(dict.fromkeys(f"RP_{part}" for part in GROWTH))
    after, curves = g.average_curves
    if len(after) > 1:
        row["average.RP_after"] = after.tolist()
        row["average.RP_curve"] = (curves.mean(0) * scale).tolist()
    if paper_key:
        theirs = papers.numbers(paper_key, row)
        row.update({f"{m}_paper": theirs[m] for m in METRICS if m in theirs})
    return row


def _by_seed(runs: list[Result], values: np.ndarray) -> dict[str, float]:
    pairs = zip(runs, values, strict=True)
    return {str(run.seed): float(value) for run, value in pairs if math.isfinite(value)}


def _growth(runs: list[Result], after: np.ndarray, curves: np.ndarray) -> dict[str, Any]:
    """How RP moves with the number of tasks, in the mean and by seed."""
    found: dict[str, Any] = {}
    for name, values in growth(after, curves).items():
        whole = values[np.isfinite(values)]
        found[f"RP_{name}"] = float(whole.mean()) if len(whole) else None
        if len(whole) > 1:
            found[f"RP_{name}_se"] = float(whole.std(ddof=1) / len(whole) ** 0.5)
            found[f"RP_{name}_by_seed"] = _by_seed(runs, values)
    return found


def _default_columns(rows: list[dict[str, Any]]) -> str | None:
    policies = {r.get("policy") for r in rows}
    return "policy" if len(policies) > 1 and policies <= POLICY_NAMES.keys() else None


def _default_index(rows: list[dict[str, Any]], columns: str | None) -> list[str]:
    keys = dict.fromkeys(
        k for r in rows for k in r if not measured(k) and k not in (*_COUNTS, columns)
    )
    varied = [k for k in keys if len({str(r.get(k)) for r in rows}) > 1]
    return varied or ["method"]


def _telling_apart(rows: list[dict[str, Any]], index: list[str], columns: str | None) -> list[str]:
    """The index with labels added to it until no two rows would be drawn in one place."""

    def places(keys: list[str]) -> int:
        return len({(*(label_text(k, r) for k in keys), str(r.get(str(columns)))) for r in rows})

    keys = dict.fromkeys(k for r in rows for k in r if not measured(k) and k != columns)
    for key in keys:
        if places(index) == len(rows):
            break
        if key not in (*index, "seeds", "diverged") and places([*index, key]) > places(index):
            index = [*index, key]
    return index


def _notes(table: Table, plan: dict[str, Any]) -> list[str]:
    seeds = sorted({r["seeds"] for r in table.rows})
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else "0"
    notes = [
        f"Mean ± standard error over {counts} seed{'s' * (counts != '1')}, unit: {table.unit}."
    ]
    if seeds == [1]:
        notes = [f"One seed, so no standard error; unit: {table.unit}."]
    if any(f"{m}_paper" in r for r in table.rows for m in table.metrics):
        notes.append(f"In brackets or grey: the paper ({papers.caption(str(table.paper))}).")
    diverged = sum(r.get("diverged", 0) for r in table.rows)
    if diverged:
        words = "run diverged (NaN) and is" if diverged == 1 else "runs diverged (NaN) and are"
        notes.append(f"{diverged} {words} left out of the means (marked †).")
    for name in dict.fromkeys(m.split(".")[-2] for m in table.metrics if "." in m):
        if name in table.others and table.others[name].unit != table.unit:
            notes.append(f"Unit of {name}: {table.others[name].unit}.")
    asked = plan.get("report", {}).get("metrics", ())
    if missing := [m for m in asked if table.rows and m not in table.metrics]:
        notes.append(f"No run has a value of {', '.join(missing)}.")
    return [*notes, *map(str, plan.get("selected", []))]


def label_text(key: str, row: dict[str, Any]) -> str:
    """A label of a row as a reader sees it; a numbered row by its name too."""
    return named_row(row) if key == "row" and "row" in row else display(key, row.get(key))


def grid(table: Table) -> Grid:
    spread: list[Any] = [None]
    if table.columns:
        spread = list(dict.fromkeys(r.get(table.columns) for r in table.rows))
        if table.columns == "policy":
            spread = sorted(spread, key=lambda p: ([*POLICY_NAMES, p].index(p), str(p)))
    lines: dict[tuple[str, ...], dict[Any, dict[str, Any]]] = {}
    for row in table.rows:
        named = tuple(label_text(k, row) for k in table.index)
        lines.setdefault(named, {})[row.get(table.columns) if table.columns else None] = row
    places = [(m, c) for m in table.metrics for c in spread]
    benchmarks = {row.get("benchmark") for row in table.rows}
    best = {(b, m, c): _best(table, m, c, b) for b in benchmarks for m, c in places}
    drawn = []
    for named, cells in lines.items():
        where = next(iter(cells.values())).get("benchmark")
        shown = [_cell(cells.get(c), m, table.kind(m).unit, best[where, m, c]) for m, c in places]
        drawn.append((list(named), shown))
    heads = [(m, display(table.columns or "", c) if c is not None else "") for m, c in places]
    return Grid([HEADINGS.get(k, k.replace("_", " ")) for k in table.index], heads, drawn)


def _best(table: Table, metric: str, column: Any, benchmark: Any) -> float | None:
    """The best mean of a benchmark, for bold: by column, over both policies where these are.

    Multi-task training sees all the data at once, so it does not compete.
    """
    if table.mixed:
        return None
    own_column = table.columns and table.columns != "policy"
    values = [
        r[metric]
        for r in table.rows
        if _finite(r.get(metric))
        and r.get("method") != "multitask"
        and r.get("benchmark") == benchmark
        and (not own_column or r.get(str(table.columns)) == column)
    ]
    if len(values) < 2:
        return None
    return max(values) if better(table, metric) else min(values)


def _cell(row: dict[str, Any] | None, metric: str, unit: str, best: float | None) -> Cell | None:
    if row is None or (row.get(metric) is None and not row.get("diverged")):
        return None
    mean = float("nan") if row.get(metric) is None else row[metric]
    theirs = row.get(f"{metric}_paper")
    close = papers.agreement(mean, theirs, unit) if theirs is not None and _finite(mean) else None
    is_best = best is not None and number(mean, unit) == number(best, unit)
    is_best = is_best and row["method"] != "multitask"
    se, diverged = row.get(f"{metric}_se"), bool(row.get("diverged"))
    return Cell(mean, se, theirs, is_best, close, unit, diverged)


def number(value: float | None, unit: str, like: float | None = None) -> str:
    """Two decimals for percentages, about three significant digits for errors.

    A standard error has as many decimals as the mean it belongs to, `like`.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan"
    if unit == "percent":
        return f"{value:.2f}"
    size = abs(value if like is None else like)
    if size and not 1e-4 <= size < 1e5:
        return f"{value:.1e}"
    decimals = sum(size < limit for limit in (100, 10, 1, 0.1))
    return f"{value:.{decimals}f}"


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)
