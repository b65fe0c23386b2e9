"""Scores of this and earlier weeks, kept beside the memory from one process to the next.

After each week the score of every week whose data are at hand is entered, under the week's name.
With a(i) the score of week i now, f(i) its first and b(i) its best one, over the weeks that were
scored before and weighted by examples, for a score of which more is better:

    RP  = mean a(i)            over all weeks scored now
    BWT = mean (a(i) - f(i))   how much better earlier weeks have become
    FGT = mean (b(i) - a(i))   how much worse than at their best

For a loss BWT and FGT are taken the other way round, so that BWT above zero is always a gain and
FGT above zero a loss. What was not measured is left out: in the first week there is no BWT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.support.files import parse_json, write_json

FILE_NAME = "longtail_scores.json"


@dataclass(frozen=True)
class WeekScore:
    """A week's score, and how many examples it is the mean of."""

    value: float
    examples: int


@dataclass(frozen=True)
class Row:
    """What was scored after a week: the scores of weeks by name."""

    after: str
    scores: dict[str, WeekScore]


class WeeklyScores:
    """The scores of weeks by name, in a JSON file.

    Args:
        folder: where the file is, or will be.
        metric: what the score is called.
        higher_is_better: its direction; False for a loss.
        unit: what it is measured in, where that has a name.

    Raises:
        ValueError: for a file with another metric, or one that is damaged.
    """

    def __init__(
        self, folder: str | Path, *, metric: str, higher_is_better: bool, unit: str = ""
    ) -> None:
        self.path = Path(folder) / FILE_NAME
        self.metric, self.higher_is_better, self.unit = metric, higher_is_better, unit
        self.rows: list[Row] = []
        if not self.path.exists():
            return
        told = parse_json(self.path, dict)
        try:
            self.rows = [_row(week) for week in told["weeks"]]
            there = str(told["metric"]), bool(told["higher_is_better"])
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ValueError(f"{self.path} holds no scores of weeks") from None
        if there != (metric, higher_is_better):
            better = {True: "more is better", False: "less is better"}
            raise ValueError(
                f"{self.path} has scores of {there[0]!r} ({better[there[1]]}), and not of "
                f"{metric!r} ({better[higher_is_better]})"
            )

    @property
    def weeks(self) -> list[str]:
        """All weeks after which something was scored, in order."""
        return [row.after for row in self.rows]

    def first_of(self, name: str) -> float | None:
        """The first score of a week; None where it has none."""
        return next((row.scores[name].value for row in self.rows if name in row.scores), None)

    def record(self, week: str, scores: dict[str, WeekScore]) -> dict[str, float]:
        """Enter the scores after ``week``, write the file, and give RP, BWT and FGT.

        A week that is done again takes its own place.
        """
        self.rows = [row for row in self.rows if row.after != week] + [Row(week, scores)]
        told = {"metric": self.metric, "higher_is_better": self.higher_is_better}
        write_json(self.path, told | {"weeks": [_plain(row) for row in self.rows]})
        return self.metrics()

    def metrics(self) -> dict[str, float]:
        """RP, BWT and FGT after the last week, as far as they were measured."""
        now = self.rows[-1].scores
        metrics = {"RP": _mean((s.value, s.examples) for s in now.values())} if now else {}
        changes = self._changes()
        if changes:
            metrics["BWT"] = _mean((gain, n) for gain, _, n in changes)
            metrics["FGT"] = _mean((lost, n) for _, lost, n in changes)
        return metrics

    def _changes(self) -> list[tuple[float, float, int]]:
        """Of each week scored now and before: gain since the first, loss since the best, size."""
        sign = 1.0 if self.higher_is_better else -1.0
        changes = []
        for name, score in self.rows[-1].scores.items():
            values = [sign * row.scores[name].value for row in self.rows if name in row.scores]
            if len(values) > 1:
                now = values[-1]
                changes.append((now - values[0], max(values) - now, score.examples))
        return changes

    def sentence(self) -> str:
        """What the last week did, in words."""
        row = self.rows[-1]
        if not row.scores:
            return f"{row.after}: nothing was scored"
        metrics = self.metrics()
        weeks = "1 week" if len(row.scores) == 1 else f"{len(row.scores)} weeks"
        text = f"{row.after}: {self.metric} {self._in_unit(metrics['RP'])} over {weeks}"
        if "BWT" not in metrics:
            return text
        change = metrics["BWT"]
        what = f"{'forgot' if change < 0 else 'gained'} {self._in_unit(abs(change))}"
        return f"{text}; earlier weeks {what} since they were first scored"

    def _in_unit(self, value: float) -> str:
        return f"{value:.4g} {self.unit}".rstrip()


def _row(week: dict[str, Any]) -> Row:
    scores = {
        str(name): WeekScore(float(value), int(week["examples"][name]))
        for name, value in week["scores"].items()
    }
    return Row(str(week["after"]), scores)


def _plain(row: Row) -> dict[str, Any]:
    return {
        "after": row.after,
        "scores": {name: score.value for name, score in row.scores.items()},
        "examples": {name: score.examples for name, score in row.scores.items()},
    }


def _mean(pairs: Iterable[tuple[float, int]]) -> float:
    values, sizes = zip(*pairs, strict=True)
    weights = [max(1, size) for size in sizes]
    total = math.fsum(value * weight for value, weight in zip(values, weights, strict=True))
    return total / sum(weights)


def scored_weeks(folder: str | Path) -> list[str]:
    """The weeks that a folder has scores of, whatever they are scores of."""
    path = Path(folder) / FILE_NAME
    try:
        weeks = parse_json(path, dict)["weeks"]
        return [str(week["after"]) for week in weeks]
    except (OSError, ValueError, KeyError, TypeError):
        return []
