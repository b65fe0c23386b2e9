"""About how long jobs will take, as finished runs of their kind in the study did."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from longtail.runs.config import stack_key
from longtail.runs.progress import duration
from longtail.study.jobs import Job
from longtail.study.reuse import Survey
from longtail.support.files import parse_json

Kind = tuple[str, int]  # what a stack has in common, and how many runs it has


def kind(job: Job) -> Kind:
    return stack_key(job.configs[0]), len(job.configs)


def estimate(jobs: Sequence[Job], found: Survey, workers: int) -> str:
    """A sentence on the jobs of which a like one has finished."""
    recorded = seconds_by_kind(found)
    known = [job for job in jobs if kind(job) in recorded]
    if not known:
        return "No estimate: no run of their kind is finished here."
    total = sum(recorded[kind(job)] for job in known)
    shared = f" with {workers} processes" if workers > 1 else ""
    text = f"Estimate: about {duration(total / workers)}{shared}"
    missing = sum(len(job.configs) for job in jobs) - sum(len(job.configs) for job in known)
    return f"{text}, without {missing} runs of which none is finished" if missing else text


def seconds_by_kind(found: Survey) -> dict[Kind, float]:
    """Seconds that finished runs and stacks of the study took, by their kind."""
    together: dict[str, list[str]] = {}
    configs = {}
    for runs in found.reused.values():
        for run in runs:
            configs[run.id] = run.config
            together.setdefault(str(found.folders[run.id].folder), []).append(run.id)
    taken: dict[Kind, list[float]] = {}
    for ids in together.values():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seconds = float(parse_json(found.folders[ids[0]].timing, dict)["seconds"])
            taken.setdefault((stack_key(configs[ids[0]]), len(ids)), []).append(seconds)
    return {kind: float(np.mean(values)) for kind, values in taken.items()}
