"""What a run says while it goes on: a bar on a terminal, plain lines in a pipe, JSON for machines.

A reporter is told a `Moment` now and then (`Ticker` decides when, so that a step costs one look at
the clock), warnings, and the end.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from longtail.names import METRICS
from longtail.support.console import Console


@dataclass(frozen=True)
class Moment:
    """Where a run stands: tasks done of all, the one in hand, RP of the tasks seen, time left."""

    done: int
    tasks: int
    task: str
    size: int
    rp: float | None
    seconds_left: float | None


class Reporter:
    """Shows warnings and nothing else; every other reporter overrides what it shows."""

    every = math.inf

    def start(self, title: str, tasks: int, resumed: int | None) -> None: ...

    def update(self, moment: Moment) -> None: ...

    def evaluation(self, after: int, rp: float | None) -> None:
        """All tasks up to ``after`` (from zero) were evaluated."""

    def warn(self, text: str) -> None:
        """Something the user should know even with --quiet, as it changes nothing on stdout."""
        print(f"longtail: {text}", file=sys.stderr, flush=True)

    def finish(self, summary: Mapping[str, Any], out: str) -> None: ...

    def close(self) -> None: ...


class Lines(Reporter):
    """Plain lines, for pipes and logs."""

    every = 5.0

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout

    def start(self, title: str, tasks: int, resumed: int | None) -> None:
        going_on = f", going on after task {resumed}" if resumed is not None else ""
        self._print(f"{title}: {tasks} tasks{going_on}")

    def update(self, moment: Moment) -> None:
        rp = "" if moment.rp is None else f", RP {moment.rp:.4f}"
        left = "" if moment.seconds_left is None else f", {duration(moment.seconds_left)} left"
        task = f"{moment.task} ({moment.size} examples)"
        self._print(f"{moment.done}/{moment.tasks} tasks, now {task}{rp}{left}")

    def finish(self, summary: Mapping[str, Any], out: str) -> None:
        values = "  ".join(f"{k} {show(summary, k)}" for k in METRICS)
        self._print(f"{values}  in {out}")
        self._print(where_the_curve_is(out))

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class JsonLines(Reporter):
    """One JSON object a line: event start, progress, evaluation, warning, end."""

    every = 1.0

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout

    def start(self, title: str, tasks: int, resumed: int | None) -> None:
        self._print("start", {"run": title, "tasks": tasks, "resumed_after": resumed})

    def update(self, moment: Moment) -> None:
        self._print("progress", asdict(moment))

    def evaluation(self, after: int, rp: float | None) -> None:
        self._print("evaluation", {"after": after, "RP": rp})

    def warn(self, text: str) -> None:
        self._print("warning", {"text": text})

    def finish(self, summary: Mapping[str, Any], out: str) -> None:
        self._print("end", {"out": out, "summary": dict(summary)})

    def _print(self, event: str, content: Mapping[str, Any]) -> None:
        print(json.dumps({"event": event, **finite(content)}), file=self.stream, flush=True)


class Bar(Reporter):
    """A rich progress bar: tasks done, current task and its size, running RP, time left."""

    every = 0.1

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TextColumn("{task.fields[now]}", style="cyan"),
            TextColumn("{task.fields[rp]}", style="bold"),
            TextColumn("{task.fields[left]}", style="dim"),
            console=self.console,
            transient=True,
        )

    def start(self, title: str, tasks: int, resumed: int | None) -> None:
        going_on = f"  going on after task {resumed}" if resumed is not None else ""
        self.console.print(title, f"[dim]{going_on}[/dim]", highlight=False)
        self.line = self.bar.add_task("", total=tasks, now="", rp="", left="")
        self.bar.start()

    def update(self, moment: Moment) -> None:
        name = moment.task if len(moment.task) <= 24 else moment.task[:23] + "…"
        left = moment.seconds_left
        self.bar.update(
            self.line,
            completed=moment.done,
            # Square brackets in a task's name are not markup.
            now=f"{name} ({moment.size})".replace("[", r"\["),
            rp="" if moment.rp is None else f"RP {moment.rp:.4f}",
            left="" if left is None else f"{duration(left)} left",
        )

    def warn(self, text: str) -> None:
        self.bar.console.print(text, style="yellow", markup=False)

    def finish(self, summary: Mapping[str, Any], out: str) -> None:
        self.close()
        print_summary(summary, out, self.console)

    def close(self) -> None:
        self.bar.stop()


def reporter(quiet: bool = False, json: bool = False) -> Reporter:
    """The reporter that suits where stdout goes."""
    if json:
        return JsonLines()
    if quiet:
        return Reporter()
    console = Console()
    return Bar(console) if console.is_terminal else Lines()


class Ticker:
    """Tells a reporter where the run is, as often as it wants to know.

    The time left goes by examples, not tasks: in a long tail one task may be half the work.
    """

    def __init__(
        self,
        target: Reporter,
        moment: Callable[[], tuple[Moment, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.moment = moment
        self.clock = clock
        self.begin = clock()
        self.next = self.begin + target.every
        self.first_share: float | None = None

    def tick(self) -> None:
        now = self.clock()
        if now >= self.next:
            self.next = now + self.target.every
            self.tell(now)

    def tell(self, now: float) -> None:
        moment, share = self.moment()
        if self.first_share is None:  # a resumed run starts in the middle
            self.first_share, self.begin = share, now
        done, passed = share - self.first_share, now - self.begin
        left = passed * (1 - share) / done if done > 0 else None
        self.target.update(Moment(**{**asdict(moment), "seconds_left": left}))


def print_summary(summary: Mapping[str, Any], out: str, console: Console | None = None) -> None:
    console = console or Console()
    table = Table(box=None, pad_edge=False, title_justify="left")
    for name, meaning in METRICS.items():
        table.add_column(f"{name} [dim]{meaning}[/dim]", justify="right")
    table.add_row(*(show(summary, name) for name in METRICS))
    console.print(table)
    console.print(f"score: {summary.get('score', '?')}; run folder: {out}", highlight=False)
    console.print(where_the_curve_is(out), highlight=False, markup=False)


def where_the_curve_is(out: str) -> str:
    """The command that draws a run: drawing takes longer than a small run does."""
    return f"its curve and page: longtail report {shlex.quote(out)}"


def show(summary: Mapping[str, Any], name: str) -> str:
    """A metric, of several runs with its standard error."""
    value, error = summary.get(name), summary.get(f"{name}_se")
    if value is None:
        return "-"
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


def duration(seconds: float) -> str:
    """About how long, in a few characters.

    >>> duration(42), duration(150), duration(9000)
    ('42 s', '2.5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def finite(value: Any) -> Any:
    """NaN and infinities are not JSON: they become null."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
