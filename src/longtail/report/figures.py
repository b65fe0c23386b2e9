"""Figures, said once: each is a panel or several of altair, for the page and for files alike.

A panel's data travel beside it, as columns: the page packs them, files have them inside. Names are
data: control characters in them are written out, as an SVG may hold none.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert

from longtail.report import series
from longtail.report.frame import Line
from longtail.report.labels import POLICY_LABELS, display, is_policy, method_names
from longtail.report.series import Series
from longtail.report.statistics import pairs
from longtail.report.table import Table
from longtail.report.verdicts import MC, Finding
from longtail.support.files import write_atomic
from longtail.support.terminal import printable

NAMES = (
    "rp_by_tasks",
    "retention_by_age",
    "forgetting_by_size",
    "difference_by_tasks",
    "plane",
)
# Okabe and Ito's colours, told apart by readers with any colour vision, and four more for ablations
COLOURS = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#A6192E", "#8C6D31", "#777777", "#6A3D9A",
]  # fmt: skip
DASHES = {"continual": [1, 0], "kept": [2, 2], "new": [6, 3]}
OTHER_DASHES = [[8, 2, 2, 2], [10, 3], [4, 4], [1, 3], [10, 2, 2, 2, 2, 2]]
SHAPES = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-left"]
VERDICTS = {"holds": COLOURS[0], "undecided": "#8a8f98", "fails": COLOURS[1]}
GREY = "#888888"
MOST_PANELS = 6
MOST_LINES = 100  # of a panel
MOST_ROWS = 24  # of the figure beside the finding
DECADES = 1.5  # values that span more of them get a logarithmic axis
STRONG, PLAIN, THIN = 3.0, 1.8, 1.1  # widths of our lines, of those beside them, of the others
WIDTH, HEIGHT = 330, 240
PRINTED = {"background": "white", "config": {"axis": {"titleFontWeight": 400}}}
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: what sets it apart from the other panels of its figure.
        chart: that reads its data by name.
        data: a table for each of these names, as columns.
    """

    title: str
    chart: alt.LayerChart | alt.FacetChart
    data: dict[str, Columns]

    def spec(self, **size: Any) -> dict[str, Any]:
        """What Vega-Lite draws, without the data."""
        return self.chart.properties(**size).to_dict(validate=False)


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    panels: list[Panel]

    def spec(self) -> dict[str, Any]:
        """The panels side by side, with their data inside."""
        charts, datasets = [], {}
        for panel in self.panels:
            charts.append(panel.chart.properties(width=WIDTH, height=HEIGHT, title=panel.title))
            for name, columns in panel.data.items():
                datasets[name] = records(columns)
        shared: dict[str, Any] = {"color": "shared", "strokeDash": "shared", "shape": "shared"}
        with warnings.catch_warnings():  # that panels share what a click chooses, as they should
            warnings.simplefilter("ignore", UserWarning)
            joined = alt.hconcat(*charts).resolve_scale(**shared)
        return {**joined.to_dict(validate=False), "datasets": datasets, **PRINTED}


def records(columns: Columns) -> list[dict[str, Any]]:
    """A table by rows, as Vega reads it."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def write(figures: Sequence[Figure], folder: Path, names: Collection[str] = NAMES) -> list[Path]:
    """Writes the figures of these names as SVG, PDF and PNG."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        if figure.name in names:
            svg = vl_convert.vegalite_to_svg(json.dumps(figure.spec()))
            files = {"svg": svg, "pdf": vl_convert.svg_to_pdf(svg)}
            files["png"] = vl_convert.svg_to_png(svg, scale=2.0)
            for ending, content in files.items():
                paths.append(folder / f"{figure.name}.{ending}")
                write_atomic(paths[-1], content)
    return paths


