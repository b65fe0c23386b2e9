"""One HTML file with everything: finding, tables, interactive figures, tasks, settings.

Nothing is fetched: scripts, styles and data are inside, and a content security policy forbids the
rest. Every text goes through the templates, which escape it; control characters in it are written
out. Scores by task and the points of figures are JSON, compressed and written in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from longtail.names import __version__
from longtail.report.checks import Claim, Row
from longtail.report.figures import Figure, rounded, tables_of
from longtail.report.frame import Frames, Line
from longtail.report.labels import POLICY_LABELS, row_name
from longtail.report.reading import TaskScores
from longtail.report.statistics import EXACT_UP_TO, SAMPLES
from longtail.report.table import Table, line_of
from longtail.report.text import Cells, cells, number
from longtail.report.verdicts import Finding, verdict_line
from longtail.report.words import (
    METRIC_WORDS,
    Word,
    arrow,
    direction,
    metric_word,
    moment_words,
    policy_words,
)
from longtail.support.files import write_atomic
from longtail.support.terminal import printable

# Numbers of scores that the page may hold: 14 methods of 20,399 tasks take about 2 MB.
MOST_LINE_TASKS, MOST_RUN_TASKS = 350_000, 120_000
MOST_ERRORS, MOST_NOTICES, MOST_VALUES = 50, 5, 12
SIGNS = {"close": "=", "near": "~", "far": "≠"}
BOUNDS = {
    "percent": ("within 1 point of it", "within 5 points", "further away"),
    "else": ("within a factor of 1.25 of it", "within a factor of 2", "further away"),
}
MC = Word(
    "MC",
    "moments kept across tasks",
    "Continual Adam, whose second moments are averaged over all earlier tasks.",
)
NUMBERS_OF_TESTS = ("pair", "metric", "n", "mean", "low", "high", "p", "p_holm", "smallest_p")
NUMBERS_OF_TESTS += ("effect", "wins")


@dataclass(frozen=True)
class Content:
    """What a page shows.

    Attributes:
        frames: the runs.
        table: of their rows.
        claims: what the checks said.
        tests: of the two policies, seed by seed.
        finding: the sentence.
        provenance: where the numbers come from.
        pair: the two policies, ours first.
        beside: the figure beside the finding.
        figures: all others.
    """

    frames: Frames
    table: Table
    claims: Sequence[Claim]
    tests: Sequence[Row]
    finding: Finding
    provenance: Mapping[str, Any]
    pair: tuple[str, str]
    beside: Figure | None
    figures: Sequence[Figure]


def write(path: Path, content: Content) -> None:
    write_atomic(path, render(content))


def render(content: Content) -> str:
    """The page as HTML."""
    frames, table = content.frames, content.table
    drawn = [*content.figures, *([content.beside] if content.beside else [])]
    views, specs = {}, {}
    for figure in drawn:
        views[figure.name] = _view(figure, specs)
    data = {"figures": tables_of(drawn), **task_tables(frames.lines, table)}
    shown = {
        "finding": bool(frames.lines),
        "results": True,
        "figures": bool(content.figures),
        "tasks": bool(data["units"]),
        "statistics": bool(content.tests),
        "settings": True,
    }
    environment = Environment(
        loader=PackageLoader("longtail.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_printable,
    )
    return environment.get_template("page.html").render(
        title=table.title,
        state=frames.state,
        version=__version__,
        sections=[name for name, there in shown.items() if there],
        notices=_notices(frames),
        finding=_with_words(content.finding.text),
        note=content.finding.note,
        verdicts=verdict_line(content.claims) if content.claims else "",
        finding_figure=views.get("finding"),
        results=_results(table, content.pair[0]) if table.rows else None,
        signs=SIGNS,
        checks=_checks(content.claims),
        figures=[views[figure.name] for figure in content.figures],
        diverged=any(line.lost for line in frames.lines),
        left_out=data["left_out"],
        statistics=_statistics(content.tests, table) if content.tests else None,
        settings=_settings(frames, content.provenance),
        css=Markup(_asset("page.css")),
        js=Markup(_asset("page.js")),
        bundle=_bundle() if drawn else "",
        specs=_json(specs),
        data=Markup(_packed(data)),
    )


def _printable(value: Any) -> Any:
    """What a template prints: text without characters that command, markup of ours as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _asset(name: str) -> str:
    return resources.files("longtail.report").joinpath("templates", name).read_text("utf-8")


