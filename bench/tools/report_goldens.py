"""Whether a changed report says the same of the same runs: every number, every text, every figure.

    python bench/tools/report_goldens.py build RUNS           # folders of runs, in miniature
    python bench/tools/report_goldens.py collect RUNS BEFORE  # what the report says of them
    python bench/tools/report_goldens.py compare BEFORE AFTER # which numbers and texts differ

`--python OLD_TREE/.venv/bin/python` builds or collects with another tree. The folders are those of
`golden_runs.py`. A change of the format of runs asks for folders built anew: the same seeds give
the same numbers.

Kept of each report are all numbers of table.json and table.csv, the data of each figure and of the
page, and what is said on a terminal of 80 and 160 columns, in a pipe, in Markdown, LaTeX, plain
text and on the page; dates, times, commits and ids are left out. Rows are found by their labels,
in the names of today; another order of them is one difference and not one in each.

The data of figures are taken where this tree draws them (`recorded`); a tree that draws with
another library needs a reader of its own there, which gives the same form.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import difflib
import html.parser
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from golden_runs import build, chosen
from same_bytes import OLD, Spelling, digest, spelling_of_this_tree

# What a table.json says of where and when it was made.
KEPT_OF_PROVENANCE = ("runs", "study", "benchmark", "seeds")
Numbers = dict[str, str]  # by their path, as texts


# What a report says ---------------------------------------------------------------------------


def collect(folder: Path, out: Path, only: list[str]) -> None:
    spelling = spelling_of_this_tree()
    out.mkdir(parents=True, exist_ok=True)
    for golden in chosen(only):
        for name, words in golden.reports.items():
            place = out / golden.name / name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            with tempfile.TemporaryDirectory() as temporary:
                # Copied, as a sentence on a file has the names of the folders around it.
                runs = Path(temporary) / "goldens" / golden.name
                shutil.copytree(folder / golden.name, runs)
                numbers, texts = report_on(runs, words, spelling)
            content = json.dumps(numbers, indent=0, ensure_ascii=False)
            (place / "numbers.json").write_text(content + "\n", encoding="utf-8")
            for text, said in texts.items():
                (place / text).write_text(said, encoding="utf-8")
            print(f"{golden.name}, {name}: {len(numbers)} numbers", flush=True)


def report_on(
    folder: Path, words: tuple[str, ...], spelling: Spelling
) -> tuple[Numbers, dict[str, str]]:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out"
        with recorded() as figures:
            code, pipe, errors = say(folder, out, words, columns=None)
        told = {"pipe.txt": pipe, "errors.txt": errors}
        for columns in (80, 160):
            short = ("--no-figures", "--no-page")
            _, text, _ = say(folder, Path(temporary) / "short", (*words, *short), columns=columns)
            told[f"terminal {columns}.txt"] = text
        for path in sorted(out.glob("table.*")):
            if path.suffix not in (".json", ".csv"):
                told[path.name] = path.read_text(encoding="utf-8")
        if (out / "report.html").exists():
            told["page.txt"] = page_text((out / "report.html").read_text(encoding="utf-8"))
        numbers: Numbers = {"exit code": str(code)}
        if (out / "table.json").exists():
            content = json.loads((out / "table.json").read_text(encoding="utf-8"))
            numbers |= table_numbers(content, spelling)
            text = (out / "table.csv").read_text(encoding="utf-8")
            numbers |= csv_numbers(text, content, spelling)
        for name, data in figures.items():
            numbers |= flattened(data, f"figure {name}")
        texts = {name: scrubbed(text, folder, Path(temporary)) for name, text in told.items()}
    return numbers, texts


def say(
    folder: Path, out: Path, words: tuple[str, ...], columns: int | None
) -> tuple[int, str, str]:
    """Exit code, standard output and errors of `longtail report`, on a terminal or in a pipe."""
    from longtail.cli import main

    terminal = {} if columns is None else {"FORCE_COLOR": "1", "COLUMNS": str(columns)}
    said, errors = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.update(terminal)
    try:
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # that a font lacks a letter
            code = main(["report", str(folder), "--out", str(out), *words])
    finally:
        os.environ.clear()
        os.environ.update(before)
    return code, said.getvalue(), errors.getvalue()


def scrubbed(text: str, folder: Path, temporary: Path) -> str:
    """Without places, dates, times, versions, commits and ids, which may differ."""
    text = text.replace(str(temporary), "OUT").replace(str(folder), "RUNS")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", "DATE", text)
    text = re.sub(r"\b[0-9a-f]{12}(-dirty)?\b", "ID", text)
    kept = []
    for line in text.splitlines():
        head = line.split("\t")[0].strip().strip('"').split('"')[0]
        volatile = (
            *("report_by", "report_commit", "command", "seconds", "started", "finished", "commit"),
            *("sessions", "snapshots.", "versions.", "hardware.", "optimizer_step", "code"),
        )
        if not head.startswith(volatile):
            kept.append(line.rstrip())
    return "\n".join(kept) + "\n"


class _PageText(html.parser.HTMLParser):
    """The words of a page, a line for each cell, paragraph and heading; titles in brackets."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "svg"):
            self.silent += 1
        if tag in ("tr", "p", "h1", "h2", "li", "summary", "div", "section", "figcaption"):
            self.parts.append("\n")
        if tag in ("td", "th", "dt", "dd"):
            self.parts.append("\t")
        title = dict(attrs).get("title")
        if title:
            self.parts.append(f"[{title}] ")
        if tag == "strong":
            self.parts.append("**")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "svg"):
            self.silent -= 1
        if tag == "strong":
            self.parts.append("**")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(data)


