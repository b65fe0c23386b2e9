"""A table as Markdown, CSV, JSON, plain text and on the terminal."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from longtail.report.latex import latex
from longtail.report.tables import Cell, Grid, Table, better, grid, number
from longtail.report.words import heading
from longtail.runs.progress import finite
from longtail.support.console import Console
from longtail.support.files import write_atomic
from longtail.support.terminal import printable

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a spreadsheet knows one
COLOURS = {"close": "green", "near": "yellow", "far": "red"}


def write_all(table: Table, extra: dict[str, Any], folder: Path) -> list[Path]:
    """Writes table.json, .md, .tex, .csv and .txt; `extra` goes into the JSON."""
    texts = {
        "json": as_json(table, extra),
        "md": markdown(table),
        "tex": latex(table),
        "csv": as_csv(table),
        "txt": text(table),
    }
    paths = []
    for ending, content in texts.items():
        paths.append(folder / f"table.{ending}")
        write_atomic(paths[-1], content.encode())
    return paths


def as_json(table: Table, extra: dict[str, Any]) -> str:
    others = {name: kind._asdict() for name, kind in table.others.items()}
    content = {
        "title": table.title,
        "unit": table.unit,
        "higher_is_better": table.higher_is_better,
        **({"other_scores": others} if others else {}),
        "rows": table.rows,
        **extra,
    }
    return json.dumps(finite(content), indent=1, default=str, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """The long form: one line a row, every number in full."""
    keys = dict.fromkeys(k for r in table.rows for k, v in r.items() if not isinstance(v, list))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv, keys))
    for row in table.rows:
        writer.writerow(_csv(row.get(key)) for key in keys)
    return out.getvalue()


def _csv(value: Any) -> Any:
    """A cell of a CSV file, in which a text that a spreadsheet would compute stays a text."""
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return printable(f"'{value}" if value.startswith(FORMULAS) else value)
    return value


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    mean = number(cell.mean, cell.unit)
    parts = [(f"**{mean}**" if cell.best else mean) + mark(cell)]
    if cell.se is not None:
        parts.append(f"± {number(cell.se, cell.unit, cell.mean)}")
    if cell.paper is not None:
        parts.append(f"({cell.paper:g})")
    return " ".join(parts)


def mark(cell: Cell) -> str:
    """Behind a mean that lacks seeds which diverged."""
    return "†" if cell.diverged else ""


def arrow(table: Table, metric: str) -> str:
    """The metric's name with the direction in which it is better."""
    direction = "" if table.mixed else "↑" if better(table, metric) else "↓"
    return heading(metric) + direction


def _heads(table: Table, g: Grid) -> list[str]:
    return [f"{arrow(table, metric)} {column}".strip() for metric, column in g.columns]


def markdown(table: Table) -> str:
    g = grid(table)
    heads = [*g.index, *_heads(table, g)]
    lines = [f"## {_md(table.title)}", ""]
    lines.append("| " + " | ".join(map(_md, heads)) + " |")
    lines.append("| " + " | ".join(["---"] * len(g.index) + ["---:"] * len(g.columns)) + " |")
    for names, cells in g.lines:
        shown = [_cell_text(c) for c in cells]
        lines.append("| " + " | ".join([*map(_md, names), *shown]) + " |")
    return "\n".join([*lines, "", *(_md(note) + "  " for note in table.notes)]) + "\n"


def _md(content: str) -> str:
    return printable(content.replace("|", "\\|").replace("<", "&lt;").replace("\n", " "))


def terminal(table: Table, metrics: Sequence[str] | None = None) -> RichTable:
    """Coloured by agreement with the paper; `metrics` are all of them or a few."""
    g = grid(table if metrics is None else dataclasses.replace(table, metrics=list(metrics)))
    shown = RichTable(title=Text(table.title), caption=Text("\n".join(table.notes)))
    for head in g.index:
        shown.add_column(Text(head), no_wrap=True)
    for head in _heads(table, g):
        shown.add_column(Text(head), justify="right", no_wrap=True)
    for names, cells in g.lines:
        # Written out already here, so that a column knows its width.
        labels = [Text(printable(name)) for name in names]
        shown.add_row(*labels, *(_rich_cell(c) for c in cells))
    return shown


def print_terminal(table: Table, console: Console) -> None:
    """In one piece where there is room for it, else a table for every metric."""
    whole = terminal(table)
    if console.measure(whole).maximum <= console.width or len(table.metrics) < 2:
        console.print(whole)
        return
    for metric in table.metrics:
        shown = terminal(table, [metric])
        if metric != table.metrics[-1]:
            shown.caption = None
        if metric != table.metrics[0]:
            shown.title = None
        console.print(shown)


def _rich_cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("-", style="dim")
    shown = Text(number(cell.mean, cell.unit), style="bold" if cell.best else "")
    shown.append(mark(cell))
    if cell.se is not None:
        shown.append(f" ±{number(cell.se, cell.unit, cell.mean)}", style="dim")
    if cell.paper is not None:
        shown.append(f" ({cell.paper:g})", style=COLOURS[cell.agreement or "far"])
    return shown


def text(table: Table) -> str:
    """Plain text, as wide as it needs to be."""
    console = Console(file=io.StringIO(), width=400, color_system=None, legacy_windows=False)
    console.print(terminal(table))
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    return "\n".join(line.rstrip() for line in lines) + "\n"
