"""What a study shows while it runs: a live table on a terminal, lines in a pipe, JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from longtail.runs.progress import duration, finite
from longtail.study.jobs import Job
from longtail.support.console import Console

MOST_ROWS = 24


@dataclass
class State:
    status: str = "waiting"  # waiting, running, finished, failed, stopped
    done: int = 0
    tasks: int = 0
    rp: float | None = None
    left: float | None = None
    error: str | None = None
    began: float = 0.0
    took: float = 0.0


class Overview:
    """Keeps the state of every job and shows nothing; every other overview overrides `show`."""

    def __init__(self, jobs: Sequence[Job], finished: int) -> None:
        self.jobs, self.already = list(jobs), finished
        self.states = {job.id: State() for job in jobs}

    def __enter__(self) -> Overview:
        return self

    def __exit__(self, *_: object) -> None: ...

    def event(self, kind: str, job: Job, content: dict[str, Any]) -> None:
        """Kinds: start, progress, finished, failed, stopped, warning."""
        state = self.states[job.id]
        if kind == "start":
            state.status, state.began = "running", time.monotonic()
        elif kind == "progress":
            state.done, state.tasks = content["done"], content["tasks"]
            state.left = content["seconds_left"]
            state.rp = state.rp if content["rp"] is None else content["rp"]
        elif kind in ("finished", "failed", "stopped"):
            state.status, state.error = kind, content.get("error")
            state.took = time.monotonic() - state.began if state.began else 0.0
            if kind == "finished":
                state.done = state.tasks
                state.rp = state.rp if content.get("rp") is None else content["rp"]
        self.show(kind, job, state, content)

    def show(self, kind: str, job: Job, state: State, content: dict[str, Any]) -> None: ...

    def count(self, status: str) -> int:
        """Runs, not jobs: a stack counts as many as it trains."""
        return sum(len(job.configs) for job in self.jobs if self.states[job.id].status == status)

    def summary(self) -> str:
        done, failed = self.count("finished"), self.count("failed")
        left = self.count("waiting") + self.count("running") + self.count("stopped")
        parts = [f"{done} runs computed, {self.already} were finished before"]
        if failed:
            parts.append(f"{failed} failed")
        if left:
            parts.append(f"{left} left; the same command goes on")
        return "; ".join(parts)


class LineOverview(Overview):
    """Plain lines, one when a job starts and one when it ends."""

    def __init__(self, jobs: Sequence[Job], finished: int, stream: IO[str] | None = None) -> None:
        super().__init__(jobs, finished)
        self.stream = stream or sys.stdout

    def show(self, kind: str, job: Job, state: State, content: dict[str, Any]) -> None:
        if kind == "progress":
            return
        ended = sum(s.status in ("finished", "failed") for s in self.states.values())
        text = {"warning": content.get("text", ""), "failed": f"failed: {state.error}"}.get(
            kind, kind
        )
        if kind == "finished":
            rp = "" if state.rp is None else f", RP {state.rp:.4f}"
            text = f"finished in {duration(state.took)}{rp}"
        print(f"[{ended}/{len(self.jobs)}] {job.name}: {text}", file=self.stream, flush=True)


class JsonOverview(Overview):
    """One JSON object per event."""

    def show(self, kind: str, job: Job, state: State, content: dict[str, Any]) -> None:
        entry = {"event": kind, "id": job.id, "folder": job.folder, "name": job.name, **content}
        print(json.dumps(finite(entry)), flush=True)


class LiveOverview(Overview):
    """A table that stays in place: a row per job, running ones first."""

    def __init__(self, jobs: Sequence[Job], finished: int, console: Console) -> None:
        super().__init__(jobs, finished)
        self.console = console
        self.live = Live(console=console, get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> Overview:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def show(self, kind: str, job: Job, state: State, content: dict[str, Any]) -> None:
        if kind == "warning":
            self.live.console.print(Text(f"{job.name}: {content['text']}", style="yellow"))

    def table(self) -> Table:
        table = Table(expand=True, box=None, pad_edge=False)
        for head, style in (
            ("run", ""),
            ("", "cyan"),
            ("tasks", ""),
            ("RP", "bold"),
            ("time", "dim"),
        ):
            table.add_column(
                head, style=style, justify="right" if head in ("RP", "time") else "left"
            )
        rank = {"running": 0, "failed": 1, "stopped": 1, "waiting": 2, "finished": 3}
        jobs = sorted(self.jobs, key=lambda job: rank[self.states[job.id].status])
        most = min(MOST_ROWS, max(4, self.console.height - 5))
        for job in jobs[:most]:
            s = self.states[job.id]
            now = "" if s.left is None else f"{duration(s.left)} left"
            when = now if s.status == "running" else duration(s.took) if s.took else ""
            share = f"{s.done}/{s.tasks}" if s.tasks else ""
            bar = _bar(s.done / s.tasks) if s.tasks and s.status == "running" else s.status
            rp = "" if s.rp is None else f"{s.rp:.4f}"
            table.add_row(Text(job.name), bar, share, rp, when)
        hidden = f", {len(jobs) - most} rows not shown" if len(jobs) > most else ""
        table.caption = Text(
            f"{self.count('finished') + self.already} finished, {self.count('running')} running, "
            f"{self.count('waiting')} waiting, {self.count('failed')} failed{hidden}"
        )
        return table


def _bar(share: float, width: int = 20) -> str:
    filled = round(share * width)
    return "━" * filled + "╌" * (width - filled)


def overview(jobs: Sequence[Job], finished: int, *, quiet: bool, as_json: bool) -> Overview:
    """The one that suits where stdout goes."""
    if as_json:
        return JsonOverview(jobs, finished)
    if quiet:
        return Overview(jobs, finished)
    console = Console()
    if console.is_terminal:
        return LiveOverview(jobs, finished, console)
    return LineOverview(jobs, finished)
