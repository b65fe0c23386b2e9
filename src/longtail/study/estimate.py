"""About how long jobs will take, as finished runs of their kind did, or as a few steps take.

The training is in a process of its own, which is ended when time is up: some benchmarks need
minutes before their first step, and a plan should not wait for them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

import numpy as np

from longtail.runs.build import build_run, build_stack
from longtail.runs.config import stack_key
from longtail.runs.progress import duration
from longtail.study.jobs import Job
from longtail.study.reuse import Survey
from longtail.support.devices import choose_device
from longtail.support.files import parse_json
from longtail.support.processes import new_process, safe_path
from longtail.training import Interrupted, Run, train

SECONDS = 2.0  # of training, for each kind of job
LIMIT = 20.0  # seconds for all of them, with what they need before their first step

Kind = tuple[str, int]  # what a stack has in common, and how many runs it has


def kind(job: Job) -> Kind:
    return stack_key(job.configs[0]), len(job.configs)


def estimate(jobs: Sequence[Job], found: Survey, workers: int, device: str) -> str:
    """A sentence; evaluation counts only as far as a sample met it, so it is a lower bound."""
    known = recorded(found)
    kinds = {kind(job): job for job in reversed(jobs) if kind(job) not in known}
    sampled, problem = measure(list(reversed(kinds.values())), device)
    known |= sampled
    told = [job for job in jobs if kind(job) in known]
    missing = sum(len(job.configs) for job in jobs) - sum(len(job.configs) for job in told)
    why = f"{missing} runs are not measured: {problem}" if missing else ""
    if not told:
        return f"No estimate: {problem}"
    total = sum(known[kind(job)] for job in told)
    shared = f" with {workers} processes" if workers > 1 else ""
    text = f"Estimate: about {duration(total / workers)}{shared}, without evaluation yet to come"
    return f"{text}; {why}" if why else text


def recorded(found: Survey) -> dict[Kind, float]:
    """Seconds that finished runs and stacks of the study took, by their kind."""
    together: dict[str, list[str]] = {}
    for run in (run for runs in found.reused.values() for run in runs):
        together.setdefault(str(found.folders[run.id].folder), []).append(run.id)
    configs = {run.id: run.config for runs in found.reused.values() for run in runs}
    taken: dict[Kind, list[float]] = {}
    for ids in together.values():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seconds = float(parse_json(found.folders[ids[0]].timing, dict)["seconds"])
            taken.setdefault((stack_key(configs[ids[0]]), len(ids)), []).append(seconds)
    return {kind: float(np.mean(values)) for kind, values in taken.items()}


def measure(jobs: Sequence[Job], device: str) -> tuple[Mapping[Kind, float], str]:
    """Seconds of each job by a sample, as far as there is time, and why not all have one."""
    found: dict[Kind, float] = {}
    if not jobs:
        return found, ""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = new_process(_sample_all, (theirs, list(jobs), device))
    with safe_path():
        process.start()
    theirs.close()
    end = time.monotonic() + LIMIT
    problem = f"their first steps take longer than {LIMIT:g} s, so that finished runs must tell"
    try:
        while len(found) < len(jobs) and ours.poll(max(0.0, end - time.monotonic())):
            kind, seconds, error = ours.recv()
            if error:
                problem = error
                break
            found[kind] = seconds
    except EOFError:
        problem = "the process that measures them died"
    finally:
        process.kill()
        process.join()
        ours.close()
    return found, problem


def _sample_all(pipe: Connection, jobs: list[Job], device: str) -> None:
    """The measuring process."""
    for job in jobs:
        try:
            pipe.send((kind(job), _sample(job, device), ""))
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            pipe.send((kind(job), 0.0, str(error)))
            return


def _sample(job: Job, device: str) -> float:
    """Seconds for the whole job, from the share of steps done in a few seconds."""
    place = choose_device(device)
    if job.stacked:
        run = build_stack(job.configs, place).run
    else:
        run = build_run(job.configs[0], place)
    settings = run.settings
    batch = settings.batch_size * settings.accumulate
    total = float((-(-run.sequence.trained_rows // batch) * settings.epochs).sum())
    counted = 0
    began = time.monotonic()

    def on_step(run: Run) -> None:
        nonlocal counted, began
        if run.position.step:  # else a task has ended, which is no step
            counted += 1
        if counted == 1:  # the first step pays for allocation and compilation
            began = time.monotonic()
        elif time.monotonic() - began > SECONDS:
            raise Interrupted

    with contextlib.suppress(Interrupted):
        train(run, on_step=on_step)
    passed = time.monotonic() - began
    return passed * max(1.0, total / max(counted - 1, 1))
