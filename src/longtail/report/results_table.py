"""The table of the page: one metric at a time, labels that stay in sight, and what it all means.

Every text that comes from data goes through `html.escape`.
"""

from __future__ import annotations

from html import escape

from longtail.report.formats import arrow, mark
from longtail.report.groups import POLICY_LABELS
from longtail.report.tables import Cell, Grid, Table, grid, label_text, number
from longtail.report.words import (
    METRIC_WORDS,
    Word,
    direction,
    metric_word,
    moment_words,
    policy_words,
)

SIGNS = {"close": "=", "near": "~", "far": "≠"}
BOUNDS = {
    "percent": ("within 1 point of it", "within 5 points", "further away"),
    "else": ("within a factor of 1.25 of it", "within a factor of 2", "further away"),
}


def as_html(table: Table, ours: str = "") -> str:
    """A switch for the metrics, a table for each of them, and the legend.

    Args:
        ours: the policy, or number of the row, whose lines are marked.
    """
    g = grid(table)
    marked = {
        tuple(label_text(k, row) for k in table.index)
        for row in table.rows
        if table.columns != "policy" and ours in (str(row.get("policy")), str(row.get("row")))
    }
    tables = "".join(_metric_table(table, g, metric, marked) for metric in table.metrics)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return f'{_switch(table)}{tables}{_legend(table, g)}<div class="notes">{notes}</div>'


def abbreviation(word: Word, text: str | None = None) -> str:
    """A short name with its definition on hover."""
    return f'<abbr title="{escape(word.text)}">{escape(text or word.short)}</abbr>'


def _switch(table: Table) -> str:
    if len(table.metrics) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-metric="{escape(m)}" aria-pressed="{str(i == 0).lower()}" '
        f'title="{escape(metric_word(m).text)}">{escape(arrow(table, m))}</button>'
        for i, m in enumerate(table.metrics)
    )
    return f'<div class="switch" role="group" aria-label="Metric">{buttons}</div>'


def _metric_table(table: Table, g: Grid, metric: str, marked: set[tuple[str, ...]]) -> str:
    places = [i for i, (m, _) in enumerate(g.columns) if m == metric]
    word = metric_word(metric)
    hidden = "" if metric == table.metrics[0] else " hidden"
    unit = "" if table.mixed else f" In {table.kind(metric).unit}."
    defined = f"<strong>{escape(word.short)}</strong>, {escape(word.text)}"
    defined += escape(f" {direction(table, metric)}{unit}")
    heads = [g.columns[i][1] or arrow(table, metric) for i in places]
    known = {w.short: w for w in policy_words(table)}
    shown = "".join(
        f'<th scope="col">{abbreviation(known[h]) if h in known else escape(h)}</th>' for h in heads
    )
    first = escape(g.index[0]) if g.index else ""
    marked = marked if len(marked) < len(g.lines) else set()
    rows = "".join(
        ('<tr class="ours">' if tuple(names) in marked else "<tr>")
        + _line(table, g, names, [cells[i] for i in places])
        for names, cells in g.lines
    )
    return (
        f'<div class="metric" data-metric="{escape(metric)}"{hidden}><p class="soft">{defined}</p>'
        f'<div class="scroll"><table class="results"><thead><tr><th scope="col">{first}</th>{shown}'
        f"</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def _line(table: Table, g: Grid, names: list[str], cells: list[Cell | None]) -> str:
    further = [
        f"{head} {name}" for head, name in list(zip(g.index, names, strict=True))[1:] if name != "-"
    ]
    label = escape(names[0] if names else "")
    if further:  # what follows from a row's name is for those who look for it
        implied = "row" in table.index and set(table.index[1:]) <= {*POLICY_LABELS}
        kind = "soft wide" if implied else "soft"
        label += f'<span class="{kind}">{escape(", ".join(further))}</span>'
    return f'<th scope="row">{label}</th>{"".join(_cell(c) for c in cells)}</tr>'


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td>-</td>"
    if cell.diverged and cell.mean != cell.mean:
        return '<td class="lost" title="every seed diverged">diverged†</td>'
    mean = number(cell.mean, cell.unit)
    shown = (f"<strong>{mean}</strong>" if cell.best else mean) + mark(cell)
    if cell.se is not None:
        shown += f' <span class="se">±{number(cell.se, cell.unit, cell.mean)}</span>'
    if cell.paper is None or cell.agreement is None:
        return f"<td>{shown}</td>"
    title = f"{cell.agreement} to the paper" if cell.agreement != "far" else "far from the paper"
    theirs = f'<span class="paper"><span class="wide">paper </span>{cell.paper:g} '
    theirs += f"{SIGNS[cell.agreement]}</span>"
    return f'<td class="{cell.agreement}" title="{title}">{shown} {theirs}</td>'


def _legend(table: Table, g: Grid) -> str:
    """What colours, marks and short names mean; only those that the table has."""
    cells = [cell for _, line in g.lines for cell in line if cell is not None]
    entries: list[tuple[str, str]] = []
    if any(cell.best for cell in cells):
        entries.append(("<strong>bold</strong>", "the best mean; multi-task training is left out"))
    if any(cell.se is not None for cell in cells):
        entries.append(('<span class="se">±</span>', "standard error over seeds"))
    if any(cell.agreement for cell in cells):
        bounds = BOUNDS["percent" if table.unit == "percent" else "else"]
        entries.append(('<span class="paper">grey</span>', "what the paper reports, and whether"))
        entries += [
            (f'<span class="{kind} sample">{SIGNS[kind]}</span>', f"ours is {text}")
            for kind, text in zip(SIGNS, bounds, strict=True)
        ]
    if any(cell.diverged for cell in cells):
        words = "seeds diverged: their weights became infinite or NaN; they are in no mean"
        entries.append(("†", words))
    if any(cell is None for _, line in g.lines for cell in line):
        entries.append(("-", "no such run, or no such number of it"))
    words = {w.short: w for w in METRIC_WORDS.values() if _has(table, w.short)}
    words |= {w.short: w for w in (*policy_words(table), *moment_words(table))}
    entries += [(f"<strong>{escape(w.short)}</strong>", w.text) for w in words.values()]
    shown = "".join(f"<div><dt>{sign}</dt><dd>{escape(text)}</dd></div>" for sign, text in entries)
    return f'<details class="legend" open><summary>Legend</summary><dl>{shown}</dl></details>'


def _has(table: Table, short: str) -> bool:
    return any(metric.rpartition(".")[2] == short for metric in table.metrics)
