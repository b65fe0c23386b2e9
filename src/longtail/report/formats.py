"""A table as Markdown, LaTeX, CSV, JSON, plain text, HTML and on the terminal."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from longtail.report.tables import Cell, Grid, Table, better, grid, number
from longtail.runs.progress import finite
from longtail.support.files import write_atomic

COLOURS = {"close": "green", "near": "yellow", "far": "red"}
SIGNS = {"close": "=", "near": "~", "far": "≠"}


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
    content = {
        "title": table.title,
        "unit": table.unit,
        "higher_is_better": table.higher_is_better,
        "rows": table.rows,
        **extra,
    }
    return json.dumps(finite(content), indent=1, default=str, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """The long form: one line a row, every number in full."""
    keys = dict.fromkeys(k for r in table.rows for k, v in r.items() if not isinstance(v, list))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(keys), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.rows)
    return out.getvalue()


def _cell_text(cell: Cell | None, unit: str, bold: Callable[[str], str], pm: str) -> str:
    if cell is None:
        return "-"
    mean = number(cell.mean, unit)
    parts = [(bold(mean) if cell.best else mean) + _mark(cell)]
    if cell.se is not None:
        parts.append(f"{pm} {number(cell.se, unit, cell.mean)}")
    if cell.paper is not None:
        parts.append(f"({cell.paper:g})")
    return " ".join(parts)


def _mark(cell: Cell) -> str:
    return "†" if cell.diverged else ""


def _arrow(table: Table, metric: str, up: str = "↑", down: str = "↓") -> str:
    direction = "" if table.mixed else up if better(table, metric) else down
    return _heading(metric) + direction


def _heading(metric: str) -> str:
    """`head RP` for breakdown.head.RP: tasks by size need no other name."""
    return metric.removeprefix("breakdown.").replace(".", " ").replace("_", " ")


def _heads(table: Table, g: Grid, arrow: Callable[[str], str]) -> list[str]:
    return [f"{arrow(metric)} {column}".strip() for metric, column in g.columns]


def markdown(table: Table) -> str:
    g = grid(table)
    heads = [*g.index, *_heads(table, g, lambda m: _arrow(table, m))]
    lines = [f"## {_md(table.title)}", ""]
    lines.append("| " + " | ".join(map(_md, heads)) + " |")
    lines.append("| " + " | ".join(["---"] * len(g.index) + ["---:"] * len(g.columns)) + " |")
    for names, cells in g.lines:
        shown = [_cell_text(c, table.unit, lambda s: f"**{s}**", "±") for c in cells]
        lines.append("| " + " | ".join([*map(_md, names), *shown]) + " |")
    return "\n".join([*lines, "", *(_md(note) + "  " for note in table.notes)]) + "\n"


def _md(content: str) -> str:
    return content.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def latex(table: Table) -> str:
    """A booktabs table, metrics as multicolumn headings over their columns."""
    g = grid(table)
    arrow = {m: _arrow(table, m, r"$\uparrow$", r"$\downarrow$") for m, _ in g.columns}
    per = len(g.columns) // max(len(table.metrics), 1)
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}[htbp]",
        "\\centering",
        f"\\caption{{{_tex(' '.join([table.title.rstrip('.') + '.', *table.notes]))}}}",
        f"\\begin{{tabular}}{{{'l' * len(g.index)}{'r' * len(g.columns)}}}",
        "\\toprule",
    ]
    if per > 1:
        tops = [f"\\multicolumn{{{per}}}{{c}}{{{arrow[m]}}}" for m in table.metrics]
        lines.append(" & ".join([*[""] * len(g.index), *tops]) + " \\\\")
        heads = [*map(_tex, g.index), *(_tex(c) for _, c in g.columns)]
    else:
        heads = [*map(_tex, g.index), *(f"{arrow[m]} {_tex(c)}".strip() for m, c in g.columns)]
    lines += [" & ".join(heads) + " \\\\", "\\midrule"]
    for names, cells in g.lines:
        shown = [_cell_text(c, table.unit, lambda s: f"\\textbf{{{s}}}", "$\\pm$") for c in cells]
        shown = [cell.replace("†", _TEX["†"]) for cell in shown]
        lines.append(" & ".join([*map(_tex, names), *shown]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"


_TEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "†": r"\dag{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def _tex(content: str) -> str:
    return "".join(_TEX.get(c, c) for c in content)


def terminal(table: Table, metrics: Sequence[str] | None = None) -> RichTable:
    """Coloured by agreement with the paper; `metrics` are all of them or a few."""
    g = grid(table if metrics is None else dataclasses.replace(table, metrics=list(metrics)))
    shown = RichTable(title=Text(table.title), caption=Text("\n".join(table.notes)))
    for head in g.index:
        shown.add_column(Text(head), no_wrap=True)
    for head in _heads(table, g, lambda m: _arrow(table, m)):
        shown.add_column(Text(head), justify="right", no_wrap=True)
    for names, cells in g.lines:
        shown.add_row(*map(Text, names), *(_rich_cell(c, table.unit) for c in cells))
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


def _rich_cell(cell: Cell | None, unit: str) -> Text:
    if cell is None:
        return Text("-", style="dim")
    shown = Text(number(cell.mean, unit), style="bold" if cell.best else "")
    shown.append(_mark(cell))
    if cell.se is not None:
        shown.append(f" ±{number(cell.se, unit, cell.mean)}", style="dim")
    if cell.paper is not None:
        shown.append(f" ({cell.paper:g})", style=COLOURS[cell.agreement or "far"])
    return shown


def text(table: Table) -> str:
    """Plain text, as wide as it needs to be."""
    console = Console(file=io.StringIO(), width=400, color_system=None, legacy_windows=False)
    console.print(terminal(table))
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def as_html(table: Table) -> str:
    """Agreement with the paper is a colour and, for readers without it, a sign and a title."""
    g = grid(table)
    per = len(g.columns) // max(len(table.metrics), 1)
    out = ['<div class="scroll"><table class="results"><thead>']
    if per > 1:
        heads = "".join(
            f'<th scope="colgroup" colspan="{per}">{_arrow(table, m)}</th>' for m in table.metrics
        )
        out.append(f'<tr><td colspan="{len(g.index)}"></td>{heads}</tr>')
        names = [c for _, c in g.columns]
    else:
        names = _heads(table, g, lambda m: _arrow(table, m))
    cells = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in [*g.index, *names])
    out.append(f"<tr>{cells}</tr></thead><tbody>")
    for texts, row in g.lines:
        heads = "".join(f'<th scope="row">{html.escape(t)}</th>' for t in texts)
        out.append(f"<tr>{heads}{''.join(_html_cell(c, table.unit) for c in row)}</tr>")
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return "".join(out) + f'</tbody></table></div><div class="notes">{notes}</div>'


def _html_cell(cell: Cell | None, unit: str) -> str:
    if cell is None:
        return "<td>-</td>"
    mean = number(cell.mean, unit)
    shown = (f"<strong>{mean}</strong>" if cell.best else mean) + _mark(cell)
    if cell.se is not None:
        shown += f' <span class="se">±{number(cell.se, unit, cell.mean)}</span>'
    if cell.paper is None or cell.agreement is None:
        return f"<td>{shown}</td>"
    title = f"{cell.agreement} to the paper" if cell.agreement != "far" else "far from the paper"
    theirs = f'<span class="paper">({SIGNS[cell.agreement]} {cell.paper:g})</span>'
    return f'<td class="{cell.agreement}" title="{title}">{shown} {theirs}</td>'
