"""The interactive figures of the page, made with Bokeh.

Renderers carry the index of their line in `tags`, by which the page's checkboxes find them, and
bands the word "band" behind it: they are drawn only when a reader asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.report import series
from longtail.report.finding import MC, Finding
from longtail.report.groups import Group, pairs
from longtail.report.series import Series
from longtail.report.style import (
    DIVERGED,
    STRONG,
    Axis,
    Look,
    axis_for,
    divergences,
    line_label,
    panels,
    scale_of,
    wide_span,
)
from longtail.report.tables import Table

if TYPE_CHECKING:
    from bokeh.plotting import figure

DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dotdash"}
MARKERS = ["circle", "square", "diamond", "triangle", "inverted_triangle", "plus", "star", "x"]
MOST_LINES = 60
MOST_HEATS = 12
MOST_POINTS = 24
VERDICT_COLOURS = {"holds": "#0072B2", "undecided": "#8a8f98", "fails": "#D55E00"}


class Plots:
    """Collects (section, caption, figure) in the order of the page."""

    def __init__(self, groups: list[Group], table: Table, pair: tuple[str, str]) -> None:
        self.groups, self.table, self.pair = groups[:MOST_LINES], table, pair
        self.left_out = len(groups) - len(self.groups)
        self.look, self.scale = Look(groups, pair), scale_of(table)
        self.lines = list(dict.fromkeys(g.line for g in self.groups))
        self.found: list[tuple[str, str, figure]] = []
        self.heats: list[str] = []
        self.heats_left_out = 0
        self._draw()

    def legend(self) -> list[tuple[str, str, str, float]]:
        """(line, colour, dash, width) for the checkboxes."""
        first = {g.line: g for g in reversed(self.groups)}
        return [
            (
                line_label(self.groups, line),
                self.look.colour(first[line]),
                DASHES[self.look.dash(first[line])],
                self.look.width(first[line]),
            )
            for line in self.lines
        ]

    def _draw(self) -> None:
        unit, parts = self.table.unit, panels(self.groups, self.table)
        words = " minus ".join(self.pair) if self.pair != MC else "with MC minus without"
        for kind, caption, compute, x, y, log in (
            ("curve", "RP over the tasks learned so far", series.rp_curve,
             "tasks learned", "RP", False),
            ("average", "RP of the average of the weights", series.average_curve,
             "tasks learned", "RP of the average", False),
            ("difference", f"Difference of RP, {words}", None,
             "tasks learned", "difference", False),
            ("retention", "Retention of a task by its age", series.retention,
             "tasks learned since", "now minus when learned", True),
            ("size", "Forgetting by task size, the long tail on the left",
             series.forgetting_by_size, "training examples", "forgetting", True),
        ):  # fmt: skip
            drawn = []
            for title, part in parts:
                if compute is None:
                    both = pairs(part, *self.pair)
                    found = [(a, series.difference(a, b, self.scale)) for a, b in both]
                else:
                    found = [(g, compute(g, self.scale)) for g in part]
                found = [(g, s) for g, s in found if len(s.x) and np.isfinite(s.mean).any()]
                drawn.append((_joined(caption, title), found))
            # One axis for all panels, so that they can be compared.
            axis = axis_for([[s for _, s in found] for _, found in drawn])
            for caption_, found in drawn:
                if found:
                    self._lines(kind, caption_, found, (x, f"{y} ({unit})"), axis, log)
        for title, part in parts:
            self._plane(title, part)
        self._heat()
        self._sizes()

    def _lines(
        self,
        kind: str,
        caption: str,
        found: list[tuple[Group, Series]],
        names: tuple[str, str],
        axis: Axis,
        log: bool,
    ) -> None:
        from bokeh.models import HoverTool, Span

        x, y = names
        plot = _figure(x, y, "log" if log else "linear", axis.kind)
        if axis.kind != "log":
            plot.add_layout(Span(location=0, dimension="width", line_color="#888888", line_width=1))
        if axis.kind == "symlog":
            _symlog_ticks(plot, axis, np.concatenate([s.mean for _, s in found]))
        # Ours is drawn last, so that no other line covers it.
        found = sorted(found, key=lambda entry: self.look.width(entry[0]))
        hovered = [self._line(plot, kind, g, s, axis, log) for g, s in found]
        tips = [
            ("", "$name"),
            (x, "@shown"),
            (y, "@value{0.0000}"),
            ("95% interval ±", "@half{0.0000}"),
        ]
        plot.add_tools(
            HoverTool(renderers=hovered, tooltips=tips, mode="mouse", line_policy="nearest")
        )
        self.found.append((kind, caption + _axis_words(axis), plot))

    def _line(self, plot: figure, kind: str, g: Group, s: Series, axis: Axis, log: bool) -> Any:
        """A line, its dots where it has few, its band, and crosses where seeds diverged."""
        from bokeh.models import ColumnDataSource, Line, Scatter, VArea

        # A logarithmic axis has no zero: zero-shot tasks are drawn at one half.
        at = np.where(s.x < 0.5, 0.5, s.x) if log else s.x
        low, high = s.mean - s.half, s.mean + s.half
        if axis.kind == "log":  # an interval that reaches zero ends at a tenth of the mean
            low = np.maximum(low, s.mean / 10)
        placed = {"y": s.mean, "low": low, "high": high}
        data = {"x": at, **{k: axis.place(v) for k, v in placed.items()}}
        data |= {"half": s.half, "value": s.mean}
        columns: dict[str, Any] = {k: np.asarray(v, np.float32) for k, v in data.items()}
        columns["shown"] = np.asarray(s.x, np.int32)
        source = ColumnDataSource(columns, name=g.name)
        colour, tag = self.look.colour(g), self.lines.index(g.line)
        if np.isfinite(s.half).any():
            area = VArea(x="x", y1="low", y2="high", fill_alpha=0.18, fill_color=colour)
            band = plot.add_glyph(source, area, visible=False)
            band.tags = [tag, "band"]
        width = self.look.width(g)
        dash = "solid" if kind == "difference" else DASHES[self.look.dash(g)]
        style: dict[str, Any] = {"line_width": width, "line_dash": dash, "line_color": colour}
        # Not `plot.line`: it makes five glyphs of one, for selections that there are none of.
        line = plot.add_glyph(source, Line(x="x", y="y", **style), name=g.name + g.mark)
        drawn: list[Any] = [line]
        if len(s.x) == 1 or (len(s.x) < 60 and width >= STRONG):
            dots = Scatter(x="x", y="y", size=6, line_color=colour, fill_color=colour)
            drawn.append(plot.add_glyph(source, dots))
        tasks, heights = divergences(g, s) if kind == "curve" else ((), ())
        if len(tasks):
            places = {"x": tasks, "y": axis.place(np.asarray(heights))}
            cross = Scatter(
                x="x", y="y", size=13, marker=DIVERGED, line_color=colour, line_width=3
            )  # fmt: skip
            drawn.append(plot.add_glyph(ColumnDataSource(places), cross))
        for renderer in drawn:
            renderer.tags = [tag]
        return line

    def _plane(self, title: str, part: list[Group]) -> None:
        from bokeh.models import ColumnDataSource, HoverTool, Scatter

        points = []
        for g in part:
            values = [g.values(m) * self.scale for m in ("LP", "RP")]
            if all(np.isfinite(v).any() for v in values):
                points.append((g, *(float(np.nanmean(v)) for v in values)))
        if not points:
            return
        ends = np.array([p[1:] for p in points])
        spread = wide_span(ends)
        axis = "log" if spread else "linear"
        plot = _figure(f"LP ({self.table.unit})", f"RP ({self.table.unit})", axis, axis)
        _diagonal(plot, ends, log=spread)
        for g, x, y in points:
            colour = self.look.colour(g)
            style: dict[str, Any] = {
                "marker": MARKERS[self.look.index(g) % len(MARKERS)],
                "line_color": colour,
                "fill_color": colour if g.labels.get("policy") != "new" else None,
            }
            size = 15 if self.look.strong(g) else 9
            glyph = Scatter(x="x", y="y", size=size, line_width=2, **style)
            source = ColumnDataSource({"x": [x], "y": [y]})
            point = plot.add_glyph(source, glyph, name=g.name + g.mark)
            point.tags = [self.lines.index(g.line)]
        tips = [("", "$name"), ("LP", "@x{0.000}"), ("RP", "@y{0.000}")]
        plot.add_tools(HoverTool(tooltips=tips))
        caption = _joined("Learned (LP) against retained (RP); dotted: nothing is lost", title)
        self.found.append(("plane", caption, plot))

    def _heat(self) -> None:
        from bokeh.models import ColorBar, FixedTicker, HoverTool, LinearColorMapper

        heats = [
            (g, series.heat(run, self.scale)) for g in self.groups for run in g.finite_runs[:1]
        ]
        found = [(g, h) for g, h in heats if h]
        self.heats_left_out = max(0, len(found) - MOST_HEATS)
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
            self.heats.append(f"{g.name}, seed {g.finite_runs[0].seed}")
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


def finding_figure(
    found: Finding, groups: list[Group], table: Table, pair: tuple[str, str]
) -> tuple[str, figure] | None:
    """The figure beside the finding, with its caption: what its checks compare, or all rows."""
    if found.numbers == ("first_quarter", "last_quarter"):
        about = [entry["claim"].rpartition(": ")[0] for entry in found.claims]
        both = [p for p in pairs(groups, *pair) if all(len(g.curves[0]) > 1 for g in p)]
        named = [p for p in both if about[0] in map(str, p[0].labels.values())]
        if named or both:
            return _curves_figure(list((named or both)[0]), table, about[0] if named else "")
    points = found.points()
    if len(points) > 0 and all(name for name, *_ in points):
        caption, plot = _change_figure(points[:MOST_POINTS], found, table)
        more = len(points) - MOST_POINTS
        return (f"{caption}; and {more} more, not drawn" if more > 0 else caption), plot
    alone = [g for g in groups if len(g.curves[0]) > 1]
    if len(groups) == 1 and alone:
        return _curves_figure([alone[0]], table, "")
    return _dot_figure(groups, table, pair)


def _curves_figure(groups: list[Group], table: Table, title: str) -> tuple[str, figure]:
    """RP of one group or two over the tasks, each with its band and its name."""
    from bokeh.models import ColumnDataSource, HoverTool, Line, Text, VArea

    found = [(g, series.rp_curve(g, scale_of(table))) for g in groups]
    unit = f"RP ({table.unit})"
    plot = _figure("tasks learned", unit, "linear", "linear")  # a gap is a difference, not a ratio
    plot.y_range.range_padding = 0.18  # pyright: ignore
    hovered = []
    for (g, s), colour, width in zip(found, ("#0072B2", "#D55E00"), (STRONG, 2.0), strict=False):
        ends = {"low": s.mean - s.half, "high": s.mean + s.half}
        data: dict[str, Any] = {"x": s.x, "y": s.mean, **ends}
        source = ColumnDataSource({k: np.asarray(v, np.float32) for k, v in data.items()})
        plot.add_glyph(
            source, VArea(x="x", y1="low", y2="high", fill_alpha=0.15, fill_color=colour)
        )
        line = Line(x="x", y="y", line_color=colour, line_width=width)
        hovered.append(plot.add_glyph(source, line, name=g.name + g.mark))
        late = slice(-max(1, len(s.x) // 4), None)  # above what is drawn where the name stands
        top = float(np.nanmax([s.mean[late], ends["high"][late]]))
        end: dict[str, Any] = {"x": [s.x[-1]], "y": [top], "text": [g.line]}
        text = Text(
            x="x", y="y", text="text", text_align="right", y_offset=-3, x_offset=-4,
            text_baseline="bottom", text_color=colour, text_font_size="14px",
            text_font_style="bold",
        )  # fmt: skip
        plot.add_glyph(ColumnDataSource(end), text)
    tips = [("", "$name"), ("tasks learned", "@x{0}"), (unit, "@y{0.0000}")]
    plot.add_tools(HoverTool(renderers=hovered, tooltips=tips, line_policy="nearest"))
    words = "Retained performance (RP) over the tasks learned so far"
    words += ", with 95% bands" if any(np.isfinite(s.half).any() for _, s in found) else ""
    return _joined(words, title), plot


def _change_figure(
    points: list[tuple[str, float, float, str]], found: Finding, table: Table
) -> tuple[str, figure]:
    """One line a method from the first number of a claim to the second, coloured by its verdict."""
    from bokeh.models import ColumnDataSource, HoverTool, Scatter, Segment

    metric = found.metric
    values = np.array([[low, high] for _, low, high, _ in points])
    kind = "log" if wide_span(values) else "linear"
    plot = _rows_figure([name for name, *_ in points], f"{metric} ({table.unit})", kind)
    columns = list(zip(*points, strict=True))
    data: dict[str, Any] = dict(zip(("name", "low", "high", "verdict"), columns, strict=True))
    data["colour"] = [VERDICT_COLOURS[verdict] for verdict in data["verdict"]]
    source = ColumnDataSource({k: list(v) for k, v in data.items()})
    bar = Segment(x0="low", x1="high", y0="name", y1="name", line_color="colour", line_width=3)
    plot.add_glyph(source, bar)
    style: dict[str, Any] = {"y": "name", "size": 13, "line_color": "colour", "line_width": 2.5}
    hollow = Scatter(x="low", fill_color=None, **style)
    filled = plot.add_glyph(source, Scatter(x="high", fill_color="colour", **style))
    drawn: list[Any] = [plot.add_glyph(source, hollow), filled]
    tips = [("", "@name"), ("from", "@low{0.0000}"), ("to", "@high{0.0000}"), ("", "@verdict")]
    plot.add_tools(HoverTool(renderers=drawn, tooltips=tips))
    known = {"without_mc": "without MC", "kept": "kept", "with_mc": "with MC"}
    words = [known.get(name, name) for name in found.numbers or ()]
    caption = f"{metric}: hollow {words[0]}, filled {words[1]}; blue: holds"
    caption += "".join(
        f", {name}: {verdict}"
        for verdict, name in (("undecided", "grey"), ("fails", "orange"))
        if verdict in data["verdict"]
    )
    return caption + _axis_words(Axis(kind)), plot


def _dot_figure(
    groups: list[Group], table: Table, pair: tuple[str, str]
) -> tuple[str, figure] | None:
    """RP of every row with its standard error, of many rows the first."""
    from bokeh.models import ColumnDataSource, HoverTool, Scatter, Segment

    look = Look(groups, pair)
    rows = [
        (g, row["RP"], row.get("RP_se") or 0.0)
        for g, row in zip(groups, table.rows, strict=True)
        if row["RP"] is not None
    ]
    every, rows = len(rows), rows[:MOST_POINTS]
    if table.mixed or len(rows) < 2:
        return None
    means, errors = np.array([r[1] for r in rows]), np.array([r[2] for r in rows])
    kind = "log" if wide_span(means) else "linear"
    names = [g.name + g.mark for g, _, _ in rows]
    plot = _rows_figure(names, f"RP ({table.unit})", kind)
    low = np.maximum(means - errors, means / 10) if kind == "log" else means - errors
    data: dict[str, Any] = {"name": names, "mean": means, "low": low, "high": means + errors}
    data["se"], data["colour"] = errors, [look.colour(g) for g, _, _ in rows]
    source = ColumnDataSource(data)
    bar = Segment(x0="low", x1="high", y0="name", y1="name", line_color="colour", line_width=2)
    plot.add_glyph(source, bar)
    dot = Scatter(x="mean", y="name", size=12, line_color="colour", fill_color="colour")
    tips = [("", "@name"), ("RP", "@mean{0.0000}"), ("standard error", "@se{0.0000}")]
    plot.add_tools(HoverTool(renderers=[plot.add_glyph(source, dot)], tooltips=tips))
    which = "every row" if every == len(rows) else f"the first {len(rows)} of {every} rows"
    return f"RP of {which}, mean ± standard error" + _axis_words(Axis(kind)), plot


def _rows_figure(names: list[str], x: str, kind: str) -> figure:
    """A figure with a name for every height, the first at the top."""
    from bokeh.models import FactorRange

    plot = _figure(x, "", kind, "auto", y_range=FactorRange(factors=list(reversed(names))))
    plot.height = 96 + 34 * len(names)
    plot.ygrid.visible = False
    return plot


def _diagonal(plot: figure, values: np.ndarray, *, log: bool) -> None:
    """Where both axes say the same; on logarithmic ones Bokeh's `Slope` would be bent."""
    from bokeh.models import ColumnDataSource, Line, Slope

    style: dict[str, Any] = {"line_color": "#888888", "line_dash": "dotted"}
    if not log:
        plot.add_layout(Slope(gradient=1, y_intercept=0, **style))
        return
    ends = [float(np.nanmin(values)), float(np.nanmax(values))]
    plot.add_glyph(ColumnDataSource({"x": ends, "y": ends}), Line(x="x", y="y", **style))


