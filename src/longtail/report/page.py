"""One HTML file with everything: tables, interactive figures, tasks, comparison, settings.

Nothing is fetched: BokehJS, styles and data are inside, and a content security policy forbids the
rest. Scores by task are JSON, compressed and written in base64.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from longtail.names import METRICS, __version__
from longtail.report import plots, sections
from longtail.report.finding import Finding
from longtail.report.groups import Group, pairs
from longtail.report.results import Results, TaskScores
from longtail.report.tables import Table
from longtail.runs.progress import finite
from longtail.support.files import write_atomic

# Numbers of scores that the page may hold: 14 methods of 20,399 tasks take about 2 MB.
MOST_GROUP_TASKS, MOST_RUN_TASKS = 350_000, 120_000


def write(
    path: Path,
    results: Results,
    groups: list[Group],
    table: Table,
    extra: dict[str, Any],
    found: Finding,
    pair: tuple[str, str],
) -> None:
    items: list[dict[str, Any]] = []
    parts = []
    claims = extra["checks"]
    if groups:
        shown = plots.finding_figure(found, groups, table, pair)
        body = sections.finding_section(found, claims, shown, items)
        parts.append(("finding", "Finding", body))
    parts.append(("results", "Results", sections.results_section(table, claims, pair[0])))
    data = tasks(groups, table, pair)
    if groups:
        drawn = plots.Plots(groups, table, pair)
        parts.append(("figures", "Figures", sections.figures_section(drawn, items)))
    if data["units"]:
        parts.append(("tasks", "Tasks", sections.tasks_section(data["left_out"])))
    if len(data["units"]) > 1:
        last = [v for unit in data["units"][: len(groups)] for v in unit["last"] if v is not None]
        curves, points = plots.comparison(table, data["units"][0], np.array(last))
        body = sections.compare_section([("curves", curves), ("points", points)], items)
        parts.append(("compare", "Compare", body))
    if extra["statistics"]:
        body = sections.statistics_section(extra["statistics"], table)
        parts.append(("statistics", "Statistics", body))
    parts.append(("settings", "Settings", sections.settings_section(results, extra)))
    packed = gzip.compress(json.dumps(data, allow_nan=False).encode(), mtime=0)
    fields = {
        "title": html.escape(table.title),
        "state": html.escape(results.state),
        "notices": sections.notices(results, groups),
        "version": html.escape(__version__),
        "nav": "".join(f'<li><a href="#{k}">{name}</a></li>' for k, name, _ in parts),
        "body": "".join(
            f'<section id="{k}" aria-labelledby="{k}-h"><h2 id="{k}-h">{name}</h2>{body}</section>'
            for k, name, body in parts
        ),
        "css": asset("page.css"),
        "js": asset("page.js"),
        "bokeh": _bokeh() if items else "",
        "items": json.dumps(finite(items), allow_nan=False).replace("<", "\\u003c"),
        "data": base64.b64encode(packed).decode(),
    }
    # One pass: what a field holds is never looked at for fields again.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], asset("page.html"))
    write_atomic(path, page)


def asset(name: str) -> str:
    return resources.files("longtail.report").joinpath("assets", name).read_text("utf-8")


def _bokeh() -> str:
    from bokeh.resources import Resources

    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def tasks(groups: list[Group], table: Table, pair: tuple[str, str]) -> dict[str, Any]:
    """Scores by task of every group (mean over seeds) and, where they are few, of every run.

    `opens` are the two that a comparison starts with: the pair, the other policy first.
    """
    scale = 100.0 if table.unit == "percent" else 1.0
    tables: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    units, used, left_out = [], 0, 0

    def add(name: str, scores: TaskScores | None, metrics: dict[str, float | None]) -> None:
        if scores is None:
            return
        sizes = (scores.train_sizes, scores.test_sizes)
        key = json.dumps([scores.names, *(None if s is None else s.tolist() for s in sizes)])
        if key not in places:
            places[key] = len(tables)
            train, test = (None if s is None else _rounded(s, 1.0) for s in sizes)
            tables.append({"names": scores.names, "train": train, "test": test})
        unit = {name: _rounded(getattr(scores, name), scale) for name in ("own", "best", "last")}
        curve = {"after": scores.after.tolist(), "curve": _rounded(scores.curve, scale)}
        units.append({"name": name, "tasks": places[key], "metrics": metrics, **unit, **curve})

    place_of: dict[int, int] = {}
    for g in groups:
        count = len(g.scores[0].own) if g.scores else 0
        if used + count > MOST_GROUP_TASKS:
            left_out += 1
            continue
        used += count
        mean = {m: _mean(g.values(m)) for m in METRICS}
        count = len(g.finite_runs)
        seeds = f", seed {g.runs[0].seed}"
        if len(g.runs) > 1:
            seeds = f", mean of {count} seed{'s' * (count != 1)}{g.mark}"
        place_of[id(g)] = len(units)
        add(g.name + seeds, g.tasks, {m: None if v is None else v * scale for m, v in mean.items()})
    several = [(g, run) for g in groups if len(g.runs) > 1 for run in g.runs]
    wanted = sum(len(run.scores.own) for _, run in several if run.scores is not None)
    if wanted <= MOST_RUN_TASKS:
        for g, run in several:
            own = {m: _mean(np.array([run.metric(m)])) for m in METRICS}
            metrics = {m: None if v is None else v * scale for m, v in own.items()}
            lost = "" if run in g.finite_runs else " † (diverged)"
            add(f"{g.name}, seed {run.seed}{lost}", run.scores, metrics)
    else:
        left_out += len(several)
    higher = table.higher_is_better
    both = [
        (place_of[id(b)], place_of[id(a)])
        for a, b in pairs(groups, *pair)
        if a.tasks and b.tasks and id(a) in place_of and id(b) in place_of
    ]
    opens = both[0] if both else (0, 1)
    return {
        "tasks": tables, "units": units, "higher": higher, "left_out": left_out, "opens": opens
    }  # fmt: skip


def _rounded(values: np.ndarray, scale: float) -> list[float | int | None]:
    """Five significant digits, which is what a reader can use and what compresses well."""
    found: list[float | int | None] = []
    for value in (np.asarray(values, np.float64) * scale).tolist():
        if not math.isfinite(value):
            found.append(None)
        else:
            short = float(f"{value:.5g}")
            found.append(int(value) if value == int(value) else short)
    return found


def _mean(values: np.ndarray) -> float | None:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else None
