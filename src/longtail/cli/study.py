"""`longtail study`: train all runs of a study file that are not finished, then report."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from longtail.cli.parser import folder
from longtail.cli.run import NO_WEIGHTS, add_freshness
from longtail.support import threads

EXAMPLES = """examples:
  longtail study table1 --dry-run                         the runs it stands for, and an estimate
  longtail study table1 --out runs/table1                 execute what is not finished, then report
  longtail study table1 --show > my.toml                  a copy of its file, to change
  longtail study my.toml --only 'method=derpp' --jobs 4   some of the runs, in four processes
  longtail study my.toml --engine ray --address auto      the same runs on a Ray cluster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "file", metavar="STUDY", help="a name from `longtail list`, or a study file (TOML)"
    )
    parser.add_argument("--show", action="store_true", help="print the study's file, run nothing")
    parser.add_argument(
        "--out", type=folder, help="study folder (default: runs/<name of the study>)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the runs, execute nothing")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="execute only matching runs; may be given more than once (study=NAME: of several)",
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="run the reported seeds at the values alone that the seeds of [select] found best",
    )
    parser.add_argument(
        "--choose", action="store_true", help="train the seeds of [select] first, then as --best"
    )
    parser.add_argument("--seeds", help="other seeds than the file's, such as 0-4 or 0,3,7")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="local processes")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: auto)")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--address", help="Ray cluster, such as auto (default: start a local one)")
    parser.add_argument(
        "--storage",
        choices=["shared", "fetch"],
        default="shared",
        help="with Ray: the study folder is on storage all workers share, or is fetched back",
    )
    parser.add_argument(
        "--snapshot-minutes",
        type=float,
        default=2.0,
        metavar="M",
        help="least time between snapshots (default: 2); inf: none",
    )
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="TOOL",
        help="also log to tensorboard, wandb or mlflow; may be given more than once",
    )
    add_freshness(parser)
    parser.add_argument(
        "--stop-on-nan",
        action="store_true",
        help="a run whose weights or losses become infinite or NaN fails; the others go on",
    )
    parser.add_argument("--no-weights", action="store_true", help=NO_WEIGHTS)
    parser.add_argument("--no-report", action="store_true", help="leave out tables and page")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")


def main(args: argparse.Namespace) -> int:
    if args.jobs > 1:  # and before anything imports torch
        threads.share_cores()
    from longtail.study.command import StudyOptions, run_study
    from longtail.study.jobs import JobOptions
    from longtail.study.named import study_file

    file = study_file(args.file)
    if args.show:
        print(file.read_text("utf-8"), end="")
        return 0
    options = StudyOptions(
        file=file,
        out=args.out,
        seeds=args.seeds,
        only=tuple(args.only),
        best=args.best,
        choose=args.choose,
        dry_run=args.dry_run,
        engine=args.engine,
        processes=args.jobs,
        address=args.address,
        storage=args.storage,
        jobs=JobOptions(
            args.device,
            None,
            args.snapshot_minutes,
            stop_on_nan=args.stop_on_nan,
            log=tuple(args.log),
            keep=args.keep,
            fresh=args.fresh,
            weights=not args.no_weights,
        ),
        report=not args.no_report,
        command=command_line(args),
        json=args.json,
        quiet=args.quiet,
    )
    return run_study(options)


def command_line(args: argparse.Namespace) -> str:
    """The command with the arguments that are not defaults; of absolute paths the last part."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["longtail", "study"]
    for action in parser._actions:
        value = getattr(args, action.dest, action.default)
        if value == action.default or action.dest == "help":
            continue
        for one in value if isinstance(value, list) else [value]:
            words += action.option_strings[-1:]
            if one is not True:
                path = Path(str(one))
                words.append(path.name if path.is_absolute() else str(one))
    return shlex.join(words)