def page_text(page: str) -> str:
    reader = _PageText()
    reader.feed(page)
    lines = (line.strip("\n\r ").lstrip("\t") for line in "".join(reader.parts).splitlines())
    return "\n".join(line for line in lines if line.strip()) + "\n"


# Numbers ---------------------------------------------------------------------------------------


def flattened(tree: Any, prefix: str) -> Numbers:
    """Every value by its path, as text, so that 3 and 3.0 differ; a list of numbers whole."""
    if isinstance(tree, Mapping):
        found: Numbers = {}
        for key, value in tree.items():
            found |= flattened(value, f"{prefix} / {key}")
        return found
    if isinstance(tree, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in tree):
            return flattened(dict(enumerate(tree)), prefix)
        return {prefix: " ".join(map(repr, tree))}
    return {prefix: tree if isinstance(tree, str) else repr(tree)}


def labels_of(line: Mapping[str, Any], spelling: Spelling) -> str:
    """A row's labels in the names of today, as the key it is found by."""
    keys = list(line)
    end = keys.index("seeds") if "seeds" in keys else len(keys)
    return ", ".join(f"{key} {today(key, line[key], spelling)}" for key in sorted(keys[:end]))


def today(key: str, value: Any, spelling: Spelling) -> Any:
    if key != "policy" or not isinstance(value, str):
        return value
    for name, then in spelling.policies.items():
        if value == then or value.startswith((f"{then},", f"{then} ")):
            return name + value[len(then) :]
    return value


def table_numbers(content: dict[str, Any], spelling: Spelling) -> Numbers:
    numbers: Numbers = {}
    for key, value in content.items():
        if key == "provenance":
            kept = {k: v for k, v in value.items() if k in KEPT_OF_PROVENANCE}
            numbers |= flattened(kept, "provenance")
        elif key == "rows":
            for line in value:
                name = labels_of(line, spelling)
                head = {k: today(k, v, spelling) for k, v in line.items()}
                numbers |= flattened(head, f"row {name}")
            order = [labels_of(line, spelling) for line in value]
            numbers["order of rows"] = digest(json.dumps(order).encode())
        elif key in ("statistics", "selection"):
            for entry in value:
                measured = ("mean", "score")[key == "selection"]
                end = list(entry).index(measured if measured in entry else "n")
                pair = [today("policy", p, spelling) for p in entry.get("pair", [])]
                named = {k: entry[k] for k in list(entry)[:end] if k not in ("pair", "n")}
                rest = {k: v for k, v in entry.items() if k not in (*named, "pair")}
                path = f"{key} {labels_of(named, spelling)} {pair or ''}"
                numbers |= flattened(rest, path)
        else:
            numbers |= flattened(value, key)
    return numbers


def csv_numbers(text: str, content: dict[str, Any], spelling: Spelling) -> Numbers:
    """Cells by the labels of their row: table.csv has the rows of table.json, in their order."""
    numbers: Numbers = {}
    lines = list(csv.DictReader(io.StringIO(text)))
    numbers["csv: rows"] = str(len(lines))
    for line, like in zip(lines, content["rows"], strict=False):
        name = labels_of(like, spelling)
        for key, value in line.items():
            numbers[f"csv {name} / {key}"] = str(today(key, value, spelling))
    return numbers


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, Any]]:
    """The data of each figure that is drawn within ``with``, by its name.

    A figure is a list of panels, each with the tables that it draws.
    """
    from longtail.report import figures, page

    found: dict[str, Any] = {}
    write, tasks = figures.tables_of, page.task_tables

    def note_tables(drawn: Any) -> Any:
        tables = write(drawn)
        for figure in drawn:
            for panel in figure.panels:
                found[f"{figure.name} {panel.title}"] = dict(panel.data)
        return tables

    def note_tasks(*arguments: Any) -> Any:
        data = tasks(*arguments)
        units = {unit["name"]: unit for unit in data["units"]}
        names = [digest(json.dumps(table).encode()) for table in data["tasks"]]
        found["data of the page"] = {**data, "units": units, "tasks": names}
        return data

    page.tables_of, page.task_tables = note_tables, note_tasks
    try:
        yield found
    finally:
        page.tables_of, page.task_tables = write, tasks


