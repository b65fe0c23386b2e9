"""Fill the block "Our numbers" of each rival's page from `bench/results/rivals/table.json`.

    python bench/tools/rival_pages.py            write the pages
    python bench/tools/rival_pages.py --check    exit code 1 where a page is out of date

The block lies between two marks in `docs/methods/<name>.md` and in `docs/averages.md`, and is
written by nobody else; that in `bench/results/rivals/README.md` has all rows, the best first.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "bench" / "results" / "rivals" / "table.json"
PAGES = ROOT / "docs" / "methods"
AVERAGES = ROOT / "docs" / "averages.md"
WHOLE = TABLE.parent / "README.md"
BLOCK = re.compile(r"(<!-- numbers: begin[^>]*-->\n).*?(<!-- numbers: end -->)", re.DOTALL)
# Pages of optimizers and policies: their rows go by the policy.
POLICIES = {
    "mofo": ("MoFO", "MoFO with MC"),
    "adam_rel": ("Adam-Rel",),
    "upgd": ("UPGD",),
    "badam": ("BAdam",),
    "averages": (
        "kept, task average",
        "kept, constant rate, task average",
        "continual, task average",
        "continual, constant rate, task average",
        "continual without warm-up, task average",
        "kept, ema",
        "continual, ema",
    ),
}
NOTHING = "Not measured yet.\n"
RANKED = 5  # rows of each kind


def pages() -> list[Path]:
    """The pages that have such a block."""
    known = (*sorted(PAGES.glob("*.md")), AVERAGES, WHOLE)
    return [p for p in known if p.is_file() and BLOCK.search(p.read_text("utf-8"))]


def rows_of(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A page's rows, and beside them Finetune or Reservoir with MC for comparison."""
    if name in POLICIES:
        own = [row for row in rows if row["policy"] in POLICIES[name]]
    else:
        own = [row for row in rows if row["method"] == name]
    found = []
    for benchmark in dict.fromkeys(row["benchmark"] for row in own):
        part = [row for row in own if row["benchmark"] == benchmark]
        bases = {"reservoir" if row["examples"] else "finetune" for row in part}
        ours = [
            row
            for row in rows
            if (row["benchmark"], row["policy"]) == (benchmark, "continual")
            and row["method"] in bases
        ]
        found += [*part, *(row for row in ours if row not in part)]
    return found


def block(name: str, rows: list[dict[str, Any]], root: str = "../..") -> str:
    """The lines between the marks; `root` is the repository's as the page links to it."""
    shown = rows_of(name, rows)
    if not shown:
        return NOTHING
    lines = [
        "| benchmark | row | RP | LP | FGT | bytes | time | chosen |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in shown:
        name = f"{row['method']}, {row['policy']}"
        lines.append(f"| {row['benchmark']} | {name} | {_cells(row)} |")
    note = (
        "\nMean and standard error over seeds; bytes a parameter beyond AdamW, time of a step in "
        "AdamW's.\nOf synthetic, an error, less is better. From [the joined table]"
        f"({root}/bench/results/rivals/table.json).\n"
    )
    return "\n".join(lines) + "\n" + note


def whole(rows: list[dict[str, Any]], ranking: list[dict[str, Any]]) -> str:
    """A table for each benchmark and kind, with a buffer of data or without, the best row first."""
    parts = [_ranked(ranking)]
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        for stored, kind in ((False, "without data"), (True, "with a buffer of data")):
            part = [r for r in rows if (r["benchmark"], r["examples"]) == (benchmark, stored)]
            sign = -1.0 if part and part[0]["higher_is_better"] else 1.0
            part.sort(key=lambda row: (row["RP"] is None, sign * (row["RP"] or 0.0)))
            lines = [
                f"{benchmark}, {kind}:\n",
                "| row | RP | LP | FGT | bytes | time | chosen |",
                "| --- | --- | --- | --- | --- | --- | --- |",
                *(f"| {row['method']}, {row['policy']} | {_cells(row)} |" for row in part),
            ]
            parts += ["\n".join(lines) + "\n"] if part else []
    return "\n".join(parts)


def _ranked(ranking: list[dict[str, Any]]) -> str:
    """The best by their mean rank over the benchmarks, with what they cost."""
    lines = ["| | row | mean rank | bytes |", "| --- | --- | --- | --- |"]
    for stored, kind in ((False, "without data"), (True, "with a buffer of data")):
        rows = [row for row in ranking if row["examples"] == stored]
        for row in rows[:RANKED]:
            name = f"{row['method']}, {row['policy']}"
            lines.append(f"| {kind} | {name} | {row['mean_rank']:.2f} | {row['bytes']} |")
    told = (
        f"The first {RANKED} by mean rank over the synthetic tasks, split MNIST and FS-Mol, of the "
        "rows in two buffers at most that each of them has (0 first, 1 last):"
    )
    return f"{told}\n\n" + "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> str:
    numbers = " | ".join(_number(row, metric) for metric in ("RP", "LP", "FGT"))
    chosen = ", ".join(f"{k} {v:g}" for k, v in (row.get("selected") or {}).items())
    time = "" if row["time"] is None else f"{row['time']:.2f}"
    return f"{numbers} | {row['bytes']} | {time} | {chosen}"


def _number(row: dict[str, Any], metric: str) -> str:
    value, se = row.get(metric), row.get(f"{metric}_se")
    if value is None:
        return "diverged" if row.get("RP") is None else ""
    digits = 2 if row.get("unit", "percent") == "percent" else 4
    return f"{value:.{digits}f}" + (f" ± {se:.{digits}f}" if se is not None else "")


def filled(path: Path, table: dict[str, Any]) -> str:
    """A page's text with its block as it should be."""
    rows = table["rows"]
    if path == WHOLE:
        text = whole(rows, table["ranking"])
    else:
        text = block(path.stem, rows, ".." if path == AVERAGES else "../..")
    return BLOCK.sub(lambda found: found[1] + text + found[2], path.read_text("utf-8"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fill the pages' numbers.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(arguments)
    nothing = {"rows": [], "ranking": []}
    table = json.loads(TABLE.read_text("utf-8")) if TABLE.is_file() else nothing
    stale = [path for path in pages() if filled(path, table) != path.read_text("utf-8")]
    for path in stale:
        if args.check:
            print(f"{path.name} is out of date: run python bench/tools/rival_pages.py")
        else:
            path.write_text(filled(path, table), encoding="utf-8")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
