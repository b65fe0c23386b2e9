from __future__ import annotations

import io
import json

from rich.console import Console

from longtail.runs.progress import Bar, JsonLines, Lines, Moment, Reporter, Ticker, duration, finite

MOMENT = Moment(done=3, tasks=10, task="be [verb]", size=14204, rp=0.51234, seconds_left=150.0)
SUMMARY = {"RP": 0.5, "LP": 0.6, "BWT": -0.1, "FGT": None, "score": "accuracy"}


class Seen(Reporter):
    every = 1.0

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def update(self, moment: Moment) -> None:
        self.moments.append(moment)


def test_bar_shows_tasks_current_task_size_rp_and_time_left():
    file = io.StringIO()
    bar = Bar(Console(file=file, force_terminal=True, width=120))
    bar.start("toy, ewc", 10, None)
    bar.update(MOMENT)
    bar.bar.refresh()
    bar.finish(SUMMARY, "runs/x")
    text = file.getvalue()
    for part in (
        "toy, ewc",
        "3/10",
        "be [verb] (14204)",
        "RP 0.5123",
        "2.5 min left",
        "report runs/x",
    ):
        assert part in text


def test_lines_are_plain():
    file = io.StringIO()
    lines = Lines(file)
    lines.start("toy", 10, 2)
    lines.update(MOMENT)
    lines.finish(SUMMARY, "runs/x")
    assert file.getvalue().splitlines() == [
        "toy: 10 tasks, going on after task 2",
        "3/10 tasks, now be [verb] (14204 examples), RP 0.5123, 2.5 min left",
        "RP 0.5000  LP 0.6000  FGT -  BWT -0.1000  in runs/x",
        "its curve and page: longtail report runs/x",
    ]


def test_json_lines_are_json_even_with_nan():
    file = io.StringIO()
    out = JsonLines(file)
    out.start("toy", 10, None)
    out.evaluation(4, float("nan"))
    out.warn("careful")
    out.finish({"RP": float("inf")}, "x")
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["start", "evaluation", "warning", "end"]
    assert events[1]["RP"] is None
    assert events[3]["summary"] == {"RP": None}


def test_ticker_speaks_as_often_as_wanted_and_estimates_from_where_it_started():
    seen, now, share = Seen(), 0.0, 0.5  # resumed half way
    ticker = Ticker(seen, lambda: (MOMENT, share), clock=lambda: now)
    for step in range(101):
        now, share = step * 0.1, 0.5 + step * 0.001
        ticker.tick()
    assert len(seen.moments) == 10
    assert seen.moments[0].seconds_left is None
    # 0.1 of the work takes 10 seconds, 0.4 is left
    assert seen.moments[-1].seconds_left is not None
    assert abs(seen.moments[-1].seconds_left - 40) < 1


def test_small_helpers():
    assert [duration(s) for s in (5, 300, 36000)] == ["5 s", "5.0 min", "10.0 h"]
    assert finite({"a": [float("nan"), 1.0], 2: "x"}) == {"a": [None, 1.0], "2": "x"}