# How lines look ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """A colour and a dash for every line: no two policies of one method share either.

    A method has a colour, its policies shades of it; rows of an ablation, and more than two
    policies of one method, have colours of their own, those of the pair first, so that ours has the
    same one everywhere. Ours is drawn strong.
    """

    names: list[str]
    colours: list[str]
    dashes: list[list[int]]
    widths: list[float]
    shapes: list[str]

    @property
    def scales(self) -> dict[str, alt.Scale]:
        def scale(values: list[Any]) -> alt.Scale:
            return alt.Scale(domain=self.names, range=values)

        looks = {"color": self.colours, "strokeDash": self.dashes, "shape": self.shapes}
        return {**{name: scale(values) for name, values in looks.items()}}

    def width_of(self, name: str) -> float:
        return self.widths[self.names.index(name)]


def look_of(lines: Sequence[Line], pair: tuple[str, str]) -> Look:
    key = _colour_key(lines)
    values = _colour_order(lines, key, pair)
    told_apart = any(is_policy(line.labels, pair[0]) for line in lines)
    policies: dict[str, None] = dict.fromkeys(pair)
    policies |= dict.fromkeys(str(line.labels.get("policy")) for line in lines)
    entries: dict[str, tuple[str, list[int], float, str]] = {}
    for line in lines:
        value, policy = str(line.labels.get(key)), str(line.labels.get("policy"))
        place, rank = values.index(value), list(policies).index(policy)
        colour = COLOURS[place % len(COLOURS)]
        if key == "method":
            colour = shaded(colour, 0.0 if rank == 0 else 0.35 if rank == 1 else 0.6)
        dash = DASHES.get(policy) or OTHER_DASHES[rank % len(OTHER_DASHES)]
        if key == "row":
            dash = list(DASHES.values())[place // len(COLOURS) % 3]
        strong = is_policy(line.labels, pair[0])
        beside = key != "method" and is_policy(line.labels, pair[1])
        width = STRONG if strong else PLAIN if beside or not told_apart else THIN
        shape = SHAPES[place % len(SHAPES)]
        entries.setdefault(legend_name(lines, line), (colour, dash, width, shape))
    colours, dashes, widths, shapes = (list(looks) for looks in zip(*entries.values(), strict=True))
    return Look(list(entries), colours, dashes, widths, shapes)


def _colour_key(lines: Sequence[Line]) -> str:
    """The label that has a colour for each of its values."""
    if any("row" in line.labels for line in lines):
        return "row"
    methods = {str(line.labels.get("method")) for line in lines}
    policies = {str(line.labels.get("policy")) for line in lines}
    return "policy" if len(methods) == 1 and len(policies) > 2 else "method"


def _colour_order(lines: Sequence[Line], key: str, pair: tuple[str, str]) -> list[str]:
    values = dict.fromkeys(str(line.labels.get(key)) for line in lines)
    if key == "method":  # so that two reports give a method the same colour
        return [*filter(values.__contains__, method_names()), *values.keys() - method_names()]
    ours = []
    for policy in pair:
        for line in lines:
            if is_policy(line.labels, policy):
                ours.append(str(line.labels.get(key)))
    return list(dict.fromkeys([*ours, *values]))


def shaded(colour: str, share: float) -> str:
    """A colour, so much of the way to a light grey.

    >>> shaded("#000000", 0.5)
    '#5c5c5c'
    """
    mixed = "#"
    for place in (1, 3, 5):
        part = int(colour[place : place + 2], 16)
        mixed += f"{round(part + share * (0xB8 - part)):02x}"
    return mixed


def legend_name(lines: Sequence[Line], line: Line) -> str:
    """The name of a line in a legend, with its mark where seeds of it diverged."""
    alike = [other for other in lines if other.short == line.short]
    lost, runs = sum(one.lost for one in alike), sum(len(one.entries) for one in alike)
    mark = f" † ({lost} of {runs} diverged)" if lost else ""
    return printable(f"{line.short}{mark}")


def panels_of(lines: Sequence[Line], table: Table) -> list[tuple[str, list[Line]]]:
    """Lines by the label that is neither method nor policy, such as `setting`."""
    names: dict[str, None] = {}
    for line in lines:
        names |= dict.fromkeys(line.labels)
    rest = [name for name in names if name not in ("method", "policy", *POLICY_LABELS)]
    for name in ([table.columns] if table.columns in rest else []) + rest:
        parts: dict[str, list[Line]] = {}
        for line in lines:
            parts.setdefault(_title(str(name), line.labels.get(str(name))), []).append(line)
        if 1 < len(parts) <= MOST_PANELS:
            return list(parts.items())
    return [("", list(lines))]


def _title(key: str, value: Any) -> str:
    text = display(key, value)  # a number, yes or no says nothing without its name
    return printable(text if isinstance(value, str) else f"{key.replace('_', ' ')} {text}")


# Axes --------------------------------------------------------------------------------------------


def axis_for(drawn: Sequence[Sequence[Series]]) -> alt.Scale:
    """The axis of panels with these lines: logarithmic where their ends span decades.

    On both sides of zero where some of them are negative, linear close to it.
    """
    ends, positive = [], True
    for panel in drawn:
        last = np.abs([one.mean[-1] for one in panel])
        ends.append(last[np.isfinite(last) & (last > 0)])
        for one in panel:
            positive &= bool((one.mean[np.isfinite(one.mean)] > 0).all())
    if not any(len(e) > 1 and np.log10(e.max() / e.min()) > DECADES for e in ends):
        return alt.Scale(zero=False)
    if positive:
        return alt.Scale(type="log")
    # The panel with the smallest values must show them too.
    width = min(float(np.median(e)) for e in ends if len(e)) / 10
    return alt.Scale(type="symlog", constant=float(f"{width:.1g}"))


def wide_span(values: Sequence[float]) -> bool:
    """Whether numbers are all positive and span decades."""
    known = np.array(values)[np.isfinite(values)]
    if not len(known) or known.min() <= 0:
        return False
    return float(np.log10(known.max() / known.min())) > DECADES


def _words(scale: alt.Scale) -> str:
    kind = scale.to_dict().get("type")
    words = {"log": " (logarithmic axis)", "symlog": " (logarithmic on both sides of zero)"}
    return words.get(str(kind), "")


# Lines over something ----------------------------------------------------------------------------


def draw(lines: Sequence[Line], table: Table, pair: tuple[str, str]) -> Iterator[Figure]:
    """Every figure that the results allow."""
    if not lines:
        return
    unit, parts = table.unit, panels_of(lines, table)
    words = "with MC minus without" if pair == MC else " minus ".join(map(printable, pair))
    compute: Callable[[Line, float], Series]
    for name, caption, compute, x, y in (
        ("rp_by_tasks", "RP over the tasks learned so far", series.rp_curve,
         "tasks learned", f"RP ({unit})"),
        ("retention_by_age", "Retention of a task by its age", series.retention,
         "tasks learned since", f"now minus when learned ({unit})"),
        ("forgetting_by_size", "Forgetting by task size, the long tail on the left",
         series.forgetting_by_size, "training examples", f"forgetting ({unit})"),
    ):  # fmt: skip
        drawn = []
        for title, some in parts:
            computed = [(line, compute(line, table.scale)) for line in some]
            drawn.append((title, computed))
        yield from _lines(name, caption, drawn, look_of(lines, pair), (x, y))
    drawn = []
    for title, some in parts:
        computed = []
        for a, b in pairs([line.labels for line in some], *pair):
            computed.append((some[a], series.difference(some[a], some[b], table.scale)))
        drawn.append((title, computed))
    caption, axes = f"Difference of RP, {words}", ("tasks learned", f"difference of RP ({unit})")
    yield from _lines("difference_by_tasks", caption, drawn, look_of(lines, pair), axes)
    yield from _plane(parts, lines, table, pair)


def _lines(
    name: str,
    caption: str,
    parts: Sequence[tuple[str, list[tuple[Line, Series]]]],
    look: Look,
    axes: tuple[str, str],
) -> Iterator[Figure]:
    """A figure of lines with bands, where there are any."""
    drawn = []
    for title, computed in parts:
        drawn.append((title, [(line, one) for line, one in computed if one.drawn]))
    if not any(some for _, some in drawn):
        return
    scale = axis_for([[one for _, one in some] for _, some in drawn])
    panels = []
    every = [line for _, computed in parts for line, _ in computed]
    for number, (title, some) in enumerate(drawn):
        if some:
            data = _line_data(name, every, _first(some), look, scale)
            named = {f"{name} {number} {table}": columns for table, columns in data.items()}
            panels.append(Panel(title, _line_chart(list(named), look, axes, scale, name), named))
    more = sum(max(0, len(some) - MOST_LINES) for _, some in drawn)
    left_out = f"; and {more} more, not drawn" if more else ""
    yield Figure(name, caption + _words(scale) + left_out, panels)


def _first(drawn: list[tuple[Line, Series]]) -> list[tuple[Line, Series]]:
    """As many of them as there is room for; multi-task training, which bounds them, is one."""
    bounds = [entry for entry in drawn if entry[0].labels.get("method") == "multitask"]
    others = [entry for entry in drawn if entry[0].labels.get("method") != "multitask"]
    return (others[: max(0, MOST_LINES - len(bounds))] + bounds)[:MOST_LINES]


def _line_data(
    name: str, every: Sequence[Line], drawn: Sequence[tuple[Line, Series]], look: Look, scale: Any
) -> dict[str, Columns]:
    """The points of lines, and the places where seeds diverged."""
    log = scale.to_dict().get("type") == "log"
    points: Columns = {
        key: [] for key in ("line", "row", "x", "y", "low", "high", "half", "strong")
    }
    points["alone"] = []
    marks: Columns = {"line": [], "x": [], "y": []}
    for line, whole in drawn:
        one, called = series.thinned(whole), legend_name(every, line)
        strong = look.width_of(called) >= STRONG or len(look.names) < 4
        low, high = one.mean - one.half, one.mean + one.half
        if log:  # an interval that reaches zero ends at a tenth of the mean
            low = np.maximum(low, one.mean / 10)
        count = len(one.x)
        points["line"] += [called] * count
        points["row"] += [printable(line.name)] * count
        points["x"] += rounded(one.x)
        for key, values in (("y", one.mean), ("low", low), ("high", high), ("half", one.half)):
            points[key] += rounded(values)
        points["strong"] += [strong] * count
        points["alone"] += [count == 1 or (count < 30 and strong)] * count
        for x, y in series.divergences(line, whole) if name == "rp_by_tasks" else ():
            for key, value in (("line", called), ("x", x), ("y", y)):
                marks[key].append(value)
    return {"points": points, "marks": marks}


def rounded(values: np.ndarray) -> list[float | int | None]:
    """Five significant digits, which is what a reader can use and what compresses well."""
    short: list[float | int | None] = []
    for value in np.asarray(values, np.float64).tolist():
        if not math.isfinite(value):
            short.append(None)
        else:
            short.append(int(value) if value == int(value) else float(f"{value:.5g}"))
    return short


def _line_chart(
    data: Sequence[str], look: Look, axes: tuple[str, str], scale: alt.Scale, name: str
) -> alt.LayerChart | alt.FacetChart:
    points, marks = map(alt.NamedData, data)
    alone = alt.selection_point(name="alone", fields=["line"], bind="legend")
    scales = look.scales
    along = name in ("rp_by_tasks", "difference_by_tasks")
    x_scale = alt.Scale(nice=False) if along else alt.Scale(type="symlog", constant=1)
    x = alt.X("x:Q", title=axes[0], scale=x_scale, axis=alt.Axis(format=",.4~r", labelOverlap=True))
    y = alt.Y("y:Q", title=axes[1], scale=scale, axis=alt.Axis(format=".4~g", labelOverlap=True))
    columns = 1 if len(look.names) < 3 else 2
    stroke: dict[str, Any] = {"symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 2.5}
    legend = alt.Legend(
        orient="bottom", columns=columns, title=None, labelLimit=300, symbolSize=500, **stroke
    )
    colour = alt.Color("line:N", scale=scales["color"], legend=legend)
    dash = alt.StrokeDash("line:N", scale=scales["strokeDash"], legend=legend)
    shown = alt.when(alone).then(alt.value(1)).otherwise(alt.value(0.08))
    band = (
        alt.Chart(points)
        .transform_filter("datum.strong")
        .mark_area(interpolate="linear")
        .encode(
            x=x,
            y=alt.Y("low:Q", scale=scale, title=axes[1]),
            y2="high:Q",
            color=colour,
            detail="row:N",
            opacity=alt.when(alone).then(alt.value(0.15)).otherwise(alt.value(0.0)),
        )
    )
    tips = [
        alt.Tooltip("row:N", title=" "),
        alt.Tooltip("x:Q", title=axes[0], format=",~r"),
        alt.Tooltip("y:Q", title=axes[1], format=".4~r"),
        alt.Tooltip("half:Q", title="95% interval ±", format=".3~r"),
    ]
    wide = alt.when("datum.strong").then(alt.value(STRONG)).otherwise(alt.value(1.6))
    drawn = alt.Chart(points).encode(x=x, y=y, color=colour, opacity=shown, tooltip=tips)
    line = drawn.mark_line().encode(strokeDash=dash, detail="row:N", strokeWidth=wide)
    dots = drawn.mark_point(filled=True, size=36).transform_filter("datum.alone")
    crosses = (
        alt.Chart(marks)
        .mark_text(text="✕", fontSize=15, fontWeight="bold")
        .encode(x="x:Q", y="y:Q", color=colour, opacity=shown)
    )
    zero = alt.Chart().mark_rule(color=GREY).encode(y=alt.datum(0))
    layers = [band, line, dots, crosses]
    kind = scale.to_dict().get("type")
    if name != "rp_by_tasks" and kind != "log":
        layers.insert(0, zero)
    return alt.layer(*layers).add_params(alone)


# Learned against retained ------------------------------------------------------------------------


def _plane(
    parts: Sequence[tuple[str, list[Line]]],
    lines: Sequence[Line],
    table: Table,
    pair: tuple[str, str],
) -> Iterator[Figure]:
    """LP against RP: on the diagonal nothing that was learned is lost."""
    look, panels = look_of(lines, pair), []
    for number, (title, some) in enumerate(parts):
        points: Columns = {"line": [], "row": [], "x": [], "y": [], "strong": []}
        for line in some[:MOST_LINES]:
            learned, retained = line.mean("LP"), line.mean("RP")
            if learned is not None and retained is not None:
                called = legend_name(lines, line)
                strong = is_policy(line.labels, pair[0])
                row = (called, printable(line.name), learned, retained, strong)
                for key, value in zip(points, row, strict=True):
                    points[key].append(value)
        if points["x"]:
            name = f"plane {number}"
            data = {f"{name} points": points, f"{name} diagonal": _diagonal(points)}
            panels.append(Panel(title, _plane_chart(list(data), points, look, table.unit), data))
    if panels:
        yield Figure("plane", "Learned (LP) against retained (RP); dotted: nothing is lost", panels)


def _diagonal(points: Columns) -> Columns:
    ends = [max(min(points["x"]), min(points["y"])), max(*points["x"], *points["y"])]
    return {"x": ends, "y": ends}


def _plane_chart(
    data: Sequence[str], points: Columns, look: Look, unit: str
) -> alt.LayerChart | alt.FacetChart:
    kind = "log" if wide_span([*points["x"], *points["y"]]) else "linear"
    scale, scales = alt.Scale(type=kind, zero=False), look.scales
    alone = alt.selection_point(name="alone", fields=["line"], bind="legend")
    axis = alt.Axis(format=".4~g", labelOverlap=True)
    x = alt.X("x:Q", title=f"LP ({unit})", scale=scale, axis=axis)
    y = alt.Y("y:Q", title=f"RP ({unit})", scale=scale, axis=axis)
    named, diagonal = map(alt.NamedData, data)
    legend = alt.Legend(orient="bottom", columns=2, title=None, labelLimit=300)
    size = alt.when("datum.strong").then(alt.value(160)).otherwise(alt.value(70))
    marks = alt.Chart(named).mark_point(strokeWidth=2)
    dots = marks.encode(
        x=x,
        y=y,
        color=alt.Color("line:N", scale=scales["color"], legend=legend),
        shape=alt.Shape("line:N", scale=scales["shape"], legend=legend),
        size=size,
        fillOpacity=alt.when("datum.strong").then(alt.value(1)).otherwise(alt.value(0)),
        opacity=alt.when(alone).then(alt.value(1)).otherwise(alt.value(0.08)),
        tooltip=[
            alt.Tooltip("row:N", title=" "),
            alt.Tooltip("x:Q", title="LP", format=".4~r"),
            alt.Tooltip("y:Q", title="RP", format=".4~r"),
        ],
    )
    rule = alt.Chart(diagonal).mark_line(color=GREY, strokeDash=[2, 2]).encode(x=x, y=y)
    return alt.layer(rule, dots).add_params(alone)


# Beside the finding ------------------------------------------------------------------------------


def of_finding(
    said: Finding, lines: Sequence[Line], table: Table, pair: tuple[str, str]
) -> Figure | None:
    """What the finding's checks compare, or all rows."""
    if said.numbers == ("first_quarter", "last_quarter"):
        subject = said.subject
        both = _pairs_with_curves(lines, pair)
        named = [two for two in both if subject in map(str, two[0].labels.values())]
        if both:
            return _curves((named or both)[0], table, pair, subject if named else "")
    points = said.points()
    if points and all(name for name, *_ in points):
        return _changes(points, said, table)
    if len(lines) == 1 and len(lines[0].curves[0]) > 1:
        return _curves(lines, table, pair, "")
    return _dots(lines, table, pair)