def _bundle() -> Markup:
    """Vega, Vega-Lite and what puts them into a page, without what would end a script."""
    scripts = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    return Markup(re.sub("</(script)", r"<\\/\1", scripts, flags=re.IGNORECASE))


def _json(value: Any) -> Markup:
    return Markup(json.dumps(value, allow_nan=False).replace("<", "\\u003c"))


def _packed(data: Mapping[str, Any]) -> str:
    """As JSON, compressed, in the letters of base64."""
    packed = gzip.compress(json.dumps(data, allow_nan=False).encode(), mtime=0)
    return base64.b64encode(packed).decode()


# Figures -----------------------------------------------------------------------------------------


def _view(figure: Figure, specs: dict[str, Any]) -> dict[str, Any]:
    """What the template needs of a figure; what Vega draws is added to `specs`, by its element."""
    panels = []
    for place, panel in enumerate(figure.panels):
        element = f"{figure.name}-{place}"
        named = len(next(iter(panel.data.values())).get("name", ()))
        height = 60 + 30 * named if named else 280
        specs[element] = {**panel.spec(width="container", height=height), "background": None}
        specs[element]["data_names"] = list(panel.data)
        panels.append({"id": element, "title": panel.title})
    return {"caption": figure.caption, "panels": panels}


# Finding and results -----------------------------------------------------------------------------


def _notices(frames: Frames) -> list[str]:
    """What a reader must know before any number: runs that diverged, and what cannot be read."""
    lost = []
    for line in frames.lines:
        for entry, finite in zip(line.entries, line.finite, strict=True):
            if not finite:
                at = entry.summary.get("diverged_at")
                where = f" in task {at + 1:,}" if isinstance(at, int) else ""
                lost.append(f"{line.name}, seed {entry.seed}{where}")
    notices = []
    if lost:
        names, more = "; ".join(lost[:MOST_NOTICES]), len(lost) - MOST_NOTICES
        names += f"; and {more} more" if more > 0 else ""
        count = "1 run diverged and is" if len(lost) == 1 else f"{len(lost)} runs diverged and are"
        notices.append(f"† {count} in no mean and no line: {names}.")
    notices += frames.problems[:1]
    if (count := len(frames.problems)) > 1:
        notices.append(f"and {count - 1} more remarks of this kind, under Settings.")
    return notices


def _with_words(text: str) -> list[tuple[str, Word | None]]:
    """The text in parts, the first of each short name in it with its definition."""
    known = {**METRIC_WORDS, "MC": MC}
    text = text.replace("\0", "")  # which marks the ends of what is defined
    for short in known:
        text = re.sub(rf"\b{short}\b", f"\0{short}\0", text, count=1)
    parts = text.split("\0")
    return [(part, known[part] if place % 2 else None) for place, part in enumerate(parts)]


def _results(table: Table, ours: str) -> dict[str, Any]:
    """The table of every metric, with the lines of the policy `ours` marked, and the legend."""
    shown = cells(table)
    marked = set()
    for row in table.rows:
        if table.columns != "policy" and ours in (str(row.get("policy")), str(row.get("row"))):
            marked.add(line_of(table.index, row))
    marked = marked if len(marked) < len(shown.names) else set()
    # What follows from a row's name is for those who look for it.
    implied = "row" in table.index and set(table.index[1:]) <= {*POLICY_LABELS}
    return {
        "metrics": [_metric(table, shown, metric, marked) for metric in table.metrics],
        "first": shown.heads[0] if shown.heads else "",
        "further": "soft wide" if implied else "soft",
        "legend": list(_legend(table, shown)),
        "notes": table.notes,
    }


def _metric(table: Table, shown: Cells, metric: str, marked: set[Any]) -> dict[str, Any]:
    part = shown.of(metric)
    known = {word.short: word for word in policy_words(table)}
    heads = [head or arrow(table, metric) for _, head in part.columns]
    lines = []
    for names, line in part.lines():
        further = []
        for head, name in list(zip(shown.heads, names, strict=True))[1:]:
            if name != "-":
                further.append(f"{head} {name}")
        first = names[0] if names else ""
        own = {"name": first, "further": ", ".join(further), "ours": names in marked}
        lines.append({**own, "cells": line})
    return {
        "name": metric,
        "word": metric_word(metric),
        "arrow": arrow(table, metric),
        "direction": direction(table, metric),
        "unit": "" if table.kinds.mixed else f" In {table.kinds.of(metric).unit}.",
        "heads": [(head, known.get(head)) for head in heads],
        "lines": lines,
    }


