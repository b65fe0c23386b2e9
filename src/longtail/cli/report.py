"""`longtail report`: tables, figures and a page from a folder of runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from longtail.cli.parser import folder

EXAMPLES = """examples:
  longtail report runs/table1                    tables, figures and report.html next to the runs
  longtail report runs/table1 --out /tmp/report  somewhere else
  longtail report runs --no-figures --no-page    the tables only

In Python: longtail.report.read("runs/table1") gives all scores as tables of pandas.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=folder, help="folder of runs, at any depth")
    parser.add_argument("--out", type=folder, help="where to write (default: the folder itself)")
    parser.add_argument("--title", help="title of the tables and the page")
    parser.add_argument("--paper", help="show the paper's numbers of this table beside ours")
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="TOOL",
        help="send finished runs to tensorboard, wandb or mlflow",
    )
    parser.add_argument(
        "--no-select", action="store_true", help="show every value of the study's [select] key"
    )
    parser.add_argument("--no-figures", action="store_true", help="skip the figures")
    parser.add_argument("--no-page", action="store_true", help="skip report.html")
    parser.add_argument(
        "--study", type=Path, metavar="FILE", help="a study file, whose own checks may then run"
    )
    parser.add_argument(
        "--trust", action="store_true", help="run whatever checks the folder names: they are code"
    )
    parser.add_argument("--json", action="store_true", help="print table.json, nothing else")
    parser.add_argument("--quiet", action="store_true", help="print only the paths")


def main(args: argparse.Namespace) -> int:
    from longtail.report import require as require_report

    require_report()
    if args.log:
        from longtail.runs.loggers import require

        for tool in args.log:  # an unknown name is refused before anything is written
            require(tool)
    from longtail.report.command import ReportOptions, make_report

    options = ReportOptions(
        folder=args.folder,
        out=args.out,
        title=args.title,
        paper=args.paper,
        select=not args.no_select,
        figures=not args.no_figures,
        page=not args.no_page,
        json=args.json,
        quiet=args.quiet,
        study=args.study,
        trust=args.trust,
    )
    code = make_report(options)
    if args.log:
        from longtail.report.labelling import run_name
        from longtail.report.reading import read_folder
        from longtail.study.logged import log_result  # and with it torch, which takes seconds

        # A run that stands twice, by its weights and then by their average, is logged as the first.
        logged: set[str] = set()
        for run, labels in read_folder(args.folder).runs:
            if run.status == "finished" and run.id not in logged:
                logged.add(run.id)
                log_result(run, args.log, args.out or args.folder, name=run_name(labels, run.seed))
    return code