def _pairs_with_curves(lines: Sequence[Line], pair: tuple[str, str]) -> list[list[Line]]:
    both = []
    for a, b in pairs([line.labels for line in lines], *pair):
        if len(lines[a].curves[0]) > 1 and len(lines[b].curves[0]) > 1:
            both.append([lines[a], lines[b]])
    return both


def _curves(lines: Sequence[Line], table: Table, pair: tuple[str, str], title: str) -> Figure:
    """RP of one line or two over the tasks, each with its band."""
    computed = [(line, series.rp_curve(line, table.scale)) for line in lines]
    words = "Retained performance (RP) over the tasks learned so far"
    words += ", with 95% bands" if any(np.isfinite(one.half).any() for _, one in computed) else ""
    words += f": {title}" if title else ""
    look, axes = look_of(lines, pair), ("tasks learned", f"RP ({table.unit})")
    (figure,) = _lines("finding", words, [("", computed)], look, axes)
    return figure


def _changes(
    points: Sequence[tuple[str, float, float, str]], said: Finding, table: Table
) -> Figure:
    """One line a method from the first number of a claim to the second, coloured by its verdict."""
    more, shown = len(points) - MOST_ROWS, points[:MOST_ROWS]
    data: Columns = {"name": [], "low": [], "high": [], "verdict": []}
    for row in shown:
        for key, value in zip(data, row, strict=True):
            data[key].append(printable(value) if isinstance(value, str) else value)
    kind = "log" if wide_span([*data["low"], *data["high"]]) else "linear"
    scale = alt.Scale(type=kind, zero=False)
    colour = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values())),
        legend=None,
    )
    x = alt.X("low:Q", title=f"{said.metric} ({table.unit})", scale=scale)
    tips = ["name:N", alt.Tooltip("low:Q", title="from"), alt.Tooltip("high:Q", title="to")]
    named = "finding 0 points"
    base = alt.Chart(alt.NamedData(named)).encode(y=_names(data["name"]), color=colour)
    tipped = base.encode(tooltip=[*tips, "verdict:N"])
    chart = alt.layer(
        base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q"),
        tipped.mark_point(size=110, strokeWidth=2.5, filled=False).encode(x=x),
        tipped.mark_point(size=110, strokeWidth=2.5, filled=True).encode(x="high:Q"),
    )
    known = {"without_mc": "without MC", "kept": "kept", "with_mc": "with MC"}
    hollow, filled = (known.get(name, name) for name in said.numbers or ("", ""))
    caption = f"{said.metric}: hollow {hollow}, filled {filled}; blue: holds"
    for verdict, name in (("undecided", "grey"), ("fails", "orange")):
        caption += f", {name}: {verdict}" if verdict in data["verdict"] else ""
    caption += _words(scale) + (f"; and {more} more, not drawn" if more > 0 else "")
    return Figure("finding", caption, [Panel("", chart, {named: data})])


