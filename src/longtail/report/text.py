"""A table as one frame of cells, rendered as Markdown, LaTeX and on the terminal; CSV and JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table as RichTable
from rich.text import Text

from longtail.names import METRICS, POLICY_NAMES
from longtail.report import papers
from longtail.report.checks import Row
from longtail.report.frame import Frames
from longtail.report.labels import POLICY_LABELS, display
from longtail.report.table import Table, is_finite, line_of
from longtail.report.words import arrow, metric_word
from longtail.runs.progress import finite
from longtail.support.console import Console
from longtail.support.files import write_atomic
from longtail.support.terminal import printable

HEADINGS = {
    "method": "Method",
    "policy": "Policy",
    "row": "Policy",
    "first_moment": "1st moment",
    "second_moment": "2nd moment",
    "lr_adjust": "lr adjust",
}
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a spreadsheet knows one
COLOURS = {"close": "green", "near": "yellow", "far": "red", "": ""}
MOST_LINES = 40  # of a table of LaTeX, which has to fit a page
_TEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "†": r"\dag{}",
    "→": r"$\to$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}
TEX = str.maketrans(_TEX)


@dataclass(frozen=True)
class Cells:
    """What is drawn of a table.

    Attributes:
        heads: of the labels that name a line.
        columns: the metric and the text of each column.
        names: of each line.
        frame: a row a line and column, by both: `there` (or nothing was measured), `mean`,
            `error`, `paper` as texts, `best` for bold, `lost` where seeds diverged, and
            `agreement` with the paper.
    """

    heads: list[str]
    columns: list[tuple[str, str]]
    names: list[tuple[str, ...]]
    frame: pd.DataFrame

    def lines(self) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        """The names of each line, and its cells."""
        cells = list(self.frame.itertuples())
        width = len(self.columns)
        for place, names in enumerate(self.names):
            yield names, cells[place * width : (place + 1) * width]

    def of(self, metric: str) -> Cells:
        """The columns of one metric."""
        columns = [column for column in self.columns if column[0] == metric]
        return Cells(self.heads, columns, self.names, self.frame[self.frame["metric"].eq(metric)])


def cells(table: Table) -> Cells:
    """The table's cells, those to be bold marked: the best mean of a metric and a benchmark.

    Multi-task training sees all the data at once, so it does not compete. Where a label that is no
    policy is spread over columns, each of these has a best of its own.
    """
    spread = _spread(table)
    lines: dict[tuple[str, ...], dict[Any, Row]] = {}
    for row in table.rows:
        column = row.get(table.columns) if table.columns else None
        lines.setdefault(line_of(table.index, row), {})[column] = row
    drawn = []
    for row_of in lines.values():
        benchmark = str(next(iter(row_of.values())).get("benchmark"))
        for metric in table.metrics:
            for column in spread:
                cell = _cell(row_of.get(column), metric, table.kinds.of(metric).unit)
                own = str(column) if table.columns not in (None, "policy") else ""
                drawn.append({**cell, "metric": metric, "among": f"{metric} {benchmark} {own}"})
    columns = []
    for metric in table.metrics:
        for column in spread:
            columns.append((metric, "" if column is None else display(table.columns or "", column)))
    heads = [HEADINGS.get(name, name.replace("_", " ")) for name in table.index]
    return Cells(heads, columns, list(lines), _with_best(pd.DataFrame(drawn), table))


def _spread(table: Table) -> list[Any]:
    """The values that have columns of their own; policies in their order."""
    if not table.columns:
        return [None]
    values = list(dict.fromkeys(row.get(table.columns) for row in table.rows))
    if table.columns == "policy":
        values.sort(key=lambda name: ([*POLICY_NAMES, name].index(name), str(name)))
    return values


def _cell(row: Row | None, metric: str, unit: str) -> Row:
    """What one row has of a metric."""
    if row is None or (row.get(metric) is None and not row.get("diverged")):
        return {"there": False, "value": math.nan}
    value = math.nan if row.get(metric) is None else row[metric]
    error, theirs = row.get(f"{metric}_se"), row.get(f"{metric}_paper")
    agreement = ""
    if theirs is not None and is_finite(value):
        agreement = papers.agreement(value, theirs, unit)
    return {
        "there": True,
        "value": value,
        "competes": row.get("method") != "multitask",
        "mean": number(value, unit),
        "error": "" if error is None else number(error, unit, value),
        "paper": "" if theirs is None else f"{theirs:g}",
        "agreement": agreement,
        "lost": bool(row.get("diverged")),
    }


def _with_best(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    if frame.empty or table.kinds.mixed:
        return frame.assign(best=False)
    better = frame["metric"].map(table.kinds.better)
    sign = better.map({True: 1.0, False: -1.0})
    groups = (frame["value"].where(frame["competes"].eq(True)) * sign).groupby(frame["among"])
    most, several = groups.transform("max") * sign, groups.transform("count") > 1
    best = []
    for place, cell in enumerate(frame.itertuples()):
        unit = table.kinds.of(str(cell.metric)).unit
        alike = several[place] and cell.competes and cell.mean == number(most[place], unit)
        best.append(bool(alike) and is_finite(frame["value"][place]))
    return frame.assign(best=best)


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


def _heads(table: Table, shown: Cells) -> list[str]:
    return [f"{arrow(table, metric)} {column}".strip() for metric, column in shown.columns]


# Markdown ----------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    shown = cells(table)
    heads = [*shown.heads, *_heads(table, shown)]
    rules = ["---"] * len(shown.heads) + ["---:"] * len(shown.columns)
    lines = [f"## {_md(table.title)}", "", _row(map(_md, heads)), _row(rules)]
    for names, line in shown.lines():
        lines.append(_row([*map(_md, names), *map(_md_cell, line)]))
    lines.append("")
    for note in table.notes:
        lines.append(_md(note) + "  ")
    return "\n".join(lines) + "\n"


def _row(texts: Any) -> str:
    return f"| {' | '.join(texts)} |"


def _md(content: str) -> str:
    return printable(content.replace("|", "\\|").replace("<", "&lt;").replace("\n", " "))


def _md_cell(cell: Any) -> str:
    if not cell.there:
        return "-"
    mean = f"**{cell.mean}**" if cell.best else cell.mean
    text = mean + mark(cell)
    text += f" ± {cell.error}" if cell.error else ""
    return text + (f" ({cell.paper})" if cell.paper else "")


def mark(cell: Any) -> str:
    """Behind a mean that lacks seeds which diverged."""
    return "†" if cell.lost else ""


# LaTeX -------------------------------------------------------------------------------------------


def latex(table: Table) -> str:
    """A table a metric, none wider or longer than a page; the last caption has the notes."""
    out = ["% \\usepackage{booktabs,graphicx}"]
    for metric in table.metrics:
        word = metric_word(metric)
        way = (
            "" if table.kinds.mixed else rf" ($\{'up' if _is_up(table, metric) else 'down'}arrow$)"
        )
        title = escape(table.title.rstrip("."))
        caption = f"{title}: {escape(word.short)}{way}, "
        caption += escape(f"{word.long}, in {table.kinds.of(metric).unit}.")
        shown = cells(table).of(metric)
        lines = [_tex_line(table, names, line) for names, line in shown.lines()]
        for start in range(0, max(1, len(lines)), MOST_LINES):
            notes = " ".join(map(escape, table.notes)) if metric == table.metrics[-1] else ""
            some = lines[start : start + MOST_LINES]
            out += _tex_table(table, shown, some, f"{caption} {notes}".strip())
            caption = f"{title}: {escape(word.short)}, continued."
    return "\n".join(out) + "\n"


def _is_up(table: Table, metric: str) -> bool:
    return table.kinds.better(metric)


def escape(content: str) -> str:
    """Text that LaTeX prints as it stands, on one line."""
    return " ".join(content.split()).translate(TEX)


def _own(table: Table, values: Sequence[str]) -> list[str]:
    """Without the labels that a numbered row's name says already: a page has no room for them."""
    pairs = zip(table.index, values, strict=True)
    implied = [name for name in POLICY_LABELS if name != "row"] if "row" in table.index else []
    return [value for name, value in pairs if name not in implied]


