"""The interactive figures of the page, made with Bokeh.

Renderers carry the index of their line in `tags`, by which the page's checkboxes find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.report import series
from longtail.report.groups import Group, pairs
from longtail.report.series import Series
from longtail.report.style import Look, panels, scale_of
from longtail.report.tables import Table

if TYPE_CHECKING:
    from bokeh.plotting import figure

DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dotdash"}
MARKERS = ["circle", "square", "diamond", "triangle", "inverted_triangle", "plus", "star", "x"]
MOST_LINES = 60
MOST_HEATS = 12


class Plots:
    """Collects (section, caption, figure) in the order of the page."""

    def __init__(self, groups: list[Group], table: Table, pair: tuple[str, str]) -> None:
        self.groups, self.table, self.pair = groups[:MOST_LINES], table, pair
        self.look, self.scale = Look(groups), scale_of(table)
        self.lines = list(dict.fromkeys(g.line for g in self.groups))
        self.found: list[tuple[str, str, figure]] = []
        self.heats: list[str] = []
        self._draw()

    def legend(self) -> list[tuple[str, str, str]]:
        """(line, colour, dash) for the checkboxes."""
        first = {g.line: g for g in reversed(self.groups)}
        return [
            (line, self.look.colour(first[line]), DASHES[self.look.dash(first[line])])
            for line in self.lines
        ]

    def _draw(self) -> None:
        unit = self.table.unit
        parts = panels(self.groups, self.table)
        for title, part in parts:
            self._series(
                "curve", "RP", title, part, series.rp_curve, "tasks learned", f"RP ({unit})"
            )
        for title, part in parts:
            found = [(a, series.difference(a, b, self.scale)) for a, b in pairs(part, *self.pair)]
            words = (
                "with MC minus without"
                if self.pair[0] == "continual"
                else " minus ".join(self.pair)
            )
            caption = _joined(f"Difference of RP, {words}", title)
            self._lines(
                "difference", caption, found, "tasks learned", f"difference ({unit})", False
            )
        for title, part in parts:
            self._series(
                "retention", "Retention of a task by its age", title, part, series.retention,
                "tasks learned since", f"now minus when learned ({unit})", True,
            )  # fmt: skip
        for title, part in parts:
            self._series(
                "size", "Forgetting by task size, the long tail on the left", title, part,
                series.forgetting_by_size, "training examples", f"forgetting ({unit})", True,
            )  # fmt: skip
        for title, part in parts:
            self._plane(title, part)
        self._heat()
        self._sizes()

    def _series(
        self,
        kind: str,
        words: str,
        title: str,
        part: list[Group],
        compute: Any,
        x: str,
        y: str,
        log: bool = False,
    ) -> None:
        words = "RP over the tasks learned so far" if words == "RP" else words
        found = [(g, compute(g, self.scale)) for g in part]
        self._lines(kind, _joined(words, title), found, x, y, log)

    def _lines(
        self, kind: str, caption: str, found: list[tuple[Group, Series]], x: str, y: str, log: bool
    ) -> None:
        from bokeh.models import ColumnDataSource, HoverTool, Line, Scatter, Span, VArea

        found = [(g, s) for g, s in found if len(s.x) and np.isfinite(s.mean).any()]
        if not found:
            return
        ends = np.array([s.mean[-1] for _, s in found])
        spread = all((s.mean > 0).all() for _, s in found) and ends.max() / ends.min() > 100
        plot = _figure(x, y, "log" if log else "linear", "log" if spread else "linear")
        if not spread:
            plot.add_layout(Span(location=0, dimension="width", line_color="#888888", line_width=1))
        hovered = []
        for g, s in found:
            # A logarithmic axis has no zero: zero-shot tasks are drawn at one half.
            at = np.where(s.x < 0.5, 0.5, s.x) if log else s.x
            low, high = s.mean - s.half, s.mean + s.half
            data = {"x": at, "y": s.mean, "low": low, "high": high, "half": s.half}
            columns: dict[str, Any] = {k: np.asarray(v, np.float32) for k, v in data.items()}
            columns["shown"] = np.asarray(s.x, np.int32)
            source = ColumnDataSource(columns, name=g.name)
            drawn, colour = [], self.look.colour(g)
            if np.isfinite(s.half).any() and not spread:
                band = VArea(x="x", y1="low", y2="high", fill_alpha=0.15, fill_color=colour)
                drawn.append(plot.add_glyph(source, band))
            dash = "solid" if kind == "difference" else DASHES[self.look.dash(g)]
            style: dict[str, Any] = {"line_width": 2, "line_dash": dash, "line_color": colour}
            # Not `plot.line`: it makes five glyphs of one, for selections that there are none of.
            line = plot.add_glyph(source, Line(x="x", y="y", **style), name=g.name)
            hovered.append(line)
            drawn.append(line)
            if len(s.x) < 60:
                dots = Scatter(x="x", y="y", size=5, line_color=colour, fill_color=colour)
                drawn.append(plot.add_glyph(source, dots))
            for renderer in drawn:
                renderer.tags = [self.lines.index(g.line)]
        tips = [
            ("", "$name"),
            (x, "@shown"),
            (y, "@y{0.0000}"),
            ("95% interval ±", "@half{0.0000}"),
        ]
        plot.add_tools(
            HoverTool(renderers=hovered, tooltips=tips, mode="mouse", line_policy="nearest")
        )
        self.found.append((kind, caption, plot))

    def _plane(self, title: str, part: list[Group]) -> None:
        from bokeh.models import ColumnDataSource, HoverTool, Scatter, Slope

        points = []
        for g in part:
            values = [g.values(m) * self.scale for m in ("LP", "RP")]
            if all(np.isfinite(v).any() for v in values):
                points.append((g, *(float(np.nanmean(v)) for v in values)))
        if not points:
            return
        ends = np.array([p[1:] for p in points])
        spread = bool((ends > 0).all()) and ends.max() / ends.min() > 100
        axis = "log" if spread else "linear"
        plot = _figure(f"LP ({self.table.unit})", f"RP ({self.table.unit})", axis, axis)
        if not spread:
            plot.add_layout(
                Slope(gradient=1, y_intercept=0, line_color="#888888", line_dash="dotted")
            )
        for g, x, y in points:
            colour = self.look.colour(g)
            style: dict[str, Any] = {
                "marker": MARKERS[self.look.index(g) % len(MARKERS)],
                "line_color": colour,
                "fill_color": colour if g.labels.get("policy") != "reset" else None,
            }
            glyph = Scatter(x="x", y="y", size=11, line_width=2, **style)
            source = ColumnDataSource({"x": [x], "y": [y]})
            point = plot.add_glyph(source, glyph, name=g.name)
            point.tags = [self.lines.index(g.line)]
        tips = [("", "$name"), ("LP", "@x{0.000}"), ("RP", "@y{0.000}")]
        plot.add_tools(HoverTool(tooltips=tips))
        caption = _joined("Learned (LP) against retained (RP); dotted: nothing is lost", title)
        self.found.append(("plane", caption, plot))

    def _heat(self) -> None:
        from bokeh.models import ColorBar, FixedTicker, HoverTool, LinearColorMapper

        found = [(g, h) for g in self.groups for h in [series.heat(g.runs[0], self.scale)] if h]
        found = found[:MOST_HEATS]
        if not found:
            return
        values = np.concatenate([h[2][np.isfinite(h[2])] for _, h in found])
        low, high = map(float, np.percentile(values, [1, 99])) if len(values) else (0.0, 1.0)
        mapper = LinearColorMapper(
            palette="Viridis256", low=low, high=max(high, low + 1e-9), nan_color="rgba(0,0,0,0)"
        )
        plot = _figure("task", "after learning", "linear", "linear")
        for i, (g, (after, _, matrix)) in enumerate(found):
            place: dict[str, Any] = {"x": 0.5, "y": 0, "dw": float(after[-1]), "dh": len(after)}
            place |= {"color_mapper": mapper, "visible": i == 0}
            image = plot.image(image=[matrix.astype(np.float32)], **place)
            image.tags = [f"heat{i}"]
            self.heats.append(f"{g.name}, seed {g.runs[0].seed}")
        after = found[0][1][0]
        ticks = np.unique(np.linspace(0, len(after) - 1, 6).astype(int)).tolist()
        plot.yaxis.ticker = FixedTicker(ticks=[t + 0.5 for t in ticks])
        plot.yaxis.major_label_overrides = {t + 0.5: f"{after[t]:,}" for t in ticks}
        plot.add_layout(ColorBar(color_mapper=mapper, background_fill_color=None), "right")
        plot.add_tools(
            HoverTool(tooltips=[("task", "$x{0}"), (f"score ({self.table.unit})", "@image")])
        )
        plot.grid.visible = False
        self.found.append(
            ("heat", "Score of each task (across) as tasks are learned (upwards)", plot)
        )

    def _sizes(self) -> None:
        from bokeh.models import HoverTool

        found = next((s for s in (series.sizes(g) for g in self.groups) if s is not None), None)
        if found is None or len(found) < 2:
            return
        plot = _figure("rank of the task", "training examples", "log", "log")
        rank = np.unique(np.geomspace(1, len(found), 400).astype(int))
        shown = found[rank - 1]
        data: dict[str, Any] = {"x": rank, "y": np.maximum(shown, 0.5), "n": shown.astype(int)}
        plot.line("x", "y", source=data, line_width=2, color="#0072B2")
        plot.add_tools(
            HoverTool(tooltips=[("rank", "@x"), ("training examples", "@n")], mode="vline")
        )
        self.found.append(("sizes", f"Sizes of the {len(found):,} tasks, largest first", plot))


def comparison(table: Table, first: dict[str, Any]) -> tuple[figure, figure]:
    """Two figures that the page fills with the two selected runs, at first one with itself."""
    from bokeh.models import ColumnDataSource, HoverTool, Slope

    curves = _figure("tasks learned", f"RP ({table.unit})", "linear", "linear")
    for name, colour in (("A", "#0072B2"), ("B", "#D55E00")):
        source = ColumnDataSource({"x": first["after"], "y": first["curve"]}, name=f"curve{name}")
        dash = "solid" if name == "A" else "dashed"
        curves.line("x", "y", source=source, color=colour, line_width=2, line_dash=dash, name=name)
    curves.add_tools(HoverTool(tooltips=[("", "$name"), ("tasks", "@x{0}"), ("RP", "@y{0.000}")]))
    points = _figure(
        f"A, final score ({table.unit})", f"B, final score ({table.unit})", "linear", "linear"
    )
    last = [value for value in first["last"] if value is not None][:9]
    empty = {"task": [""] * len(last), "size": [0] * len(last)}
    source = ColumnDataSource({"x": last, "y": last, **empty}, name="points")
    points.scatter("x", "y", source=source, size=5, alpha=0.4, color="#009E73")
    points.add_layout(Slope(gradient=1, y_intercept=0, line_color="#888888", line_dash="dotted"))
    tips = [("task", "@task"), ("training examples", "@size"), ("A", "@x{0.00}"), ("B", "@y{0.00}")]
    points.add_tools(HoverTool(tooltips=tips))
    return curves, points


def _figure(x: str, y: str, x_axis: str, y_axis: str) -> figure:
    from bokeh.plotting import figure

    plot = figure(
        height=320, sizing_mode="stretch_width", tools="pan,box_zoom,wheel_zoom,reset,save",
        active_drag="box_zoom", active_scroll=None, x_axis_type=x_axis, y_axis_type=y_axis,  # pyright: ignore
        x_axis_label=x, y_axis_label=y, background_fill_color=None, border_fill_color=None,
        outline_line_color=None, min_border=8,
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    for axis, kind in ((plot.xaxis, x_axis), (plot.yaxis, y_axis)):
        if kind == "linear":
            axis.formatter.use_scientific = False  # pyright: ignore
    return plot


def _joined(caption: str, title: str) -> str:
    return f"{caption}: {title}" if title else caption