def _names(names: Sequence[str]) -> alt.Y:
    """A name for every height, the first at the top."""
    axis = alt.Axis(labelLimit=260, grid=False)
    return alt.Y("name:N", sort=list(names), title=None, axis=axis)


def _dots(lines: Sequence[Line], table: Table, pair: tuple[str, str]) -> Figure | None:
    """RP of every row with its standard error, of many rows the first."""
    data: Columns = {"name": [], "line": [], "mean": [], "low": [], "high": [], "se": []}
    for line, row in zip(lines, table.rows, strict=True):
        if row["RP"] is not None:
            error = row.get("RP_se") or 0.0
            name = printable(line.name + line.mark)
            ends = row["RP"] - error, row["RP"] + error
            values = (name, legend_name(lines, line), row["RP"], *ends, error)
            for key, value in zip(data, values, strict=True):
                data[key].append(value)
    every = len(data["name"])
    if table.kinds.mixed or every < 2:
        return None
    data = {key: values[:MOST_ROWS] for key, values in data.items()}
    kind = "log" if wide_span(data["mean"]) else "linear"
    if kind == "log":  # an interval that reaches zero ends at a tenth of the mean
        data["low"] = np.maximum(data["low"], np.array(data["mean"]) / 10).tolist()
    scale, colours = alt.Scale(type=kind, zero=False), look_of(lines, pair).scales["color"]
    named = "finding 0 points"
    base = alt.Chart(alt.NamedData(named)).encode(
        y=_names(data["name"]),
        color=alt.Color("line:N", scale=colours, legend=None),
        tooltip=["name:N", alt.Tooltip("mean:Q", title="RP"), alt.Tooltip("se:Q", title="error")],
    )
    low = alt.X("low:Q", title=f"RP ({table.unit})", scale=scale)
    bar = base.mark_rule(strokeWidth=2).encode(x=low, x2="high:Q")
    dot = base.mark_point(size=90, filled=True).encode(x="mean:Q")
    drawn = len(data["name"])
    which = "every row" if every == drawn else f"the first {drawn} of {every} rows"
    caption = f"RP of {which}, mean ± standard error" + _words(scale)
    return Figure("finding", caption, [Panel("", alt.layer(bar, dot), {named: data})])


def tables_of(figures: Sequence[Figure]) -> Mapping[str, Columns]:
    """The data of all panels, by name."""
    tables: dict[str, Columns] = {}
    for figure in figures:
        for panel in figure.panels:
            tables |= panel.data
    return tables
