"""Scores of this and earlier weeks, kept beside the memory from one process to the next.

After week j the score a_{j,i} of every week i whose data are at hand is entered; what was
forgotten is then computed as for any sequence of tasks (`longtail.metrics`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.metrics import ScoreMatrix, summary
from longtail.support.files import parse_json, write_json

FILE_NAME = "longtail_scores.json"


@dataclass(frozen=True)
class Score:
    """A week's score, and how many examples it is the mean of."""

    value: float
    examples: int


class WeeklyScores:
    """The score matrix of weeks by name, in a JSON file.

    Args:
        folder: where the file is, or will be.
        higher_is_better: direction of the score; False for a loss.
    """

    def __init__(self, folder: str | Path, *, higher_is_better: bool) -> None:
        self.path = Path(folder) / FILE_NAME
        self.higher_is_better = higher_is_better
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = parse_json(self.path, dict)["weeks"]

    @property
    def weeks(self) -> list[str]:
        """All weeks with a score, in the order in which they were first seen."""
        order: dict[str, None] = {}
        for row in self.rows:
            own = row["after"]
            order.update(dict.fromkeys(name for name in row["scores"] if name != own))
            order.update(dict.fromkeys([own] if own in row["scores"] else []))
        return list(order)

    def record(self, week: str, scores: dict[str, Score]) -> dict[str, float]:
        """Enter the scores after ``week``, write the file, and say RP, BWT and FGT.

        A week that is trained once more replaces what was entered for it.
        """
        row = {
            "after": week,
            "scores": {name: score.value for name, score in scores.items()},
            "examples": {name: score.examples for name, score in scores.items()},
        }
        self.rows = [old for old in self.rows if old["after"] != week] + [row]
        write_json(self.path, {"weeks": self.rows})
        return self.metrics()

    def metrics(self) -> dict[str, float]:
        """RP, BWT and FGT over the weeks scored last.

        A week's own score a_{i,i} is the one after it was trained; where its data were not scored
        then, the first one that there is.
        """
        weeks = [name for name in self.weeks if name in self.rows[-1]["scores"]]
        if not weeks:
            return {}
        sizes = [max(1, self.rows[-1]["examples"][name]) for name in weeks]
        matrix = ScoreMatrix(sizes, self.higher_is_better)
        for i, name in enumerate(weeks):
            known = [row["scores"][name] for row in self.rows if name in row["scores"]]
            matrix.record(after=i, scores={i: known[0]})
        last = len(weeks) - 1
        for row in self.rows:
            seen = {i: row["scores"][n] for i, n in enumerate(weeks) if n in row["scores"]}
            matrix.record(after=last, scores=seen)
        found = summary(matrix)
        return {name: float(found[name]) for name in ("RP", "BWT", "FGT")}


def is_score(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
