"""`longtail report`: read the runs, write tables, figures and the page, show the table."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from longtail.report import figures, page, papers, text, verdicts
from longtail.report.checks import Claim
from longtail.report.frame import Frames, Line, read
from longtail.report.labelling import CHOOSES
from longtail.report.provenance import provenance
from longtail.report.select import as_json, select, without_selection
from longtail.report.table import Table, build
from longtail.report.verdicts import Finding
from longtail.runs.files import StudyFiles
from longtail.support.console import Console
from longtail.support.files import write_atomic
from longtail.support.mark import take_for_report

_STYLES = {"holds": "green", "fails": "bold red", "undecided": "yellow"}
FILES = ("table.json", "table.md", "table.tex", "table.csv", "report.html", "figures")


@dataclass(frozen=True)
class ReportOptions:
    """What is asked of a report.

    Args:
        folder: of runs, at any depth.
        out: where to write; the folder itself where none is given.
        title: of the tables and the page.
        paper: the paper's table whose numbers are shown beside ours.
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
        frames: the runs that it shows, and what there is to say of them.
        table: what it shows.
        claims: what the checks said, each with its verdict and numbers.
        finding: the sentence that all of it comes to.
        paths: the main files by kind: ``written["page"]`` is one of them.
    """

    frames: Frames
    table: Table
    claims: list[Claim]
    finding: Finding
    paths: dict[str, Path] = field(default_factory=dict)

    def __getitem__(self, kind: str) -> Path:
        return self.paths[kind]

    def __contains__(self, kind: str) -> bool:
        return kind in self.paths


def make_report(options: ReportOptions) -> int:
    """Exit code 0, or 2 where there is nothing to report."""
    frames = read(options.folder)
    trusted = _trusted(options, frames)
    if frames.stored.empty and not frames.problems:
        raise ValueError(f"{frames.state} Nothing is written.")
    if options.paper:
        papers.unit(options.paper)  # an unknown name is refused before any work
    out = options.out or options.folder
    _take(frames, out)
    if not options.select:
        frames = without_selection(frames)
    frames = frames.with_report(title=options.title or None, paper=options.paper or None)
    written = write(
        frames, out, with_figures=options.figures, with_page=options.page, trusted=trusted
    )
    if options.json:
        sys.stdout.write(written["json"].read_text(encoding="utf-8"))
    else:
        show(written, Console(), quiet=options.quiet)
    return 2 if frames.finished.empty else 0


def _trusted(options: ReportOptions, frames: Frames) -> frozenset[str]:
    """The checks by import path that may run: those of a study file that a person named, or all."""
    named = frozenset(verdicts.asked_checks(frames.plan)) if options.trust else frozenset()
    if options.study is None:
        return named
    try:
        content = tomllib.loads(options.study.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--study {options.study}: there is no such file") from None
    except (ValueError, IsADirectoryError) as error:
        raise ValueError(f"--study {options.study} is not a TOML file: {error}") from None
    report = content.get("report")
    asked = report.get("checks", []) if isinstance(report, dict) else []
    if not isinstance(asked, list):
        raise ValueError(f"--study {options.study}: report.checks must be a list, got {asked!r}")
    return named | frozenset(verdicts.asked_checks({"report": {"checks": asked}}))


def write(
    frames: Frames,
    out: Path,
    *,
    with_figures: bool | Collection[str] = True,
    with_page: bool = True,
    trusted: Collection[str] = (),
) -> Written:
    """Writes all of the report below `out`.

    Args:
        with_figures: all figures, none, or those of these names.
        with_page: whether report.html is written.
        trusted: checks by import path that a person named, which may run.
    """
    _take(frames, out)
    frames, choice = select(frames)
    table = build(frames)
    pair = verdicts.pair_of(frames.plan)
    lines, shown = _judged(frames, table)
    claims, skipped = verdicts.claims_of(frames.plan, shown, trusted)
    said = verdicts.finding(shown, claims)
    tests = verdicts.compare_policies(lines, pair)
    further: dict[str, Any] = {"finding": said.text, "checks": claims, "statistics": tests}
    if selection := as_json(choice, table.scale):
        further["selection"] = selection
    further["provenance"] = provenance(frames)
    if skipped:
        further["skipped_checks"] = skipped
        frames = frames.with_problems(
            f"Not run: {', '.join(skipped)}. Only the folder's {StudyFiles.PLAN} names them, and a "
            "check is code: name the study's file with --study FILE, or say --trust."
        )
    paths = text.write_all(table, further, out)
    write_atomic(out / "table.csv", text.as_csv(frames))
    drawn = list(figures.draw(frames.lines, table, pair)) if with_figures or with_page else []
    if with_figures and drawn:
        names = figures.NAMES if with_figures is True else with_figures
        figures.write(drawn, out / "figures", names)
        paths["figures"] = out / "figures"
    if with_page:
        paths["page"] = out / "report.html"
        beside = figures.of_finding(said, frames.lines, table, pair)
        content = page.Content(
            frames, table, claims, tests, said, further["provenance"], pair, beside, drawn
        )
        page.write(paths["page"], content)
    return Written(frames, table, claims, said, paths)


def _take(frames: Frames, out: Path) -> None:
    """Mark the folder that a report is written to, or refuse it before anything is written."""
    source = out.exists() and out.samefile(frames.folder)
    take_for_report(out, FILES, source=source)
    figures_folder = out / "figures"
    if figures_folder.is_symlink():
        raise ValueError(f"{figures_folder} is a link, and figures are written through none")


def _judged(frames: Frames, table: Table) -> tuple[list[Line], Table]:
    """Without the lines of seeds that only chose the settings of others."""
    rows = [row for row in table.rows if not row.get(CHOOSES)]
    return [line for line in frames.lines if not line.labels.get(CHOOSES)], replace(
        table, rows=rows
    )


def show(written: Written, console: Console, *, quiet: bool) -> None:
    """Prints the table, what the checks said and the finding, then problems and paths."""
    frames = written.frames
    if frames.finished.empty:
        console.print(Text(f"{frames.state} Nothing to put into a table yet."))
    elif not quiet:
        # A pipe has no width to keep to.
        wide = console if console.is_terminal else Console(width=1000)
        text.print_terminal(written.table, wide)
        for entry in written.claims:
            word = entry["verdict"]
            mark = Text(f"{word:11}", style=_STYLES[word])
            claim = mark + Text(f"{entry['claim']}  {_numbers(entry['numbers'])}")
            console.print(claim, soft_wrap=not console.is_terminal)
        said = Text(written.finding.text, style="bold")
        said += Text(f" {written.finding.note}", style="dim")
        console.print(said, soft_wrap=not console.is_terminal)
    for problem in frames.problems:
        console.print(Text(problem, style="yellow"))
    for kind in ("page", "figures", "md"):
        if kind in written:
            console.print(Text(f"{kind:8}{written[kind]}"), soft_wrap=True)


def _numbers(numbers: dict[str, Any]) -> str:
    shown = []
    for name, value in numbers.items():
        shown.append(f"{name} {page.short(value)}")
    return ", ".join(shown)
