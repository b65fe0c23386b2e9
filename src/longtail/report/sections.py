"""The sections of the page, as HTML. Every text that comes from data goes through `html.escape`."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

from longtail.report.finding import Finding, verdict_line
from longtail.report.groups import POLICY_LABELS, Group
from longtail.report.results import Result, Results
from longtail.report.results_table import abbreviation, as_html
from longtail.report.statistics import EXACT_UP_TO, SAMPLES
from longtail.report.tables import Table, number
from longtail.report.words import METRIC_WORDS, Word

if TYPE_CHECKING:
    from bokeh.plotting import figure

    from longtail.report.plots import Plots

MOST_ERRORS = 50
MOST_NOTICES = 5
MC = Word(
    "MC",
    "moments kept across tasks",
    "Continual Adam, whose second moments are averaged over all earlier tasks.",
)


EMPTY = (
    "<p>There is nothing to show yet: no run in this folder has finished. Start one with "
    "<code>longtail run</code> or <code>longtail study</code>, then call "
    "<code>longtail report</code> again.</p>"
)
UNDECIDED = (
    "A check holds or fails where its margin is more than two standard errors from zero, and is "
    "undecided between them or with a single seed."
)


def finding_section(
    found: Finding,
    claims: list[dict[str, Any]],
    drawn: tuple[str, figure] | None,
    items: list[dict[str, Any]],
) -> str:
    """The sentence, how many checks stand behind it, and the figure that shows it."""
    shown = [f'<p class="finding">{with_words(found.text)}</p>']
    if claims:
        link = f'<a href="#checks">{escape(verdict_line(claims))}</a>'
        shown.append(f'<p class="soft">{escape(found.note)} {link}</p>')
    if drawn is not None:
        caption, plot = drawn
        shown.append(_plot("finding-plot", caption, plot, items))
    return "".join(shown)


def notices(results: Results, groups: list[Group]) -> str:
    """What a reader must know before any number: runs that diverged, and what could not be read."""
    lost = [(g, run) for g in groups for run in g.diverged]
    shown = []
    if lost:
        names = [f"{g.name}, seed {run.seed}{_task(run)}" for g, run in lost[:MOST_NOTICES]]
        more = f"; and {len(lost) - MOST_NOTICES} more" if len(lost) > MOST_NOTICES else ""
        count = "1 run diverged and is" if len(lost) == 1 else f"{len(lost)} runs diverged and are"
        shown.append(f"† {count} in no mean and no line: {'; '.join(names)}{more}.")
    shown += results.problems[:1]
    if (count := len(results.problems)) > 1:
        shown.append(f"and {count - 1} more remarks of this kind, under Settings.")
    return "".join(f'<p class="notice">{escape(text)}</p>' for text in shown)


def _task(run: Result) -> str:
    at = run.summary.get("diverged_at")
    return f" in task {at + 1:,}" if isinstance(at, int) else ""


def with_words(text: str) -> str:
    """The text, escaped, with definitions on hover at the first of each short name in it."""
    known = {**METRIC_WORDS, "MC": MC}
    text = text.replace("\0", "")  # which marks the ends of what is defined
    for short in known:
        text = re.sub(rf"\b{short}\b", f"\0{short}\0", text, count=1)
    parts = text.split("\0")
    return "".join(
        abbreviation(known[part], part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )


def results_section(table: Table, claims: list[dict[str, Any]], ours: str) -> str:
    """The table, with the rows of the policy `ours` marked, and the checks."""
    if not table.rows:
        return EMPTY
    shown = [as_html(table, ours)]
    if claims:
        order = ("fails", "undecided", "holds")
        entries = sorted(claims, key=lambda entry: order.index(entry["verdict"]))
        shown.append(
            f'<details id="checks"><summary>{escape(verdict_line(claims))}</summary>'
            f'<p class="soft">{UNDECIDED}</p><ul class="checks">'
        )
        shown += [_check(entry) for entry in entries]
        shown.append("</ul></details>")
    return "".join(shown)


def _check(entry: dict[str, Any]) -> str:
    values = ", ".join(
        f"{k.replace('_', ' ')} {_short(v)}" for k, v in entry["numbers"].items() if v is not None
    )
    text = f'{escape(entry["claim"])} <span class="soft">{escape(values)}</span>'
    return f'<li class="{entry["verdict"]}">{text}</li>'


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plot(target: str, caption: str, plot: figure, items: list[dict[str, Any]]) -> str:
    from bokeh.embed import json_item

    items.append(dict(json_item(plot, target)))  # pyright: ignore
    zoom = f'<span class="zoom" data-zoom="{target}" data-name="{escape(caption)}"></span>'
    return (
        f"<figure><figcaption><span>{escape(caption)}</span>{zoom}</figcaption>"
        f'<div id="{target}" role="img" aria-label="{escape(caption)}"></div></figure>'
    )


def figures_section(drawn: Plots, items: list[dict[str, Any]]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" value="{i}" checked><span class="swatch" '
        f'aria-hidden="true" data-colour="{colour}" style="border-top-style:{_css_dash(dash)};'
        f'border-top-width:{max(width + 0.5, 1.5):.1f}px"></span>{escape(line)}</label>'
        for i, (line, colour, dash, width) in enumerate(drawn.legend())
    )
    buttons = "".join(f'<button type="button" value="{v}">{v}</button> ' for v in ("all", "none"))
    shown = [
        '<details class="fold" open><summary>Lines in all figures</summary>'
        f'<fieldset id="lines" aria-label="Lines">{boxes} {buttons}</fieldset></details>'
        '<p class="row"><label><input type="checkbox" id="bands">95% bands over seeds</label>'
    ]
    if any(g.diverged for g in drawn.groups):
        shown.append("<span>✕ † where a seed diverged; it is in no line.</span>")
    if drawn.left_out:
        shown.append(f"<span>The last {drawn.left_out} rows of the table have no lines.</span>")
    shown.append("</p>")
    if drawn.heats:
        more = drawn.heats_left_out
        left_out = f"<span>and of {more} more rows, not drawn</span>" if more else ""
        choices = "".join(
            f'<option value="{i}">{escape(n)}</option>' for i, n in enumerate(drawn.heats)
        )
        shown.append(
            '<p class="row"><label>Score matrix of '
            f'<select id="heat">{choices}</select></label>{left_out}</p>'
        )
    plots = [
        _plot(f"plot{i}", caption, plot, items) for i, (_, caption, plot) in enumerate(drawn.found)
    ]
    shown.append(f'<div class="figures">{"".join(plots)}</div>')
    return "".join(shown)


def _css_dash(dash: str) -> str:
    return dash if dash in ("solid", "dashed", "dotted") else "dashed"


def tasks_section(left_out: int) -> str:
    note = ""
    if left_out:
        note = (
            f'<p class="soft">{left_out} single runs or groups are left out to keep this file '
            "small; <code>longtail report --parquet FILE</code> has every score.</p>"
        )
    return f"""
