"""`longtail study`: plan, train what is not finished, report."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from longtail.report import read, require
from longtail.report.labelling import AVERAGES, BESIDE, average_labels, told_seeds
from longtail.report.reading import read_plan
from longtail.report.select import chosen_by, labels_of, place
from longtail.runs import fingerprint, loggers
from longtail.runs.config import cannot_stack
from longtail.runs.files import StudyFiles
from longtail.study.collection import parts_asked, read_collection
from longtail.study.display import Overview, overview
from longtail.study.estimate import estimate
from longtail.study.expand import Planned, expand, matching
from longtail.study.file import Study, check_report, read_study
from longtail.study.jobs import Job, JobOptions, finished_runs, make_jobs, name
from longtail.study.local import train_jobs_here, train_jobs_in_processes
from longtail.study.ray_engine import train_jobs_on_ray
from longtail.study.reuse import Survey, begun_runs, survey
from longtail.support.console import Console
from longtail.support.devices import choose_device
from longtail.support.mark import Mark, read_mark, refuse_strangers, taken, write_mark

MOST_SHOWN = 200


@dataclass(frozen=True)
class StudyOptions:
    """What is asked of a study.

    Args:
        file: the study file.
        out: the study's folder; `runs/<name of the study>` where none is given.
        seeds: other seeds than the file's.
        only: conditions that the runs to train meet.
        best: train the reported seeds at the values alone that the seeds of [select] found best.
        choose: train the seeds of [select] first, then as with `best`.
        dry_run: print the runs and train nothing.
        engine: `local` or `ray`.
        processes: how many of them share the work on this machine.
        address: of a Ray cluster; None starts one here.
        storage: of Ray's workers: `shared` or `fetch`.
        jobs: how each job is trained.
        report: write tables and page at the end.
        command: the command line, for the report's provenance.
        json: print JSON lines.
        quiet: print only warnings and errors.

    Raises:
        ValueError: for what every job would otherwise fail with, one after the other.
    """

    file: Path
    out: Path | None = None
    seeds: str | None = None
    only: tuple[str, ...] = ()
    best: bool = False
    choose: bool = False
    dry_run: bool = False
    engine: str = "local"
    processes: int = 1
    address: str | None = None
    storage: str = "shared"
    jobs: JobOptions = field(default_factory=JobOptions)
    report: bool = True
    command: str = "longtail study"
    json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ValueError(f"--jobs must be at least 1, got {self.processes}")
        if self.engine != "ray" and (self.address is not None or self.storage != "shared"):
            raise ValueError("--address and --storage are for --engine ray")
        if self.engine == "ray" and find_spec("ray") is None:
            raise ValueError("The Ray engine needs Ray: pip install 'longtail[ray]'")
        if self.report or self.best or self.choose:
            require()  # before hours of training
        for tool in self.jobs.log:
            loggers.require(tool)


def run_study(options: StudyOptions) -> int:
    """Exit code 0 when all wanted runs are finished, 1 when one failed.

    Of a file that names several studies a failed run ends its own part alone.
    """
    collection = read_collection(options.file)
    if collection is None:
        return choose_and_train(options) if options.choose else train_study(options)
    out = options.out or Path("runs") / collection.name
    parts = []
    for part, only in parts_asked(collection, options.only, options.seeds).items():
        file = collection.parts[part]
        study = read_study(file, options.seeds)
        if options.best and not options.choose:  # what it would refuse, before any part begins
            at_best(study, matching(expand(study), only), out / part)
        choose = options.choose and bool(study.select.get("seeds"))
        parts.append(replace(options, file=file, out=out / part, only=only, choose=choose))
    codes = []
    refuse_strangers(out, "studies")
    try:
        for one in parts:
            if options.json:
                print(json.dumps({"event": "study", "file": str(one.file), "folder": str(one.out)}))
            elif not options.quiet:
                print(f"{one.file}, in {one.out}", flush=True)
            codes.append(choose_and_train(one) if one.choose else train_study(one))
    finally:  # a part that was refused has made no folder
        if out.is_dir() and read_mark(out) is None:
            write_mark(out, Mark("studies"))
    return max(codes)


def choose_and_train(options: StudyOptions) -> int:
    """The seeds of [select] over the whole grid, then the others at the values they found best.

    Where some of the former fail, those that are left choose.
    """
    study = read_study(options.file, options.seeds)
    choosing = study.select.get("seeds")
    if not choosing:
        raise ValueError("--choose: [select] of the study file names no seeds to choose by")
    seeds = f"seed={','.join(map(str, choosing))}"
    only = (*(text for text in options.only if not text.startswith("seed=")), seeds)
    first = replace(options, choose=False, best=False, only=only, report=False)
    failed = train_study(first)
    if options.dry_run:
        done = finished_runs(options.out or Path("runs") / study.name)
        if any(run.id not in done for run in matching(expand(study), only)):
            print("The other seeds are planned when these are finished.", file=sys.stderr)
            return 0
    return max(failed, train_study(replace(options, choose=False, best=True)))


def train_study(options: StudyOptions) -> int:
    """One study file; as `run_study`."""
    asked = asked_for(options)
    study, files = asked.study, StudyFiles(options.out or Path("runs") / asked.study.name)
    if options.dry_run:
        folder = survey_folder(asked, files, options)
        show_plan(folder, files.folder, options, stack=study.stack)
        return 0
    with taken(files.folder, files.KIND, files.names()) as held:
        try:
            files.refuse_links()
            folder = survey_folder(asked, files, options)
        except Exception:  # nothing has been written yet
            held.leave_nothing()
            raise
        shown = train_missing(study, folder, files, options)
    failed = show_end(files.folder, shown, options)
    if options.report:
        write_report(files.folder, options, frozenset(study.report.get("checks", ())))
    return 1 if failed else 0


@dataclass(frozen=True)
class Asked:
    """What the study file and the flags ask for, whatever is there already.

    Args:
        study: the file.
        planned: the runs that the study's tables show.
        wanted: those of them that are to be trained.
    """

    study: Study
    planned: list[Planned]
    wanted: list[Planned]


def asked_for(options: StudyOptions) -> Asked:
    """Read the study file and choose the runs that the flags want.

    Raises:
        ValueError: the file has a mistake, no run meets the conditions, or there is no such device.
    """
    study = read_study(options.file, options.seeds)
    planned = expand(study)
    check_report(study.report, [run.labels for run in planned])
    wanted = matching(planned, options.only)
    if not wanted:
        raise ValueError(f"no run of {options.file} matches {' '.join(options.only)}")
    choose_device(options.jobs.device)
    return Asked(study, planned, wanted)


@dataclass(frozen=True)
class Surveyed:
    """What the study's folder holds, and what is left to do.

    Args:
        wanted: the runs that are to be finished at the end.
        listed: the runs that the study's tables show, those of earlier seeds too.
        found: which of them are used again, and which are computed anew.
        jobs: the training that is left.
        stacks: that were begun earlier and go on, with the ids of their runs.
    """

    wanted: list[Planned]
    listed: list[Planned]
    found: Survey
    jobs: list[Job]
    stacks: dict[str, list[str]]


def survey_folder(asked: Asked, files: StudyFiles, options: StudyOptions) -> Surveyed:
    """Look at what is there; where runs will be trained, only while the folder is locked.

    Another process that ends later would have written more than was read here.
    """
    study, planned, wanted = asked.study, asked.planned, asked.wanted
    before = read_plan(files.folder, [])
    if options.best:
        wanted = at_best(study, wanted, files.folder)
        kept = {run.id for run in wanted}
        choosing = study.select["seeds"]
        planned = [run for run in planned if run.id in kept or run.config.seed in choosing]
    stacks = before.get("stacks", {})
    finished = finished_runs(files.folder)
    listed = with_earlier(study, planned, before, set(finished))
    begun = begun_runs(files, wanted, stacks)
    found = survey(wanted, listed, finished, begun, fresh=options.jobs.fresh)
    if options.jobs.keep:
        found.refuse_anew()
    anew = {run.id for runs in found.anew.values() for run in runs}
    stacks = {i: members for i, members in stacks.items() if not anew & {*members}}
    jobs = make_jobs(
        wanted,
        files.folder,
        done=found.done,
        stack=study.stack,
        earlier=stacks,
        device=options.jobs.device,
        workers=options.processes,
    )
    return Surveyed(wanted, listed, found, jobs, stacks)


def train_missing(
    study: Study, folder: Surveyed, files: StudyFiles, options: StudyOptions
) -> Overview:
    """Write the plan and train what is left, in a folder that this process holds."""
    jobs, found = folder.jobs, folder.found
    show_reuse(found, options)
    found.make_room(files, folder.stacks)
    files.write_study(options.file.read_bytes())  # which it may be itself
    plan = make_plan(study, options.file, folder.listed, jobs, folder.stacks)
    files.write_plan({**plan, "command": options.command})
    done = len(folder.wanted) - sum(len(job.configs) for job in jobs)
    shown = overview(jobs, done, quiet=options.quiet, as_json=options.json)
    if jobs:
        with shown:
            train_jobs(jobs, files.folder, study.resources, options, shown)
    return shown


def show_reuse(found: Survey, options: StudyOptions) -> None:
    """Says which finished runs are used again and which are not, and why."""
    for kind, runs, text in found.sentences():
        if options.json:
            print(json.dumps({"event": kind, "runs": [run.id for run in runs], "why": text}))
        elif kind != "reused":
            print(f"longtail: {text}", file=sys.stderr)
        elif not options.quiet:
            print(text, flush=True)


def at_best(study: Study, wanted: list[Planned], folder: Path) -> list[Planned]:
    """Of the runs to train those with the values that the seeds of [select] found best.

    Args:
        study: that chooses.
        wanted: the runs to choose among.
        folder: of the runs of the seeds that choose.

    Raises:
        ValueError: [select] names no seeds, or none of them has been trained.
    """
    choosing = study.select.get("seeds")
    if not choosing:
        raise ValueError("--best: [select] of the study file names no seeds to choose by")
    keys = labels_of({"select": study.select, "runs": [{"labels": run.labels} for run in wanted]})
    best = chosen_by(read(folder)).best if folder.is_dir() else {}
    kept, missing = [], set()
    for run in wanted:
        families = {}
        for labels in rows_of(run, beside=study.report.get("average") == BESIDE):
            family, value = place(labels, keys)
            families[family] = value
        missing |= families.keys() - best.keys()
        chosen = any(best.get(family) == value for family, value in families.items())
        if chosen and run.config.seed not in choosing:
            kept.append(run)
    if missing:
        rows = "1 row has" if len(missing) == 1 else f"{len(missing)} rows have"
        raise ValueError(
            f"--best: {rows} no finished run of {told_seeds(choosing)}: train these first, with "
            f"--only seed={','.join(map(str, choosing))}, or take --choose"
        )
    return kept


def rows_of(run: Planned, *, beside: bool) -> list[dict[str, Any]]:
    """The labels of the rows that a run will stand in: its average has one too where it may."""
    average = run.config.train.average
    return [
        run.labels,
        *([average_labels(run.labels, average)] if beside and average in AVERAGES else []),
    ]


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
    } | ({"code": code} if (code := code_of(planned)) else {})


def code_of(runs: list[Planned]) -> dict[str, str]:
    """The user's source files behind the runs of a study, and their SHA-256, as they are now."""
    code: dict[str, str] = {}
    for run in runs:
        code |= fingerprint.code_of(run.config)
    return code


