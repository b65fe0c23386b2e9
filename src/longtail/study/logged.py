"""Send finished runs to TensorBoard, Weights & Biases or MLflow, from their folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from longtail.report.results import Result
from longtail.runs.loggers import finite_metrics, make
from longtail.runs.values import flatten


def log_result(run: Result, tools: Sequence[str], folder: Path) -> None:
    """A finished run, from its files: every point of the RP curve, then the metrics."""
    name = "-".join(str(v) for v in run.labels.values()) + f"-s{run.seed}"
    for tool in tools:
        logger = make(tool, name, flatten(run.config), folder)
        if run.scores is not None:
            for after, rp in zip(run.scores.after, run.scores.curve, strict=True):
                if math.isfinite(rp):
                    logger.log({"RP": float(rp)}, int(after))
        logger.finish(finite_metrics(run.summary))
