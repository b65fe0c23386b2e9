"""`longtail report`: read the runs, write tables, figures and the page, show the table."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from longtail.names import METRICS
from longtail.report import checks, figures, finding, formats, page, papers, statistics, tables
from longtail.report.finding import Finding
from longtail.report.groups import Group, group, paired_runs, pairs
from longtail.report.labelling import CHOOSES
from longtail.report.provenance import provenance
from longtail.report.results import Results, load
from longtail.report.selection import as_json, select, without_selection
from longtail.runs.files import StudyFiles
from longtail.support.console import Console
from longtail.support.mark import take_for_report

_STYLES = {"holds": "green", "fails": "bold red", "undecided": "yellow"}
FILES = ("table.json", "table.md", "table.tex", "table.csv", "table.txt", "report.html", "figures")
INSTALL = "pip install 'longtail[report]' for figures and the page"


@dataclass(frozen=True)
class ReportOptions:
    """What is asked of a report.

    Args:
        folder: of runs, at any depth.
        out: where to write; the folder itself where none is given.
        title: of the tables and the page.
        paper: the paper's table whose numbers are shown beside ours.
        parquet: file to export every score to.
        select: show only the best value of the study's [select] key.
        figures: write the figures.
        page: write report.html.
        json: print table.json, nothing else.
        quiet: print only the paths.
        study: a study file whose checks may run, whatever module they are in.
        trust: run every check that the folder names, with the modules they are in.
    """

    folder: Path
    out: Path | None = None
    title: str | None = None
    paper: str | None = None
    parquet: Path | None = None
    select: bool = True
    figures: bool = True
    page: bool = True
    json: bool = False
    quiet: bool = False
    study: Path | None = None
    trust: bool = False


@dataclass(frozen=True)
class Written:
    """A report that has been written.

    Args:
        paths: the main files by kind: ``written["page"]`` is one of them.
        table: what it shows.
        claims: what the checks said, each with its verdict and numbers.
        finding: the sentence that all of it comes to.
    """

    paths: dict[str, Path]
    table: tables.Table
    claims: list[checks.Claim]
    finding: Finding

    def __getitem__(self, kind: str) -> Path:
        return self.paths[kind]

    def __contains__(self, kind: str) -> bool:
        return kind in self.paths


def make_report(options: ReportOptions) -> int:
    """Exit code 0, or 2 where there is nothing to report."""
    results = load(options.folder)
    results.trusted = _trusted(options, results)
    if not results.runs and not results.problems:
        raise ValueError(f"{results.state} Nothing is written.")
    if options.paper:
        papers.unit(options.paper)  # an unknown name is refused before any work
    out = options.out or options.folder
    _take(results, out)
    if options.parquet:
        from longtail.report.export import write_parquet

        rows = write_parquet(results, options.parquet)
        print(f"{rows:,} scores in {options.parquet}", file=sys.stderr)
    if not options.select:
        without_selection(results)
    if options.title or options.paper:
        wanted = {"title": options.title, "paper": options.paper}
        report = {**results.plan.get("report", {}), **{k: v for k, v in wanted.items() if v}}
        results.plan = {**results.plan, "report": report}
    if options.paper:
        papers.unit(options.paper)  # an unknown name is refused before any work
    written = write(
        results,
        out,
        with_figures=options.figures,
        with_page=options.page,
    )
    if options.json:
        sys.stdout.write(written["json"].read_text(encoding="utf-8"))
    else:
        show(results, written, Console(), quiet=options.quiet)
    return 0 if results.finished else 2


def _trusted(options: ReportOptions, results: Results) -> frozenset[str]:
    """The checks by import path that may run: those of a study file that a person named, or all."""
    named = frozenset(results.asked_checks) if options.trust else frozenset()
    if options.study is None:
        return named
    try:
        content = tomllib.loads(options.study.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--study {options.study}: there is no such file") from None
    except (ValueError, IsADirectoryError) as error:
        raise ValueError(f"--study {options.study} is not a TOML file: {error}") from None
    report = content.get("report")
    found = report.get("checks", []) if isinstance(report, dict) else []
    if not isinstance(found, list):
        raise ValueError(f"--study {options.study}: report.checks must be a list, got {found!r}")
    return named | {name for name in found if isinstance(name, str)}


def write(
    results: Results,
    out: Path,
    *,
    with_figures: bool | Collection[str] = True,
    with_page: bool = True,
) -> Written:
    """Writes all of the report below `out`.

    Args:
        with_figures: all figures, none, or those of these names.
    """
    _take(results, out)
    tried = select(results)
    groups = group(results.runs)
    for run_ in results.finished if with_figures or with_page else ():
        _ = run_.scores  # read now, so that the page can name what cannot be read
    table = tables.build(results, groups)
    first, second = pair_of(results)
    judged, shown = _judged(groups, table)
    claims, skipped = claims_of(results, judged, shown)
    found = finding.finding(judged, shown, claims)
    tests = compare_policies(judged, (first, second), table.unit)
    extra = {"finding": found.text, "checks": claims, "statistics": tests}
    if selection := as_json(tried, table.unit):
        extra["selection"] = selection
    extra["provenance"] = provenance(results)
    if skipped:
        extra["skipped_checks"] = skipped
        results.problems.append(
            f"Not run: {', '.join(skipped)}. Only the folder's {StudyFiles.PLAN} names them, and a "
            "check is code: name the study's file with --study FILE, or say --trust."
        )
    paths = {p.suffix[1:]: p for p in formats.write_all(table, extra, out)}
    written = Written(paths, table, claims, found)
    if groups and (with_figures or with_page):
        try:
            import bokeh  # noqa: F401
            import matplotlib  # noqa: F401
        except ImportError:
            results.problems.append(f"No figures and no page: {INSTALL}")
            return written
    if groups and with_figures:
        names = figures.NAMES if with_figures is True else with_figures
        for path in figures.write(groups, table, out / "figures", (first, second), names):
            paths.setdefault("figures", path.parent)
    if with_page:
        paths["page"] = out / "report.html"
        page.write(paths["page"], results, groups, table, extra, found, (first, second))
    return written


def _take(results: Results, out: Path) -> None:
    """Mark the folder that a report is written to, or refuse it before anything is written."""
    source = out.exists() and out.samefile(results.folder)
    take_for_report(out, FILES, source=source)
    figures_folder = out / "figures"
    if figures_folder.is_symlink():
        raise ValueError(f"{figures_folder} is a link, and figures are written through none")


def _judged(groups: list[Group], table: tables.Table) -> tuple[list[Group], tables.Table]:
    """Without the lines of seeds that only chose the settings of others."""
    rows = [row for row in table.rows if not row.get(CHOOSES)]
    return [g for g in groups if not g.labels.get(CHOOSES)], replace(table, rows=rows)


def pair_of(results: Results) -> tuple[str, str]:
    """The two policies, or rows, that figures and statistics compare: ours first."""
    first, second = results.plan.get("report", {}).get("pair", finding.MC)
    return first, second


def claims_of(
    results: Results, groups: list[Group], table: tables.Table
) -> tuple[list[checks.Claim], list[str]]:
    """What the study's checks say, or those for runs that ask for none; and which were not run."""
    ours, skipped = checks.runnable(results.asked_checks, results.trusted)
    if not groups or (not results.asked_checks and results.plan.get("unselected")):
        return [], skipped  # by test scores the values of [select] are not compared
    if not results.asked_checks:
        return finding.default_claims(groups, table, pair_of(results)), skipped
    return checks.run(ours, table.rows), skipped