# Comparing -------------------------------------------------------------------------------------


WIDTH = 160  # letters shown of a line that differs


def compare(before: Path, after: Path, only: list[str], *, numbers: bool, most: int) -> int:
    """Prints which numbers differ in a bit, and which texts in a word.

    What only the later tree says is shown and is no difference.
    """
    counts = dict.fromkeys(("same", "differs", "gone", "added"), 0)
    texts = 0
    for golden in chosen(only):
        for name in golden.reports:
            old, new = before / golden.name / name, after / golden.name / name
            called = f"{golden.name}, {name}"
            if not old.is_dir() or not new.is_dir():
                print(f"{called}: not in {new if old.is_dir() else old}")
                counts["gone"] += 1
                continue
            found = _compare_numbers(old / "numbers.json", new / "numbers.json")
            counts["same"] += found.pop("same")
            for what, lines in found.items():
                counts[what] += len(lines)
                for line in lines[:most]:
                    print(f"{called}: {what}: {line}")
                if len(lines) > most:
                    print(f"{called}: {what}: {len(lines) - most} more numbers")
            if not numbers:
                texts += _compare_texts(called, old, new, most)
    print(
        f"{counts['same']} numbers are the same bits, {counts['differs']} differ, "
        f"{counts['gone']} gone, {counts['added']} added; {texts} texts differ"
    )
    return 1 if counts["differs"] or counts["gone"] or texts else 0


def _compare_numbers(old: Path, new: Path) -> dict[str, Any]:
    """How many are the same, and of the others what became of each, as lines."""
    was, now = (json.loads(path.read_text(encoding="utf-8")) for path in (old, new))
    was = {OLD.text_of_today(key): OLD.text_of_today(value) for key, value in was.items()}
    gone = [f"{key} = {was[key]:.100}" for key in was if key not in now]
    added = [f"{key} = {now[key]:.100}" for key in now if key not in was]
    both = [key for key in was if key in now]
    differs = [f"{key} {_change(was[key], now[key])}" for key in both if was[key] != now[key]]
    return {"same": len(both) - len(differs), "differs": differs, "gone": gone, "added": added}


def _change(was: str, now: str) -> str:
    """Of two lists of numbers their lengths, or the first pair that differs."""
    before, after = was.split(" "), now.split(" ")
    if len(before) < 3 or len(before) != len(after):
        return f"was {was:.100}, is {now:.100}"
    pairs = [(i, a, b) for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    place, a, b = pairs[0]
    return f"in {len(pairs)} of {len(before)} numbers, number {place} was {a}, is {b}"


def _compare_texts(called: str, old: Path, new: Path, most: int) -> int:
    names = {path.name for place in (old, new) for path in place.iterdir()} - {"numbers.json"}
    count = 0
    for name in sorted(names):
        was, now = (
            (place / name).read_text(encoding="utf-8").splitlines()
            if (place / name).exists()
            else []
            for place in (old, new)
        )
        was = [OLD.text_of_today(line) for line in was]
        if was == now:
            continue
        count += 1
        print(f"{called}: {name} differs")
        changes = [
            line
            for line in difflib.unified_diff(was, now, lineterm="", n=0)
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        for line in changes[:most]:
            print(f"    {line[:WIDTH]}")
        if len(changes) > most:
            print(f"    and {len(changes) - most} more lines")
    return count


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("build", "collect", "compare"))
    parser.add_argument("first", type=Path, help="RUNS, or BEFORE")
    parser.add_argument("second", type=Path, nargs="?", help="where to collect, or AFTER")
    parser.add_argument("--only", nargs="+", default=[], help="these goldens")
    parser.add_argument("--python", metavar="PATH", help="the interpreter of another tree")
    parser.add_argument("--numbers", action="store_true", help="compare numbers, no texts")
    parser.add_argument("--most", type=int, default=8, help="lines shown of a report that differs")
    args = parser.parse_args(argv)
    if args.command != "build" and args.second is None:
        parser.error(f"{args.command} takes two folders")
    if args.python:
        place = argv.index("--python")
        return subprocess.call([args.python, __file__, *argv[:place], *argv[place + 2 :]])
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    if args.command == "build":
        build(args.first, args.only)
    elif args.command == "collect":
        collect(args.first, args.second, args.only)
    else:
        return compare(args.first, args.second, args.only, numbers=args.numbers, most=args.most)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
