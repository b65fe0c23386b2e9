"""From the runs of a study to jobs: what is finished, what shares a stack, what one job does."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from longtail import benchmarks
from longtail.report.labelling import run_name
from longtail.report.reading import read_folder
from longtail.runs.config import RunConfig, cannot_stack, stack_key, variant_key
from longtail.runs.files import RunFiles, StackFiles, StudyFiles
from longtail.runs.loggers import logged
from longtail.runs.progress import Moment, Reporter
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail.runs.stacking import try_to_stack
from longtail.study.expand import Planned
from longtail.study.logged import log_result
from longtail.support.devices import choose_device, data_memory
from longtail.support.machine import commit


@dataclass(frozen=True)
class Job:
    """A run in `runs/<id>`, or several that train as one program in `stacks/<id>`."""

    id: str
    folder: str  # relative to the study's
    configs: tuple[RunConfig, ...]
    name: str
    names: tuple[str, ...] = ()  # of its runs

    @property
    def stacked(self) -> bool:
        return self.folder.startswith(f"{StudyFiles.STACKS}/")

    def files(self, out: Path) -> RunFiles | StackFiles:
        """Its files, where `out` is the study's folder."""
        return StackFiles(out / self.folder) if self.stacked else RunFiles(out / self.folder)


@dataclass(frozen=True)
class JobOptions(RunOptions):
    """How a study's jobs are trained; none of it changes a score."""

    log: tuple[str, ...] = ()  # tools of `loggers`
    log_apart: bool = False  # each job in its own folder, where no other is sent back


def finished_runs(out: Path) -> dict[str, RunFiles | StackFiles]:
    """The runs that have been computed, by their ids, and where."""
    found: dict[str, RunFiles | StackFiles] = {}
    for files in StudyFiles(out).finished():
        try:
            found |= dict.fromkeys(files.read_ids(), files)
        except (OSError, ValueError) as error:
            text = f"{files.result} cannot be read ({error}): what it stood for is not finished"
            print(f"longtail: {text}", file=sys.stderr)
    return found


def make_jobs(
    runs: Sequence[Planned],
    out: Path,
    *,
    done: Collection[str] = (),
    stack: bool,
    earlier: Mapping[str, list[str]],
    device: str = "cpu",
    workers: int = 1,
) -> list[Job]:
    """Jobs for all that is not finished.

    Args:
        runs: the runs wanted.
        out: the study's folder.
        done: ids of those that need not be computed again.
        stack: train runs as one program where the benchmark can.
        earlier: stacks that were begun before, {stack id: run ids}. They go on as they are, since
            their snapshots fit no other set of runs.
        device: where they will run, which says how much data a stack may hold.
        workers: processes to share the work: stacks are cut by seeds, on a CPU into as many parts,
            on a GPU, where a part takes about as long as the whole, until there is one for each.
    """
    missing = {run.id: run for run in runs if run.id not in done}
    jobs: list[Job] = []
    for identity, members in earlier.items():
        begun = StudyFiles(out).stack(identity).has_snapshots()
        if begun and all(member in missing for member in members):
            jobs.append(_stack([missing.pop(member) for member in members], identity))
    single: list[Planned] = []
    memory, gpu = data_memory(device), choose_device(device).type == "cuda"
    for group in (
        _stackable(missing.values(), memory, workers, gpu) if stack else [list(missing.values())]
    ):
        if len(group) > 1 and stack:
            try_to_stack(group[0].config)  # now, where nothing has been begun
            jobs.append(_stack(group))
        else:
            single += group
    jobs += [Job(run.id, f"{StudyFiles.RUNS}/{run.id}", (run.config,), name(run)) for run in single]
    order = {run.id: i for i, run in enumerate(runs)}
    return sorted(jobs, key=lambda job: order[job.configs[0].id])