def _tex_line(table: Table, names: Sequence[str], line: Sequence[Any]) -> str:
    labels = [escape(name).replace("(row ", "(row~") for name in _own(table, names)]
    return " & ".join([*labels, *map(_tex_cell, line)]) + " \\\\"


def _tex_table(table: Table, shown: Cells, lines: Sequence[str], caption: str) -> list[str]:
    labels = _own(table, shown.heads)
    columns = [escape(column) or "mean" for _, column in shown.columns]
    return [
        "\\begin{table}[htbp]",
        "\\centering\\small\\setlength{\\tabcolsep}{3pt}",
        f"\\caption{{{caption}}}",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{'l' * len(labels)}{'r' * len(columns)}}}",
        "\\toprule",
        " & ".join([*map(escape, labels), *columns]) + " \\\\",
        "\\midrule",
        *lines,
        "\\bottomrule",
        "\\end{tabular}}",
        "\\end{table}",
    ]


def _tex_cell(cell: Any) -> str:
    """The mean, and smaller beside it the standard error and the paper's number in brackets."""
    if not cell.there:
        return "-"
    mean = escape(cell.mean)
    shown = f"\\textbf{{{mean}}}" if cell.best else mean
    shown += "\\dag{}" if cell.lost else ""
    small = f"$\\pm${cell.error}" if cell.error else ""
    small += f" ({cell.paper})" if cell.paper else ""
    return f"{shown} {{\\scriptsize {small.strip()}}}" if small else shown