def _legend(table: Table, shown: Cells) -> Iterable[tuple[dict[str, str], str, str]]:
    """What colours, marks and short names mean; only those that the table has."""
    frame = shown.frame
    there = frame[frame["there"].eq(True)]
    bold, plain = {"tag": "strong", "style": ""}, {"tag": "span", "style": ""}
    if there["best"].any():
        yield bold, "bold", "the best mean; multi-task training is left out"
    if there["error"].ne("").any():
        yield {"tag": "span", "style": "se"}, "±", "standard error over seeds"
    if there["agreement"].ne("").any():
        grey = {"tag": "span", "style": "paper"}
        yield grey, "grey", "what the paper reports, and whether"
        bounds = BOUNDS["percent" if table.unit == "percent" else "else"]
        for kind, text in zip(SIGNS, bounds, strict=True):
            yield {"tag": "span", "style": f"{kind} sample"}, SIGNS[kind], f"ours is {text}"
    if there["lost"].any():
        lost = "seeds diverged: their weights became infinite or NaN; they are in no mean"
        yield plain, "†", lost
    if len(there) < len(frame):
        yield plain, "-", "no such run, or no such number of it"
    words: dict[str, Word] = {}
    lasts = {metric.rpartition(".")[2] for metric in table.metrics}
    for word in (*METRIC_WORDS.values(), *policy_words(table), *moment_words(table)):
        if word.short not in METRIC_WORDS or word.short in lasts:
            words[word.short] = word
    for word in words.values():
        yield bold, word.short, word.text


def _checks(claims: Sequence[Claim]) -> list[dict[str, str]]:
    order = ("fails", "undecided", "holds")
    shown = []
    for entry in sorted(claims, key=lambda entry: order.index(entry["verdict"])):
        numbers = []
        for name, value in entry["numbers"].items():
            if value is not None:
                numbers.append(f"{name.replace('_', ' ')} {short(value)}")
        told = {"claim": entry["claim"], "verdict": entry["verdict"]}
        shown.append({**told, "numbers": ", ".join(numbers)})
    return shown


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# Tasks -------------------------------------------------------------------------------------------


def task_tables(lines: Sequence[Line], table: Table) -> dict[str, Any]:
    """Scores by task of every line (mean over seeds) and, where they are few, of every run."""
    units: list[dict[str, Any]] = []
    lists: dict[str, int] = {}  # of tasks, which many runs share
    used = left_out = 0
    for line in lines:
        count = len(line.scores[0].own) if line.scores else 0
        if used + count > MOST_LINE_TASKS:
            left_out += 1
            continue
        used += count
        seeds = f", seed {line.entries[0].seed}"
        if len(line.entries) > 1:
            finite = len(line.finite_entries)
            seeds = f", mean of {finite} seed{'s' * (finite != 1)}{line.mark}"
        mean = mean_by_task(line)
        if mean is not None:
            units.append(_unit(line.name + seeds, mean, table.scale, lists))
    several = []
    for line in lines:
        for entry, finite in zip(line.entries, line.finite, strict=True):
            if len(line.entries) > 1:
                lost = "" if finite else " † (diverged)"
                several.append((f"{line.name}, seed {entry.seed}{lost}", entry.scores))
    if sum(len(scores.own) for _, scores in several if scores is not None) > MOST_RUN_TASKS:
        left_out += len(several)
        several = []
    for name, scores in several:
        if scores is not None:
            units.append(_unit(name, scores, table.scale, lists))
    return {"tasks": list(map(json.loads, lists)), "units": units, "left_out": left_out}


def mean_by_task(line: Line) -> TaskScores | None:
    """Mean over seeds by task, matched by name; the first seed's alone where names differ."""
    if not line.scores:
        return None
    first = line.scores[0]
    place_of = {name: place for place, name in enumerate(first.names)}
    alike = [(first, np.arange(len(first.names)))]
    for scores in line.scores[1:]:
        if scores.names == first.names:
            alike.append((scores, alike[0][1]))
        elif set(scores.names) == place_of.keys() and len(place_of) == len(scores.names):
            alike.append((scores, np.argsort([place_of[name] for name in scores.names])))
    means = {}
    for name in ("train_sizes", "test_sizes", "own", "best", "last"):
        values = [(getattr(scores, name), order) for scores, order in alike]
        known = all(own is not None for own, _ in values)
        means[name] = np.mean([own[order] for own, order in values], axis=0) if known else None
    return TaskScores(first.names, **means, after=first.after, curve=first.curve)


