r"""`table.tex`: a table with booktabs for each metric, none wider or longer than a page.

Widths are estimated from the number of characters, against the 345 points of LaTeX's narrowest
standard page, `article` at 10 points: a smaller type is chosen first, then long names wrap, then
columns go on in another table. `tests/report/test_latex.py` compiles what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from longtail.report.groups import POLICY_LABELS
from longtail.report.tables import Cell, Grid, Table, better, grid, number
from longtail.report.words import metric_word

TEXT_WIDTH = 345.0  # points
GAP = 3.0  # points on either side of a column
# Points to an em: the smaller designs of Computer Modern are wider than their size says.
SIZES = {"small": 9.3, "footnotesize": 8.5, "scriptsize": 8.0}
MOST_LINES = 40
NAME_WIDTH = 90.0  # points at which a name is wrapped
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
    **{c: "\\" + c for c in "&%$#_{}"},
}


def latex(table: Table) -> str:
    """One table a metric; the caption has the definition, and the last one the notes."""
    out = ["% \\usepackage{booktabs}"]
    for metric in table.metrics:
        out += _tables(table, metric, last=metric == table.metrics[-1])
    return "\n".join(out) + "\n"


def escape(content: str) -> str:
    """Text that LaTeX prints as it stands, on one line."""
    return "".join(_TEX.get(c, c) for c in " ".join(content.split()))


def _tables(table: Table, metric: str, last: bool) -> list[str]:
    g = _named(table, _of(grid(table), metric))
    word = metric_word(metric)
    arrow = "" if table.mixed else r" ($\uparrow$)" if better(table, metric) else r" ($\downarrow$)"
    caption = f"{escape(table.title.rstrip('.'))}: {escape(word.short)}{arrow}, "
    caption += escape(f"{word.long}, in {table.kind(metric).unit}.")
    out: list[str] = []
    for lines in _cut(g.lines, MOST_LINES):
        size, chunks, specs = _layout(table, Grid(g.index, g.columns, lines))
        for places in chunks:
            notes = " ".join(map(escape, table.notes)) if last else ""
            out += _one(table, g, lines, places, size, specs, f"{caption} {notes}".strip())
            caption = f"{escape(table.title.rstrip('.'))}: {escape(word.short)}, continued."
    return out


def _of(g: Grid, metric: str) -> Grid:
    places = [i for i, (m, _) in enumerate(g.columns) if m == metric]
    lines = [(names, [cells[i] for i in places]) for names, cells in g.lines]
    return Grid(g.index, [g.columns[i] for i in places], lines)


def _named(table: Table, g: Grid) -> Grid:
    """Without the labels that a numbered row's name says already: a page has no room for them."""
    if "row" not in table.index:
        return g
    kept = [i for i, k in enumerate(table.index) if k == "row" or k not in POLICY_LABELS]
    lines = [([names[i] for i in kept], cells) for names, cells in g.lines]
    return Grid([g.index[i] for i in kept], g.columns, lines)


def _cut(lines: list[tuple[list[str], list[Cell | None]]], most: int) -> list[list]:
    return [lines[i : i + most] for i in range(0, len(lines), most)] or [[]]


def _layout(table: Table, g: Grid) -> tuple[str, list[list[int]], list[str]]:
    """(type size, the columns of each table, how names are set) that fit the width."""
    texts = [[head, *(n[i] for n, _ in g.lines)] for i, head in enumerate(g.index)]
    names = [max(map(ems, column)) for column in texts]
    everything = list(range(len(g.columns)))
    for size, points in SIZES.items():
        for most in (TEXT_WIDTH, NAME_WIDTH):
            labels, each = _widths(table, g, names, points, most)
            if sum(labels) + sum(each) <= TEXT_WIDTH:
                return size, [everything], _specs(names, points, most)
    size, points = list(SIZES.items())[-1]
    most = max(NAME_WIDTH / len(names), 40.0)
    labels, each = _widths(table, g, names, points, most)
    chunks: list[list[int]] = [[]]
    for i in everything:
        used = sum(labels) + sum(each[j] for j in chunks[-1])
        if chunks[-1] and used + each[i] > TEXT_WIDTH:
            chunks.append([])
        chunks[-1].append(i)
    return size, chunks, _specs(names, points, most)


def ems(text: str) -> float:
    """About how wide a text is, in terms of the size of its type."""
    wide = {**dict.fromkeys(".,:;il'|", 0.28), **dict.fromkeys("()- ", 0.39), "±": 0.78}
    return sum(wide.get(c, 0.78 if c.isupper() or c in "mw" else 0.51) for c in text)


def _widths(
    table: Table, g: Grid, names: list[float], points: float, most: float
) -> tuple[list[float], list[float]]:
    """Of labels, wrapped at `most` points, and of columns, in points."""
    labels = [2 * GAP + min(n * points, most) for n in names]
    return labels, [2 * GAP + _width(table, g, i, points) for i in range(len(g.columns))]


def _width(table: Table, g: Grid, place: int, points: float) -> float:
    def cell(c: Cell | None) -> float:
        if c is None:
            return points
        small = f" ±{number(c.se, c.unit, c.mean)}" if c.se is not None else ""
        small += f" ({c.paper:g})" if c.paper is not None else ""
        wide = ems(number(c.mean, c.unit)) * (1.15 if c.best else 1.0) + 0.5 * c.diverged
        return wide * points + ems(small) * SIZES["scriptsize"]

    head = points * ems(g.columns[place][1])
    return max([head, *(cell(cells[place]) for _, cells in g.lines)])


def _specs(names: list[float], points: float, most: float) -> list[str]:
    return [f"p{{{most:.0f}pt}}" if n * points > most else "l" for n in names]


def _one(
    table: Table,
    g: Grid,
    lines: Sequence[tuple[list[str], list[Cell | None]]],
    places: list[int],
    size: str,
    specs: list[str],
    caption: str,
) -> list[str]:
    heads = [*map(escape, g.index), *(escape(g.columns[i][1]) or "mean" for i in places)]
    out = [
        "\\begin{table}[htbp]",
        f"\\centering\\{size}\\setlength{{\\tabcolsep}}{{{GAP:g}pt}}",
        f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{{''.join(specs)}{'r' * len(places)}}}",
        "\\toprule",
        " & ".join(heads) + " \\\\",
        "\\midrule",
    ]
    for names, cells in lines:
        shown = [_cell(cells[i]) for i in places]
        texts = zip((escape(n).replace("(row ", "(row~") for n in names), specs, strict=True)
        labels = [f"\\raggedright {t}" if spec != "l" else t for t, spec in texts]
        out.append(" & ".join([*labels, *shown]) + " \\\\")
    return [*out, "\\bottomrule", "\\end{tabular}", "\\end{table}"]


def _cell(cell: Cell | None) -> str:
    """The mean, and smaller beside it the standard error and the paper's number in brackets."""
    if cell is None:
        return "-"
    mean = escape(number(cell.mean, cell.unit))
    shown = (f"\\textbf{{{mean}}}" if cell.best else mean) + ("\\dag{}" if cell.diverged else "")
    small = f"$\\pm${number(cell.se, cell.unit, cell.mean)}" if cell.se is not None else ""
    small += f" ({cell.paper:g})" if cell.paper is not None else ""
    return f"{shown} {{\\scriptsize {small.strip()}}}" if small else shown
