"""Draws the figures of docs/benchmarks/fsmol.md.

    python docs/draw_fsmol.py                     forgetting by size, as in the published table
    python docs/draw_fsmol.py --source FSMOL      also molecules and sizes, from the files (RDKit)
    python docs/draw_fsmol.py --check             exit with 1 where the first is no longer true

The molecules are those of the largest and of the smallest assay (the first by name where several
are as small): of each the first two active and the first two inactive ones of 15 to 30 atoms.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
TABLE = ROOT / "bench" / "results" / "fsmol" / "table.json"
POLICIES = {
    "continual": ("Continual Adam (MC)", "#4c78a8"),
    "kept": ("Adam kept", "#8a7a3f"),
    "new": ("fresh Adam for every task", "#c8702f"),
}
PARTS = {"head": "largest tenth", "body": "between", "tail": "smaller half"}
SHADES = {"head": "#4c78a8", "body": "#3a97a3", "tail": "#4f9a5b"}
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 12px; fill: #6e7781 }
  .title { font-weight: 600 }
  .axis { stroke: #8c959f; stroke-width: 1; fill: none }
  .grid { stroke: #8c959f; stroke-opacity: 0.25 }
  .error { stroke: #24292f; stroke-width: 1.3 }
  .paper { fill: #ffffff; stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9aa4af }
    .error { stroke: #e6edf3 }
  }
"""


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title">'
    )
    name = f'<title id="title">{escape(title)}</title>'
    return "\n".join([head, name, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text{of} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def forgetting(rows: Sequence[dict[str, Any]]) -> str:
    """Finetune under three policies: what is retained and what is forgotten, by size of task."""
    found = {row["policy"]: row for row in rows if row["method"] == "finetune"}
    wide, high, top, left = 310, 210, 62, 44
    parts = []
    for i, (policy, (name, colour)) in enumerate(POLICIES.items()):
        x = left + i * 215
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(text(x + 18, 20.5, name))
        assert policy in found, f"results/fsmol/table.json has no Finetune under {policy}"
    panels = (
        ("RP", "retained accuracy, % (chance is 50)", 50, 70, 5),
        ("FGT", "forgetting, points", 0, 10, 2),
    )
    for i, (metric, words, low, most, step) in enumerate(panels):
        x0 = left + i * (wide + 44)
        parts.append(text(x0, top - 14, words, "title"))
        for value in range(low, most + 1, step):
            y = top + high * (1 - (value - low) / (most - low))
            parts.append(f'<path class="grid" d="M{x0} {y:.1f}h{wide}"/>')
            parts.append(text(x0 - 6, y + 4, str(value), "small", "end"))
        for j, (part, said) in enumerate(PARTS.items()):
            middle = x0 + wide * (j + 0.5) / len(PARTS)
            parts.append(text(middle, top + high + 18, part, anchor="middle"))
            parts.append(text(middle, top + high + 34, said, "small", "middle"))
            for k, (policy, (_, colour)) in enumerate(POLICIES.items()):
                row, key = found[policy], f"breakdown.{part}.{metric}"
                x = middle + (k - 1) * 29
                parts += _bar(x, row[key], row[f"{key}_se"], (low, most), (top, high), colour)
    return picture(730, top + high + 48, "FS-Mol: forgetting by size of the task", parts)


def _bar(
    x: float,
    value: float,
    error: float,
    limits: tuple[int, int],
    place: tuple[int, int],
    colour: str,
) -> list[str]:
    """One value as a bar, with two standard errors to either side."""
    (low, most), (top, high) = limits, place
    assert low <= value <= most, f"{value} is outside the axis, {low} to {most}"

    def at(number: float) -> float:
        return top + high * (1 - (number - low) / (most - low))

    y, bottom = at(value), top + high
    return [
        f'<rect x="{x - 10:.1f}" y="{y:.1f}" width="20" height="{bottom - y:.1f}" rx="2" '
        f'fill="{colour}"/>',
        f'<path class="error" d="M{x:.1f} {at(value - 2 * error):.1f}'
        f'V{at(value + 2 * error):.1f}"/>',
        text(x, y - 7, f"{value:.1f}", "small", "middle"),
    ]


def sizes(molecules: Sequence[int]) -> str:
    """Molecules of each assay, from the largest to the smallest, on a scale of powers of two."""
    ranked = sorted(molecules, reverse=True)
    n, wide, high, left, top = len(ranked), 640, 230, 56, 24
    low, most = math.log2(16), math.log2(ranked[0])

    def at(rank: float, size: float) -> tuple[float, float]:
        return left + wide * rank / n, top + high * (1 - (math.log2(size) - low) / (most - low))

    parts = []
    for power in range(5, int(most) + 1, 2):
        _, y = at(0, 2**power)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{wide}"/>')
        parts.append(text(left - 6, y + 4, f"{2**power:,}", "small", "end"))
    bounds = {"head": (0, -(-n // 10)), "body": (-(-n // 10), n // 2), "tail": (n // 2, n)}
    for part, (first, last) in bounds.items():
        ranks = sorted({first, last - 1, *range(first, last, 20), *range(min(last, 60))})
        line = [at(rank + 0.5, ranked[rank]) for rank in ranks if first <= rank < last]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        (x0, _), (x1, _) = at(first, 32), at(last, 32)
        bottom = top + high
        parts.append(
            f'<polygon points="{x0:.1f},{bottom} {points} {x1:.1f},{bottom}" '
            f'fill="{SHADES[part]}"/>'
        )
        share = sum(ranked[first:last]) / sum(ranked)
        middle = (x0 + x1) / 2
        parts.append(text(middle, bottom + 18, part, anchor="middle"))
        parts.append(text(middle, bottom + 34, f"{share:.0%} of labels", "small", "middle"))
    for rank in (0, n // 10, n // 2, n - 1):
        x, y = at(rank + 0.5, ranked[rank])
        anchor = "end" if rank == n - 1 else "start"
        parts.append(text(x + (-2 if rank == n - 1 else 6), y - 7, f"{ranked[rank]:,}", "", anchor))
    parts.append(text(left + wide, top + 4, f"molecules of {n:,} assays", "title", "end"))
    return picture(left + wide + 16, top + high + 46, "FS-Mol: sizes of the assays", parts)


def molecules(assays: Sequence[Any]) -> str:
    """Two active and two inactive molecules of the largest and of the smallest assay."""
    ends = max(assays, key=lambda a: len(a.labels)), min(assays, key=lambda a: len(a.labels))
    wide, high, parts = 176, 150, []
    for row, assay in enumerate(ends):
        top = row * (high + 62)
        count = len(assay.labels)
        said = f"{assay.name}, {'the largest' if row == 0 else 'one of the smallest'}: "
        said += f"{count:,} molecules, {int(sum(assay.labels)):,} active"
        parts.append(text(8, top + 18, said, "title"))
        for column, (label, smiles) in enumerate(chosen(assay)):
            x = 8 + column * (wide + 8)
            parts.append(
                f'<rect class="paper" x="{x}" y="{top + 28}" width="{wide}" height="{high}" '
                'rx="6"/>'
            )
            parts.append(
                f'<g transform="translate({x} {top + 28})">{drawn(smiles, wide, high)}</g>'
            )
            said = "active" if label else "inactive"
            parts.append(text(x + wide / 2, top + high + 44, said, "small", "middle"))
    return picture(
        8 + 4 * (wide + 8), 2 * (high + 62) - 6, "FS-Mol: molecules of two assays", parts
    )


def chosen(assay: Any) -> list[tuple[int, str]]:
    """The first two active, then the first two inactive molecules of 15 to 30 atoms."""
    from rdkit import Chem, rdBase

    found: dict[int, list[str]] = {1: [], 0: []}
    with rdBase.BlockLogs():  # of molecules that it cannot read
        for smiles, label in zip(assay.smiles, assay.labels, strict=True):
            molecule = Chem.MolFromSmiles(smiles)
            if molecule is not None and 15 <= molecule.GetNumHeavyAtoms() <= 30:
                found[int(label)].append(smiles)
    return [(label, smiles) for label, several in found.items() for smiles in several[:2]]


def drawn(smiles: str, wide: int, high: int) -> str:
    """The structure as RDKit draws it, without the frame of a file."""
    from rdkit import Chem
    from rdkit.Chem.Draw import rdMolDraw2D

    pen = rdMolDraw2D.MolDraw2DSVG(wide, high)
    pen.drawOptions().clearBackground = False
    pen.drawOptions().padding = 0.08
    pen.DrawMolecule(Chem.MolFromSmiles(smiles))
    pen.FinishDrawing()
    whole = pen.GetDrawingText()
    body = whole.split("<!-- END OF HEADER -->")[1].rsplit("</svg>", 1)[0].strip()
    return re.sub(r" class='[^']*'", "", body)  # which atom a line belongs to


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, help="FS-Mol, folder or archive")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(arguments)
    file = FIGURES / "fsmol_forgetting.svg"
    now = forgetting(json.loads(TABLE.read_text(encoding="utf-8"))["rows"])
    if args.check:
        fresh = file.is_file() and file.read_text(encoding="utf-8") == now
        print(f"{file.name} is {'true' if fresh else 'stale: run python docs/draw_fsmol.py'}")
        return 0 if fresh else 1
    file.write_text(now, encoding="utf-8")
    if args.source is not None:
        from longtail_bench.fsmol.assays import read_assays

        assays = sorted(read_assays(args.source), key=lambda assay: assay.name)
        content = {"sizes": sizes([len(a.labels) for a in assays]), "molecules": molecules(assays)}
        for name, found in content.items():
            (FIGURES / f"fsmol_{name}.svg").write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