def _unit(name: str, scores: TaskScores, scale: float, lists: dict[str, int]) -> dict[str, Any]:
    sizes = [
        None if own is None else rounded(own) for own in (scores.train_sizes, scores.test_sizes)
    ]
    names = list(map(printable, scores.names))
    key = json.dumps({"names": names, "train": sizes[0], "test": sizes[1]})
    unit = {"name": printable(name), "tasks": lists.setdefault(key, len(lists))}
    for column in ("own", "best", "last"):
        unit[column] = rounded(getattr(scores, column) * scale)
    return unit


# Statistics and settings -------------------------------------------------------------------------


def _statistics(tests: Sequence[Row], table: Table) -> dict[str, Any]:
    rows = []
    for test in tests:
        interval = "-"
        if test["n"] > 1:
            low, high = (number(test[name], table.unit) for name in ("low", "high"))
            interval = f"{low} to {high}"
        # A label may be of some methods alone, such as the size of a buffer.
        labels = {}
        for name, value in test.items():
            if name not in (*NUMBERS_OF_TESTS, *POLICY_LABELS) and value is not None:
                labels[name] = value
        effect = short(test["effect"]) if test["effect"] == test["effect"] else "-"
        p_values = [_p(test[name], test["n"]) for name in ("p", "p_holm")]
        difference, wins = number(test["mean"], table.unit), f"{test['wins']} of {test['n']}"
        told = [str(test["n"]), difference, interval, *p_values, effect, wins]
        word = METRIC_WORDS.get(test["metric"])
        rows.append(
            {"name": row_name(labels), "metric": test["metric"], "word": word, "cells": told}
        )
    first, second = tests[0]["pair"]
    few = max(test["n"] for test in tests)
    least = min(test["smallest_p"] for test in tests)
    bound = f"With {few} seed{'s' * (few != 1)} p cannot be below {least:.2g}."
    note = (
        f"{first} minus {second}, paired by seed: sign-flip test "
        f"(exact up to {EXACT_UP_TO} seeds, {SAMPLES:,} random patterns above), interval from "
        "Student's t, Hedges' g of the paired differences, Holm's correction over the rows of "
        f"a metric. {bound} The metric is the one chosen above the table of results."
    )
    return {"note": note, "rows": rows, "first": table.metrics[0] if table.metrics else "RP"}


def _p(value: float, seeds: int) -> str:
    if value != value or seeds < 2:
        return "-"
    return f"{value:.2g}" if value >= 1e-4 else "< 0.0001"


def _settings(frames: Frames, provenance: Mapping[str, Any]) -> dict[str, Any]:
    common, varied = split_settings(frames)
    failed = []
    for place in frames.stored.index[frames.stored["status"].eq("failed")]:
        entry, labels = frames.entries[place], json.loads(frames.stored["key"][place])
        name = ", ".join(f"{key} {value}" for key, value in {**labels, "seed": entry.seed}.items())
        failed.append((name, entry.error or ""))
    return {
        "provenance": _texts(provenance),
        "common": _texts(common),
        "varied": _texts(varied),
        "failed": failed[:MOST_ERRORS],
        "more_failed": max(0, len(failed) - MOST_ERRORS),
        "problems": frames.problems,
    }


def _texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    texts = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        texts.append((str(name), text))
    return texts


def split_settings(frames: Frames) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings that are the same everywhere, and the values of those that are not."""
    seen: dict[str, dict[str, Any]] = {}
    for place in frames.stored.index:
        for name, value in _flat(frames.entries[place].config):
            seen.setdefault(name, {})[json.dumps(value)] = value
    common, varied = {}, {}
    for name, values in seen.items():
        if len(values) == 1:
            (common[name],) = values.values()
        else:
            texts = sorted(values, key=lambda text: (len(text), text))
            if len(texts) > MOST_VALUES:
                texts = [*texts[:10], "...", texts[-1]]
            varied[name] = ", ".join(texts)
    return common, varied


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