def train_jobs(
    jobs: list[Job],
    out: Path,
    resources: dict[str, float],
    options: StudyOptions,
    shown: Overview,
) -> None:
    """Trains all jobs where the options say."""
    cpus = resources.get("cpus")
    # there is room already, and a job that goes on must not begin again
    how = replace(options.jobs, fresh=False, threads=max(1, int(cpus)) if cpus else None)
    if options.engine == "ray":
        address, storage = options.address, options.storage
        train_jobs_on_ray(jobs, out, how, shown, resources, address=address, storage=storage)
    elif options.processes > 1 and len(jobs) > 1:
        train_jobs_in_processes(jobs, out, how, shown, options.processes)
    else:
        train_jobs_here(jobs, out, how, shown)


def show_end(out: Path, shown: Overview, options: StudyOptions) -> bool:
    """Prints what failed and how many runs were computed; whether any failed."""
    failed = [(job, s) for job in shown.jobs if (s := shown.states[job.id]).status == "failed"]
    if not options.json:
        for job, state in failed:
            details = job.files(out).error
            where = f" ({details})" if details.exists() else ""  # not in a folder of others
            print(f"longtail: {job.name} failed: {state.error}{where}", file=sys.stderr)
        if not options.quiet:
            print(shown.summary())
    return bool(failed)


