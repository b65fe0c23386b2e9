"""Runs of a folder as a report reads them, one by one: settings, labels, summary and scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.report import read
from longtail.report.reading import Entry, TaskScores


@dataclass(frozen=True)
class Reported:
    entry: Entry
    labels: dict[str, Any]
    numbers: dict[str, float]

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def seed(self) -> int:
        return self.entry.seed

    @property
    def status(self) -> str:
        return self.entry.status

    @property
    def config(self) -> dict[str, Any]:
        return self.entry.config

    @property
    def summary(self) -> dict[str, Any]:
        return self.entry.summary

    @property
    def scores(self) -> TaskScores | None:
        return self.entry.scores


def runs_of(folder: Path | str) -> list[Reported]:
    """Every run, with its labels and its scores as its summary has them."""
    frames = read(folder)
    labels = frames.runs[frames.labels].to_dict("records")
    numbers = frames.stored[list(frames.scores)].to_dict("records")
    return [Reported(*one) for one in zip(frames.entries, labels, numbers, strict=True)]


def finished_of(folder: Path | str) -> list[Reported]:
    return [run for run in runs_of(folder) if run.status == "finished"]
