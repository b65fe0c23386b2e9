"""Send finished runs to TensorBoard, Weights & Biases or MLflow, from their folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from longtail.report.reading import Entry
from longtail.runs.loggers import LOGGERS, finite_metrics, make, require
from longtail.runs.values import flatten


def log_result(run: Entry, tools: Sequence[str], folder: Path, *, name: str) -> None:
    """A finished run, from its files: every point of the RP curve, then the metrics.

    Args:
        run: finished.
        tools: names in `LOGGERS`.
        folder: of the study, or whatever holds the run.
        name: as a study or a report calls it.
    """
    for tool in tools:
        require(tool)
        place = folder if LOGGERS[tool].together else folder / "logs" / run.id
        LOGGERS[tool].forget(name, place)
        logger = make(tool, name, flatten(run.config), place)
        if run.scores is not None:
            for after, rp in zip(run.scores.after, run.scores.curve, strict=True):
                if math.isfinite(rp):
                    logger.log({"RP": float(rp)}, int(after))
        logger.finish(finite_metrics(run.summary))