def write_report(out: Path, options: StudyOptions, trusted: frozenset[str]) -> None:
    """Writes tables, figures and the page into the study's folder, and shows the table.

    Args:
        trusted: the checks of the study file, which may be in anybody's module.
    """
    from longtail.report.command import show, write

    written = write(read(out), out, trusted=trusted)
    if not options.json:
        shown = replace(written, paths={}) if options.quiet else written
        show(shown, Console(), quiet=options.quiet)


def _state(run: Planned, job: Job | None, stack: bool) -> str:
    if job is None:
        return "finished"
    if job.stacked:
        return f"in stack {job.id}"
    reason = cannot_stack(run.config) if stack else None
    return f"to do, alone: {reason}" if reason else "to do"


def show_plan(folder: Surveyed, out: Path, options: StudyOptions, *, stack: bool) -> None:
    """Prints every run with its id and state, then how long the rest takes."""
    wanted, jobs, found = folder.wanted, folder.jobs, folder.found
    anew = {run.id: why for why, runs in found.anew.items() for run in runs}
    of = {config.id: job for job in jobs for config in job.configs}
    if options.json:
        for run in wanted:
            job = of.get(run.id)
            entry = {
                "id": run.id,
                **run.labels,
                "seed": run.config.seed,
                "finished": run.id not in of,
            }
            further = {"alone": reason} if stack and (reason := cannot_stack(run.config)) else {}
            further |= {"anew": anew[run.id]} if run.id in anew else {}
            print(json.dumps({**entry, "folder": job.folder if job else None, **further}))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("id", "run", "state"):
        table.add_column(head)
    for run in wanted[:MOST_SHOWN]:
        job = of.get(run.id)
        state = _state(run, job, stack) + (f", {anew[run.id]}" if run.id in anew else "")
        table.add_row(run.id, Text(name(run)), Text(state))
    console = Console()
    console.print(table)
    if len(wanted) > MOST_SHOWN:
        console.print(f"and {len(wanted) - MOST_SHOWN} more (all of them with --json)")
    stacks = sum(job.stacked for job in jobs)
    count = sum(len(job.configs) for job in jobs)
    text = f"{len(wanted)} runs, {len(wanted) - count} finished; to do: {count} runs in {stacks} "
    console.print(Text(text + f"stacks and {len(jobs) - stacks} single runs, below {out}"))
    if jobs and not options.quiet:
        console.print(Text(estimate(jobs, found, options.processes)))