<div class="row"><label>Run <select id="unit"></select></label>
<label>Search <input id="search" type="search" placeholder="name of a task" autocomplete="off">
</label></div>
<div class="scroll"><table><caption class="skip">Scores by task</caption>
<thead><tr id="tasks-head"></tr></thead><tbody id="tasks-body"></tbody></table></div>
<div class="row"><button id="previous" type="button">Previous</button>
<button id="next" type="button">Next</button>
<span id="tasks-count" role="status" aria-live="polite"></span></div>{note}"""


def compare_section(figures: list[tuple[str, figure]], items: list[dict[str, Any]]) -> str:
    captions = {
        "curves": "RP over the tasks learned so far (A dashed, B solid)",
        "points": "Final score of each task: above the dotted line B is higher",
    }
    drawn = "".join(_plot(f"compare-{k}", captions[k], plot, items) for k, plot in figures)
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("A", "B", "B minus A"))
    return f"""
<div class="row"><label>A <select id="compare-a"></select></label>
<label>B <select id="compare-b"></select></label></div>
<div class="scroll"><table><thead><tr><th scope="col" class="text">Metric</th>{heads}</tr></thead>
<tbody id="compare-body"></tbody></table></div>
<p id="compare-text" role="status" aria-live="polite"></p><div class="figures">{drawn}</div>"""


def statistics_section(tests: list[dict[str, Any]], table: Table) -> str:
    skip = {
        "pair",
        "metric",
        "n",
        "mean",
        "low",
        "high",
        "p",
        "p_holm",
        "smallest_p",
        "effect",
        "wins",
    }
    heads = ["", "seeds", "difference", "95% interval", "p", "p, Holm", "Hedges' g", "better in"]
    rows = []
    first_metric = table.metrics[0] if table.metrics else "RP"
    for t in tests:
        value = {k: number(t[k], table.unit) for k in ("mean", "low", "high")}
        interval = f"{value['low']} to {value['high']}" if t["n"] > 1 else "-"
        # A label may be of some methods alone, such as the size of a buffer.
        labels = {k: v for k, v in t.items() if k not in (*skip, *POLICY_LABELS) and v is not None}
        name = Group(labels, []).name
        effect = _short(t["effect"]) if t["effect"] == t["effect"] else "-"
        cells = [str(t["n"]), value["mean"], interval, _p(t["p"], t["n"]), _p(t["p_holm"], t["n"])]
        cells += [effect, f"{t['wins']} of {t['n']}"]
        word = METRIC_WORDS.get(t["metric"])
        metric = abbreviation(word) if word else escape(t["metric"])
        hidden = "" if t["metric"] == first_metric else " hidden"
        rows.append(
            f'<tr data-metric="{escape(t["metric"])}"{hidden}><th scope="row">{escape(name)} '
            f"{metric}</th>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>"
        )
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    first, second = tests[0]["pair"]
    few = max(t["n"] for t in tests)
    least = min(t["smallest_p"] for t in tests)
    bound = f"With {few} seed{'s' * (few != 1)} p cannot be below {least:.2g}."
    note = (
        f"{escape(first)} minus {escape(second)}, paired by seed: sign-flip test "
        f"(exact up to {EXACT_UP_TO} seeds, {SAMPLES:,} random patterns above), interval from "
        "Student's t, Hedges' g of the paired differences, Holm's correction over the rows of "
        f"a metric. {bound} The metric is the one chosen above the table of results."
    )
    return (
        f'<p class="soft">{note}</p><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _p(value: float, seeds: int) -> str:
    return "-" if value != value or seeds < 2 else f"{value:.2g}" if value >= 1e-4 else "< 0.0001"


def settings_section(results: Results, extra: dict[str, Any]) -> str:
    shown = [_table(extra["provenance"])]
    common, varied = split_settings(results.runs)
    if common:
        shown.append("<details><summary>Settings that all runs share</summary>")
        shown.append(_table(common) + "</details>")
    if varied:
        shown.append("<details><summary>Settings that differ between runs</summary>")
        shown.append(_table({k: ", ".join(v) for k, v in varied.items()}) + "</details>")
    failed = [run for run in results.runs if run.status == "failed"]
    for run in failed[:MOST_ERRORS]:
        name = ", ".join(f"{k} {v}" for k, v in {**run.labels, "seed": run.seed}.items())
        text = f"<details><summary>Failed: {escape(name)}</summary>"
        shown.append(f"{text}<pre>{escape(run.error or '')}</pre></details>")
    if len(failed) > MOST_ERRORS:
        shown.append(f"<p>and {len(failed) - MOST_ERRORS} more failed runs.</p>")
    shown += [f"<p>{escape(problem)}</p>" for problem in results.problems]
    return "".join(shown)


def _table(values: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(str(k))}</th><td class="text">{escape(_value(v))}</td></tr>'
        for k, v in values.items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def split_settings(runs: list[Result]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Settings that are the same everywhere, and the values of those that are not."""
    seen: dict[str, dict[str, Any]] = {}
    for run in runs:
        for key, value in _flat(run.config):
            seen.setdefault(key, {})[json.dumps(value)] = value
    common = {k: next(iter(v.values())) for k, v in seen.items() if len(v) == 1}
    varied = {k: _few(sorted(v, key=lambda x: (len(x), x))) for k, v in seen.items() if len(v) > 1}
    return common, varied


def _few(values: list[str]) -> list[str]:
    return values if len(values) <= 12 else [*values[:10], "...", values[-1]]


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in tree.items():
        found += (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
        )
    return found
