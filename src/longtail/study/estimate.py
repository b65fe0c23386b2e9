"""About how long jobs will take, from training the first of each method for a few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import numpy as np

from longtail.runs.build import build_run, build_stack
from longtail.runs.progress import duration
from longtail.study.jobs import Job
from longtail.support.devices import choose_device
from longtail.training import Interrupted, Run, train

SECONDS = 3.0


def estimate(jobs: Sequence[Job], workers: int, device: str) -> str:
    """A sentence; evaluation counts only as far as the sample met it, so it is a lower bound."""
    kinds: dict[tuple[str, int], float] = {}
    try:
        for job in jobs:
            kind = (job.configs[0].method, len(job.configs))
            if kind not in kinds:
                kinds[kind] = _sample(job, device)
    except (ValueError, OSError, ImportError) as error:
        return f"No estimate: {error}"
    total = sum(kinds[job.configs[0].method, len(job.configs)] for job in jobs)
    shared = f" with {workers} processes" if workers > 1 else ""
    return f"Estimate: about {duration(total / workers)}{shared}, without evaluation yet to come"


def _sample(job: Job, device: str) -> float:
    """Seconds for the whole job, from the share of steps done in a few seconds."""
    place = choose_device(device)
    if job.stacked:
        run = build_stack(job.configs, place).run
    else:
        run = build_run(job.configs[0], place)
    sizes = np.asarray(run.sequence.train_sizes)
    settings = run.settings
    steps = np.ceil(sizes / (settings.batch_size * settings.accumulate)) * settings.epochs
    total = float(steps.sum())
    counted = 0
    began = time.monotonic()

    def on_step(run: Run) -> None:
        nonlocal counted, began
        counted += 1
        if counted == 1:  # the first step pays for allocation and compilation
            began = time.monotonic()
        elif time.monotonic() - began > SECONDS:
            raise Interrupted

    with contextlib.suppress(Interrupted):
        train(run, on_step=on_step)
    passed = time.monotonic() - began
    return passed * max(1.0, total / max(counted - 1, 1))
