"""`longtail study`: plan, execute what is not finished, report."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from longtail.report.reading import read_plan
from longtail.runs.loggers import require
from longtail.study.display import Overview, overview
from longtail.study.file import Planned, Study, expand, matching, read
from longtail.study.jobs import Job, Options, finished_ids, make_jobs, name
from longtail.study.schema import check_report
from longtail.support.files import FolderLock, write_atomic, write_json

MOST_SHOWN = 200


def run(args: argparse.Namespace, command: str) -> int:
    """Exit code 0 when all wanted runs are finished, 1 when one failed."""
    _check_flags(args)
    study = read(args.file, args.seeds)
    planned = expand(study)
    check_report(study.report, [run.labels for run in planned])
    wanted = matching(planned, args.only)
    if not wanted:
        raise ValueError(f"no run of {args.file} matches {' '.join(args.only)}")
    out = args.out or Path("runs") / study.name
    before = read_plan(out, [])
    earlier = before.get("stacks", {})
    jobs = make_jobs(
        wanted, out, stack=study.stack, earlier=earlier, device=args.device, workers=args.jobs
    )
    if args.dry_run:
        return dry_run(study, wanted, jobs, out, args)
    with FolderLock(out):
        write_atomic(out / "study.toml", args.file.read_bytes())  # which it may be itself
        listed = with_earlier(study, planned, before, finished_ids(out))
        plan = make_plan(study, args.file, listed, jobs, earlier)
        write_json(out / "plan.json", {**plan, "command": command})
        done = len(wanted) - sum(len(job.configs) for job in jobs)
        shown = overview(jobs, done, quiet=args.quiet, as_json=args.json)
        if jobs:
            execute_jobs(jobs, out, study, args, shown)
    return conclude(out, shown, args)


def _check_flags(args: argparse.Namespace) -> None:
    """Refuses here what every job would otherwise fail with, one after the other."""
    if args.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
    if not args.snapshot_minutes >= 0:
        raise ValueError(f"--snapshot-minutes must not be negative, got {args.snapshot_minutes}")
    if args.engine != "ray" and (args.address is not None or args.storage != "shared"):
        raise ValueError("--address and --storage are for --engine ray")
    if args.engine == "ray" and find_spec("ray") is None:
        raise ValueError("The Ray engine needs Ray: pip install 'longtail[ray]'")
    for tool in args.log:
        require(tool)


def with_earlier(
    study: Study, planned: list[Planned], before: dict[str, Any], done: set[str]
) -> list[Planned]:
    """The runs of now, and finished ones that this study stood for with other seeds."""
    entries = [e for e in before.get("runs", []) if before.get("name") == study.name]
    if not entries and study.seeds == sorted(study.seeds):
        return planned
    seeds = {e["seed"] for e in entries if type(e.get("seed")) is int} | set(study.seeds)
    keep = {e["id"] for e in entries if e["id"] in done} | {run.id for run in planned}
    return [run for run in expand(replace(study, seeds=sorted(seeds))) if run.id in keep]


def make_plan(
    study: Study,
    file: Path,
    planned: list[Planned],
    jobs: list[Job],
    earlier: dict[str, list[str]],
) -> dict[str, Any]:
    """What the report needs to know, and which runs share a stack."""
    stacks = {job.id: [c.id for c in job.configs] for job in jobs if job.stacked}
    return {
        "name": study.name,
        "file": file.name,
        "report": study.report,
        "select": study.select,
        "runs": [{"id": run.id, "seed": run.config.seed, "labels": run.labels} for run in planned],
        "stacks": {**earlier, **stacks},
    }


def execute_jobs(
    jobs: list[Job], out: Path, study: Study, args: argparse.Namespace, shown: Overview
) -> None:
    cpus = study.resources.get("cpus")
    options = Options(
        args.device, max(1, int(cpus)) if cpus else None, args.snapshot_minutes, tuple(args.log)
    )
    with shown:
        if args.engine == "ray":
            from longtail.study.ray_engine import run_ray

            run_ray(
                jobs,
                out,
                options,
                shown,
                study.resources,
                address=args.address,
                storage=args.storage,
            )
        elif args.jobs > 1 and len(jobs) > 1:
            from longtail.study.local import run_local

            run_local(jobs, out, options, shown, args.jobs)
        else:
            from longtail.study.local import run_here

            run_here(jobs, out, options, shown)


def conclude(out: Path, shown: Overview, args: argparse.Namespace) -> int:
    """The summary, the failures and the report."""
    failed = [(job, s) for job in shown.jobs if (s := shown.states[job.id]).status == "failed"]
    if not args.json:
        for job, state in failed:
            where = out / job.folder / "error.json"
            print(f"longtail: {job.name} failed: {state.error} ({where})", file=sys.stderr)
        if not args.quiet:
            print(shown.summary())
    if not args.no_report:
        from longtail.report.command import show, write
        from longtail.report.results import load

        results = load(out)
        written = write(results, out)
        if not args.json:
            show(results, {} if args.quiet else written, Console(), quiet=args.quiet)
    return 1 if failed else 0


def dry_run(
    study: Study, wanted: list[Planned], jobs: list[Job], out: Path, args: argparse.Namespace
) -> int:
    """Every run with its id and state, then what executing the rest would take."""
    of = {config.id: job for job in jobs for config in job.configs}
    if args.json:
        for run in wanted:
            job = of.get(run.id)
            entry = {
                "id": run.id,
                **run.labels,
                "seed": run.config.seed,
                "finished": run.id not in of,
            }
            print(json.dumps({**entry, "folder": job.folder if job else None}))
        return 0
    table = Table(box=None, pad_edge=False)
    for head in ("id", "run", "state"):
        table.add_column(head)
    for run in wanted[:MOST_SHOWN]:
        job = of.get(run.id)
        state = "finished" if job is None else f"in stack {job.id}" if job.stacked else "to do"
        table.add_row(run.id, Text(name(run)), state)
    console = Console()
    console.print(table)
    if len(wanted) > MOST_SHOWN:
        console.print(f"and {len(wanted) - MOST_SHOWN} more (all of them with --json)")
    stacks = sum(job.stacked for job in jobs)
    count = sum(len(job.configs) for job in jobs)
    text = f"{len(wanted)} runs, {len(wanted) - count} finished; to do: {count} runs in {stacks} "
    console.print(Text(text + f"stacks and {len(jobs) - stacks} single runs, below {out}"))
    if jobs and not args.quiet:
        from longtail.study.estimate import estimate

        console.print(Text(estimate(jobs, args.jobs, args.device)))
    return 0
