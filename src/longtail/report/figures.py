"""Figures for print, drawn with matplotlib and saved as SVG, PDF and PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.report import series
from longtail.report.groups import Group, display, pairs
from longtail.report.series import Series
from longtail.report.style import (
    COLOURS,
    DIVERGED,
    MOST_PANELS,
    Look,
    axis_for,
    divergences,
    line_label,
    panels,
    scale_of,
    wide_span,
)
from longtail.report.tables import Table
from longtail.support.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    "rp_by_tasks",
    "average_by_tasks",
    "retention_by_age",
    "forgetting_by_size",
    "difference_by_tasks",
    "score_matrix",
    "task_sizes",
    "plane",
)
MOST_LINES = 21  # six methods with three policies, and some more
MOST_MARKS = 42  # rows of a plane
LEGEND_LINE = 0.17  # inches
PRINT = 0.7  # lines on paper in terms of those on a screen
SVG_DPI = 72  # a layout for these also fits PDF, and PNG well enough


def write(
    groups: list[Group],
    table: Table,
    folder: Path,
    pair: tuple[str, str],
    names: Collection[str] = NAMES,
) -> list[Path]:
    """Writes every figure of these names that the results allow."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    # A fixed salt, and no date in the metadata below: the same results give the same files.
    style: Any = {
        "svg.hashsalt": "longtail",
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    with matplotlib.rc_context(style):
        for name, figure in _draw(groups, table, pair, Figure):
            if name not in names:
                continue
            figure.dpi = SVG_DPI
            FigureCanvasSVG(figure)
            _settle(figure)
            for ending in ("svg", "pdf", "png"):
                out = io.BytesIO()
                metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
                figure.savefig(out, format=ending, dpi=140, metadata=metadata)
                paths.append(folder / f"{name}.{ending}")
                write_atomic(paths[-1], out.getvalue())
    return paths


def _settle(figure: Figure) -> None:
    """Find the layout once, the slowest part of a figure, and not for each of its files.

    Without an engine a file is also drawn once, and not a first time to measure it.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def _draw(
    groups: list[Group], table: Table, pair: tuple[str, str], new: Callable[..., Figure]
) -> Iterator[tuple[str, Figure]]:
    look, scale = Look(groups, pair), scale_of(table)
    parts = panels(groups, table)
    unit = table.unit
    for name, compute, x, y, log in (
        ("rp_by_tasks", series.rp_curve, "tasks learned", f"RP ({unit})", False),
        (
            "average_by_tasks",
            series.average_curve,
            "tasks learned",
            f"RP of the average ({unit})",
            False,
        ),
        (
            "retention_by_age",
            series.retention,
            "age of a task (tasks ago)",
            f"now minus when learned ({unit})",
            True,
        ),
        (
            "forgetting_by_size",
            series.forgetting_by_size,
            "training examples",
            f"forgetting ({unit})",
            True,
        ),
    ):
        drawn = [(t, [(g, compute(g, scale)) for g in gs]) for t, gs in parts]
        drawn = [(t, [(g, s) for g, s in lines if len(s.x)]) for t, lines in drawn]
        if any(lines for _, lines in drawn):
            lost = [g for g in groups if not g.finite_runs] if name == "rp_by_tasks" else None
            yield name, _lines(drawn, look, new, x, y, log, lost=lost)
    found = [(t, pairs(gs, *pair)) for t, gs in parts]
    drawn = [(t, [(a, series.difference(a, b, scale)) for a, b in ps]) for t, ps in found]
    drawn = [(t, [(g, s) for g, s in lines if len(s.x) > 1]) for t, lines in drawn]
    if any(lines for _, lines in drawn):
        label = (
            "RP with MC minus without"
            if pair == ("continual", "new")
            else f"RP: {pair[0]} minus {pair[1]}"
        )
        yield (
            "difference_by_tasks",
            _lines(drawn, look, new, "tasks learned", f"{label} ({unit})", False, zero=True),
        )
    yield from _others(groups, table, look, new)


def _lines(
    parts: list[tuple[str, list[tuple[Group, Series]]]],
    look: Look,
    new: Callable[..., Figure],
    x: str,
    y: str,
    log: bool,
    zero: bool = False,
    lost: list[Group] | None = None,
) -> Figure:
    from matplotlib.ticker import NullLocator

    figure = new(figsize=(max(5.2, 3.6 * len(parts)), 3.3), layout="constrained")
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    entries: dict[str, Any] = {}
    everything = [g for _, lines in parts for g, _ in lines]
    axis = axis_for([[s for _, s in lines] for _, lines in parts])
    for ax, (title, lines) in zip(axes, parts, strict=True):
        for g, s in _first(lines, MOST_LINES):
            dash = "-" if zero else look.dash(g)
            label = line_label(everything, g.line)
            if zero and "row" not in g.labels:
                label = display("method", g.labels.get("method")) + g.mark
            alone = len(s.x) == 1  # as of multi-task training, which is scored at the end
            few = "." if alone or (len(s.x) < 30 and look.strong(g)) else ""
            colour = look.colour(g)
            width, on_top = PRINT * look.width(g), 3 if look.strong(g) else 2
            (entries[label],) = ax.plot(
                s.x, s.mean, dash, marker=few, color=colour, lw=width, zorder=on_top
            )
            if zero or look.strong(g):  # of every line they would hide each other
                low, high = s.mean - s.half, s.mean + s.half
                # An interval that reaches zero has no place on a logarithmic axis.
                shown = low > 0 if axis.kind == "log" else None
                ax.fill_between(s.x, low, high, where=shown, color=colour, alpha=0.15, lw=0)
            if lost is not None and g.diverged:
                crosses = ax.scatter(*divergences(g, s), marker=DIVERGED, color=colour, zorder=4)
                entries["† a seed diverged, left out"] = crosses
        for g in lost or ():  # no seed of it has a line
            entries[line_label([*everything, *(lost or ())], g.line)] = ax.scatter(
                [], [], marker=DIVERGED, color=look.colour(g)
            )
        _say_left_out(entries, ax, len(lines) - MOST_LINES, title)
        ax.set(title=title, xlabel=x, ylabel=y if ax is axes[0] else "")
        if zero:
            ax.axhline(0, color="grey", lw=0.8)
        if log:
            ax.set_xscale("symlog", linthresh=1)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            ax.locator_params(axis="x", nbins=5 if len(parts) == 1 else 4)  # more would overlap
        if axis.kind != "linear":
            wide = {"linthresh": axis.width} if axis.kind == "symlog" else {}
            ax.set_yscale(axis.kind, **wide)
        if axis.kind == "symlog" and lines:
            ax.set_yticks(axis.ticks(np.concatenate([s.mean for _, s in lines])))
            ax.yaxis.set_minor_locator(NullLocator())
    _legend(figure, entries)
    return figure


def _first(lines: list[tuple[Group, Series]], most: int) -> list[tuple[Group, Series]]:
    """As many of them as there is room for; multi-task training, which bounds them, is one."""
    if len(lines) <= most:
        return lines
    bounds = [line for line in lines if line[0].labels.get("method") == "multitask"]
    others = [line for line in lines if line[0].labels.get("method") != "multitask"]
    kept = others[: max(0, most - len(bounds))] + bounds
    return [line for line in lines if any(line is one for one in kept)][:most]


def _say_left_out(entries: dict[str, Any], ax: Any, more: int, title: str) -> None:
    """In the legend, that there was no room for so many."""
    if more > 0:
        where = f" ({title})" if title else ""
        entries[f"and {more} more, not drawn{where}"] = ax.scatter([], [], marker="")


def _legend(figure: Figure, entries: dict[str, Any]) -> None:
    if len(entries) > 1:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, max(height, LEGEND_LINE * (len(entries) + 1)))
        place = "outside right upper"
        figure.legend(entries.values(), entries.keys(), loc=place, fontsize=8, frameon=False)


def _others(
    groups: list[Group], table: Table, look: Look, new: Callable[..., Figure]
) -> Iterator[tuple[str, Figure]]:
    scale = scale_of(table)
    found = [
        (g, h)
        for g in groups
        for h in [series.heat(run, scale) for run in g.finite_runs[:1]]
        if h is not None
    ]
    if found:
        drawn = _heat(found[:MOST_PANELS], table, new)
        if len(found) > MOST_PANELS:
            drawn.suptitle(f"the first {MOST_PANELS} of {len(found)} rows", fontsize=8)
        yield "score_matrix", drawn
    sizes = next((s for s in (series.sizes(g) for g in groups) if s is not None), None)
    if sizes is not None and len(sizes) > 1:
        figure = new(figsize=(4.6, 3.2), layout="constrained")
        ax = figure.subplots()
        ax.plot(np.arange(1, len(sizes) + 1), sizes, color=COLOURS[0])
        ax.set_xscale("log")
        ax.set_yscale("symlog", linthresh=1)
        ax.set(xlabel="rank of the task", ylabel="training examples", ylim=(0, None))
        yield "task_sizes", figure
    if any(np.isfinite(g.values("LP")).any() and np.isfinite(g.values("RP")).any() for g in groups):
        yield "plane", _plane(groups, table, look, new)


def _heat(
    found: list[tuple[Group, tuple[np.ndarray, np.ndarray, np.ndarray]]],
    table: Table,
    new: Callable[..., Figure],
) -> Figure:
    rows = -(-len(found) // 3)
    figure = new(figsize=(3.4 * min(len(found), 3) + 0.8, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, min(len(found), 3), squeeze=False).ravel()
    # The middle 98%: one diverged task must not turn everything else into one colour.
    values = np.concatenate([h[2][np.isfinite(h[2])] for _, h in found])
    low, high = np.percentile(values, [1, 99])
    image = None
    for ax, (g, (after, starts, matrix)) in zip(axes, found, strict=False):
        edges = np.append(
            starts, starts[-1] + max(1, starts[-1] - (starts[-2] if len(starts) > 1 else 0))
        )
        image = ax.pcolormesh(
            edges + 0.5,
            np.arange(len(after) + 1),
            matrix,
            cmap="viridis",
            vmin=low,
            vmax=high,
            rasterized=True,
        )
        ticks = np.unique(np.linspace(0, len(after) - 1, 5).astype(int))
        ax.set_yticks(ticks + 0.5, [f"{after[i]:,}" for i in ticks])
        ax.set_title(f"{g.name}, seed {g.finite_runs[0].seed}", fontsize=8)
        ax.set(xlabel="task", ylabel="after learning" if ax in axes[::3] else "")
        ax.grid(False)
    for ax in axes[len(found) :]:
        ax.set_axis_off()
    if image is not None:
        figure.colorbar(image, ax=axes, label=f"score ({table.unit})", extend="both")
    return figure


def _plane(groups: list[Group], table: Table, look: Look, new: Callable[..., Figure]) -> Figure:
    """LP against RP: on the diagonal nothing that was learned is lost."""
    parts, scale = panels(groups, table), scale_of(table)
    figure = new(figsize=(max(5.2, 3.7 * len(parts)), 3.5), layout="constrained")
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    entries: dict[str, Any] = {}
    for ax, (title, part) in zip(axes, parts, strict=True):
        points = []
        for g in part[:MOST_MARKS]:
            values = [g.values(metric) * scale for metric in ("LP", "RP")]
            if all(np.isfinite(v).any() for v in values):
                x, y = (float(np.nanmean(v)) for v in values)
                fill = look.colour(g) if g.labels.get("policy") != "new" else "none"
                entries[line_label(groups, g.line)] = ax.scatter(
                    x, y, marker=look.marker(g), s=90 if look.strong(g) else 42,
                    edgecolors=look.colour(g), facecolors=fill,
                )  # fmt: skip
                points.append((x, y))
        _say_left_out(entries, ax, len(part) - MOST_MARKS, title)
        ends = np.array(points)
        if wide_span(ends):
            ax.set(xscale="log", yscale="log")
        if len(ends):
            low, high = max(ends[:, 0].min(), ends[:, 1].min()), ends.max()
            ax.axline(
                (low, low),
                (high, high) if high > low else (low * 1.01 + 1e-9, low * 1.01 + 1e-9),
                color="grey",
                lw=0.8,
                ls=":",
            )
        ax.set(
            title=title,
            xlabel=f"LP ({table.unit})",
            ylabel=f"RP ({table.unit})" if ax is axes[0] else "",
        )
    _legend(figure, entries)
    return figure