def _stackable(
    runs: Iterable[Planned], memory: int, workers: int, gpu: bool
) -> list[list[Planned]]:
    """Groups that may train as one program, each a full product of variants and seeds.

    A stack trains every variant (policy, learning rate, data) with every seed; grouping variants
    by the seeds they lack leaves no replica to train in vain.
    """
    alike: dict[str, dict[str, list[Planned]]] = {}
    alone: list[list[Planned]] = []
    can: dict[str, bool] = {}  # by stack: a benchmark may have to look into files
    for run in runs:
        stack = stack_key(run.config)
        if stack not in can:
            able = benchmarks.load(run.config.benchmark).can_stack(run.config.data)
            can[stack] = able and cannot_stack(run.config) is None
        if not can[stack]:
            alone.append([run])
            continue
        alike.setdefault(stack, {}).setdefault(variant_key(run.config), []).append(run)
    whole: list[list[Planned]] = []
    for variants in alike.values():
        by_seeds: dict[tuple[int, ...], list[Planned]] = {}
        for members in variants.values():
            seeds = tuple(sorted(run.config.seed for run in members))
            by_seeds.setdefault(seeds, []).extend(members)
        whole += by_seeds.values()
    cuts = -(-workers // max(1, len(whole))) if gpu else workers
    return [*alone, *(part for members in whole for part in _parts(members, memory, cuts))]


def _parts(runs: list[Planned], memory: int, cuts: int) -> list[list[Planned]]:
    """A stack, or several with fewer seeds: `cuts` of them, or as many as their data need.

    Of about the same size, and a multiple of `cuts`, so that no worker is idle at the end.
    """
    config = runs[0].config
    limit = benchmarks.load(config.benchmark).most_seeds
    seeds = list(dict.fromkeys(run.config.seed for run in runs))
    most = len(seeds) if limit is None else max(1, limit(config.data, config.method, memory))
    n = len(seeds)
    count = min(n, -(-n // (most * cuts)) * cuts)
    bounds = [-(-n * i // count) for i in range(count + 1)]
    parts = [set(seeds[a:b]) for a, b in pairwise(bounds)]
    return [[run for run in runs if run.config.seed in part] for part in parts]


def _stack(runs: list[Planned], identity: str | None = None) -> Job:
    ids = "\n".join(run.id for run in runs)
    identity = identity or hashlib.sha256(ids.encode()).hexdigest()[:12]
    configs = tuple(run.config for run in runs)
    methods = sorted({str(run.labels["method"]) for run in runs})
    return Job(
        identity,
        f"{StudyFiles.STACKS}/{identity}",
        configs,
        f"{len(runs)} runs, {' '.join(methods)}",
        tuple(map(name, runs)),
    )


def name(run: Planned) -> str:
    return run_name(run.labels, run.config.seed)


Send = Callable[[str, dict[str, Any]], None]


class Forward(Reporter):
    """Passes what a run says on to the study's overview."""

    every = 0.5

    def __init__(self, send: Send) -> None:
        self.send = send
        self.rp: float | None = None

    def update(self, moment: Moment) -> None:
        self.send("progress", asdict(moment))

    def warn(self, text: str) -> None:
        self.send("warning", {"text": text})

    def finish(self, summary: Any, out: str) -> None:
        self.rp = summary.get("RP")


def train_job(job: Job, out: Path, options: JobOptions, send: Send) -> None:
    """Trains a job, wherever it is; its start, progress and end are sent on as they come.

    An error is recorded in error.json and sent as one line. A request to stop (`Stopped`) passes
    through: the state is saved and the job has not failed.
    """
    send("start", {})
    tell, files = Forward(send), job.files(out)
    commit()  # of the code that begins the run, whatever is checked out when it ends
    try:
        files.refuse_strangers()
        files.error.unlink(missing_ok=True)
        _clear_damaged(files)
        if job.stacked:
            _train_stack(job, out, options, tell)
        else:
            study = None if options.log_apart else out
            logging = logged(
                tell, options.log, job.configs[0], files.folder, name=job.name, study=study
            )
            train_run(job.configs[0], files.folder, options, reporter=logging)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        files.record_failure(text, traceback.format_exc())
        send("failed", {"error": text})
        return
    finally:
        _free_memory()
    send("finished", {"rp": tell.rp})


def _train_stack(job: Job, out: Path, options: JobOptions, tell: Reporter) -> None:
    """Trains several runs as one program, and logs each from what it wrote."""
    folder = out / job.folder
    entries = train_stack(job.configs, folder, options, reporter=tell)
    found = [e["summary"].get("RP") for e in entries]
    known = [rp for rp in found if rp is not None]
    tell.finish({"RP": sum(known) / len(known) if known else None}, str(folder))
    planned = {config.id: name for config, name in zip(job.configs, job.names, strict=True)}
    for run, _ in read_folder(folder).runs if options.log else ():
        log_result(run, options.log, folder if options.log_apart else out, name=planned[run.id])


def _free_memory() -> None:
    """Give back what a run held: its parts refer to one another, so they wait for the collector,
    which knows nothing of a GPU's memory, and the C library keeps what it gets for later.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc has it, others do not
        ctypes.CDLL(None).malloc_trim(0)


def _clear_damaged(files: RunFiles | StackFiles) -> None:
    """Removes an end mark that says nothing, which would keep the job from being done again."""
    try:
        files.read_ids()
    except FileNotFoundError:
        return
    except ValueError:
        files.result.unlink()