def compare_policies(groups: list[Group], pair: tuple[str, str], unit: str) -> list[dict[str, Any]]:
    """With against without MC, seed by seed, for each method and metric."""
    scale = 100.0 if unit == "percent" else 1.0
    compared = []
    for a, b in pairs(groups, *pair):
        runs = paired_runs(a, b)
        by_seed = {
            m: [(x.metric(m) * scale, y.metric(m) * scale) for x, y in runs] for m in METRICS
        }
        compared.append(Compared(a.labels, a.runs[0].higher_is_better, by_seed))
    return paired_tests(compared, pair)


class Compared(NamedTuple):
    """Two rows that differ in their policy: by metric, the two scores of every seed they share."""

    labels: dict[str, Any]
    higher_is_better: bool
    by_seed: dict[str, list[tuple[float, float]]]


def paired_tests(compared: Iterable[Compared], pair: tuple[str, str]) -> list[dict[str, Any]]:
    """The test of every metric of every two rows; p-values are corrected within a metric."""
    found = []
    for labels, higher_is_better, by_seed in compared:
        rest = {k: v for k, v in labels.items() if k != "policy"}
        for metric, scores in by_seed.items():
            first, second = np.array(scores).reshape(-1, 2).T
            higher = higher_is_better != (metric == "FGT")
            result = statistics.paired(first, second, higher_is_better=higher)
            if result.n:
                found.append({**rest, "pair": list(pair), "metric": metric, **asdict(result)})
    for metric in METRICS:
        rows = [row for row in found if row["metric"] == metric]
        for row, p in zip(rows, statistics.holm([r["p"] for r in rows]), strict=True):
            row["p_holm"] = p
    return found


def show(results: Results, written: Written, console: Console, *, quiet: bool) -> None:
    """Prints the table, what the checks said and the finding, then problems and paths."""
    if not results.finished:
        console.print(Text(f"{results.state} Nothing to put into a table yet."))
    if not quiet and results.finished:
        # A pipe has no width to keep to.
        wide = console if console.is_terminal else Console(width=1000)
        formats.print_terminal(written.table, wide)
        for entry in written.claims:
            word = entry["verdict"]
            mark = Text(f"{word:11}", style=_STYLES[word])
            text = mark + Text(f"{entry['claim']}  {_numbers(entry['numbers'])}")
            console.print(text, soft_wrap=not console.is_terminal)
        found = written.finding
        said = Text(found.text, style="bold") + Text(f" {found.note}", style="dim")
        console.print(said, soft_wrap=not console.is_terminal)
    for problem in results.problems:
        console.print(Text(problem, style="yellow"))
    for kind in ("page", "figures", "md"):
        if kind in written:
            console.print(Text(f"{kind:8}{written[kind]}"), soft_wrap=True)


def _numbers(numbers: dict[str, Any]) -> str:
    shown = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in numbers.items()}
    return ", ".join(f"{k} {v}" for k, v in shown.items())