def _symlog_ticks(plot: figure, axis: Axis, values: np.ndarray) -> None:
    from bokeh.models import FixedTicker

    ticks = axis.ticks(values)
    places = [float(v) for v in axis.place(np.array(ticks))]
    plot.yaxis.ticker = FixedTicker(ticks=places)
    plot.yaxis.major_label_overrides = {
        place: f"{value:g}" for place, value in zip(places, ticks, strict=True)
    }
    plot.ygrid.ticker = FixedTicker(ticks=places)


def _axis_words(axis: Axis) -> str:
    words = {"log": " (logarithmic axis)", "symlog": " (logarithmic on both sides of zero)"}
    return words.get(axis.kind, "")


def comparison(table: Table, first: dict[str, Any], last: np.ndarray) -> tuple[figure, figure]:
    """Two figures that the page fills with the two selected runs, at first one with itself.

    Args:
        first: a run or group of the page's data.
        last: final scores of all of them, whose span decides on the axes.
    """
    from bokeh.models import ColumnDataSource, HoverTool

    curves = _figure("tasks learned", f"RP ({table.unit})", "linear", "linear")
    for name, colour in (("A", "#D55E00"), ("B", "#0072B2")):
        source = ColumnDataSource({"x": first["after"], "y": first["curve"]}, name=f"curve{name}")
        style: dict[str, Any] = {"line_dash": "dashed" if name == "A" else "solid", "name": name}
        curves.line("x", "y", source=source, color=colour, line_width=2, **style)
    curves.add_tools(HoverTool(tooltips=[("", "$name"), ("tasks", "@x{0}"), ("RP", "@y{0.000}")]))
    axis = "log" if wide_span(last) else "linear"
    words = [f"{name}, final score ({table.unit})" for name in "AB"]
    points = _figure(words[0], words[1], axis, axis)
    some = [value for value in first["last"] if value is not None][:9]
    empty = {"task": [""] * len(some), "size": [0] * len(some)}
    source = ColumnDataSource({"x": some, "y": some, **empty}, name="points")
    points.scatter("x", "y", source=source, size=5, alpha=0.4, color="#009E73")
    _diagonal(points, last, log=axis == "log")
    tips = [("task", "@task"), ("training examples", "@size"), ("A", "@x{0.00}"), ("B", "@y{0.00}")]
    points.add_tools(HoverTool(tooltips=tips))
    return curves, points


def _figure(x: str, y: str, x_axis: str, y_axis: str, **more: Any) -> figure:
    from bokeh.plotting import figure

    y_axis = "linear" if y_axis == "symlog" else y_axis  # its values are placed beforehand
    plot = figure(
        height=320, sizing_mode="stretch_width", tools="pan,box_zoom,wheel_zoom,reset,save",
        active_drag="box_zoom", active_scroll=None, x_axis_type=x_axis, y_axis_type=y_axis,  # pyright: ignore
        x_axis_label=x, y_axis_label=y, background_fill_color=None, border_fill_color=None,
        outline_line_color=None, min_border=8, **more,
    )  # fmt: skip
    plot.toolbar.logo = None
    if "y_range" not in more:  # what is not shown, such as bands, takes no room
        plot.y_range.only_visible = True  # pyright: ignore
    plot.toolbar.autohide = True
    for axis in (plot.xaxis, plot.yaxis):
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "12px"  # pyright: ignore
    for axis, kind in ((plot.xaxis, x_axis), (plot.yaxis, y_axis)):
        if kind == "linear":
            axis.formatter.use_scientific = False  # pyright: ignore
    return plot


def _joined(caption: str, title: str) -> str:
    return f"{caption}: {title}" if title else caption