# Terminal ----------------------------------------------------------------------------------------


def terminal(table: Table, shown: Cells) -> RichTable:
    """Coloured by agreement with the paper."""
    drawn = RichTable(title=Text(table.title), caption=Text("\n".join(table.notes)))
    for head in shown.heads:
        drawn.add_column(Text(head), no_wrap=True)
    for head in _heads(table, shown):
        drawn.add_column(Text(head), justify="right", no_wrap=True)
    for names, line in shown.lines():
        # Written out already here, so that a column knows its width.
        labels = map(Text, map(printable, names))
        drawn.add_row(*labels, *map(_rich_cell, line))
    return drawn


def print_terminal(table: Table, console: Console) -> None:
    """In one piece where there is room for it, else a table for every metric."""
    shown = cells(table)
    whole = terminal(table, shown)
    if console.measure(whole).maximum <= console.width or len(table.metrics) < 2:
        console.print(whole)
        return
    for metric in table.metrics:
        part = terminal(table, shown.of(metric))
        if metric != table.metrics[-1]:
            part.caption = None
        if metric != table.metrics[0]:
            part.title = None
        console.print(part)


def _rich_cell(cell: Any) -> Text:
    if not cell.there:
        return Text("-", style="dim")
    shown = Text(cell.mean, style="bold" if cell.best else "")
    shown.append(mark(cell))
    if cell.error:
        shown.append(f" ±{cell.error}", style="dim")
    if cell.paper:
        shown.append(f" ({cell.paper})", style=COLOURS[cell.agreement] or "red")
    return shown


# Files -------------------------------------------------------------------------------------------


def as_json(table: Table, further: Mapping[str, Any]) -> str:
    others = {name: kind._asdict() for name, kind in table.kinds.others.items()}
    content = {
        "title": table.title,
        "unit": table.unit,
        "higher_is_better": table.kinds.lead.higher_is_better,
        **({"other_scores": others} if others else {}),
        "rows": table.rows,
        **further,
    }
    return json.dumps(finite(content), indent=1, default=str, allow_nan=False) + "\n"


def as_csv(frames: Frames) -> str:
    """A line a finished run and score: the run, its labels, its seed, and the score in its unit."""
    report = frames.plan.get("report", {})
    asked = dict.fromkeys((*METRICS, *report.get("metrics", ()), *report.get("further", ())))
    runs = frames.runs[frames.runs["status"].eq("finished")]
    labels = [name for name in frames.labels if name != "seed"]
    scores = [name for name in asked if name in frames.scores]
    named = ["run", *labels, "seed"]
    lines = runs.melt(named, scores, "metric", "score value", ignore_index=False)
    lines = lines.sort_index(kind="stable").dropna(subset="score value")
    for name in ("run", *labels):
        lines[name] = lines[name].map(_csv)
    out = io.StringIO()
    lines.rename(columns={"score value": "value"}).to_csv(out, index=False, lineterminator="\n")
    return out.getvalue()


def _csv(value: Any) -> Any:
    """A cell of a CSV file, in which a text that a spreadsheet would compute stays a text."""
    if isinstance(value, list | dict):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return printable(f"'{value}" if value.startswith(FORMULAS) else value)
    return value


def write_all(table: Table, further: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Writes table.json, .md and .tex; what is `further` goes into the JSON."""
    texts = {"json": as_json(table, further), "md": markdown(table), "tex": latex(table)}
    paths = {}
    for ending, content in texts.items():
        paths[ending] = folder / f"table.{ending}"
        write_atomic(paths[ending], content.encode())
    return paths
