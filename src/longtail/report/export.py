"""Every score as one flat Parquet table, for pandas, polars and friends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from longtail.report.results import Result, Results
from longtail.runs.files import RunFiles
from longtail.support.files import refusing, replacing

BATCH = 200  # runs per row group, so that thousands of runs need little memory


def write_parquet(results: Results, path: Path) -> int:
    """Writes one row per run and task and evaluation; returns the number of rows.

    Columns: run, the labels (method, policy, ...), seed, after (tasks learned), task, name,
    train_size, test_size, score. A stack keeps only scores when learned and at the end, so it gives
    two rows a task.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install 'longtail[parquet]'") from None
    runs = [run for run in results.runs if run.scores is not None]
    labels = list(dict.fromkeys(k for run in runs for k in run.labels if k != "seed"))
    schema = pa.schema(
        [
            *((k, pa.string()) for k in ("run", *labels)),
            *((k, pa.int64()) for k in ("seed", "after", "task")),
            ("name", pa.string()),
            *((k, pa.float64()) for k in ("train_size", "test_size", "score")),
        ]
    )
    total = 0
    with refusing(path, "cannot be written to", "--parquet "):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file, pq.ParquetWriter(file, schema) as writer:
            for start in range(0, len(runs), BATCH):
                batch = _batch(runs[start : start + BATCH], labels, schema)
                writer.write_table(batch)
                total += batch.num_rows
    return total


def _batch(runs: list[Result], labels: list[str], schema: Any) -> Any:
    import pyarrow as pa

    parts = [_rows(run, labels) for run in runs]
    columns = {}
    for name in schema.names:
        values = np.concatenate([part[name] for part in parts])
        columns[name] = pa.array(values, schema.field(name).type, from_pandas=True)
    return pa.table(columns, schema=schema)


def _rows(run: Result, labels: list[str]) -> dict[str, np.ndarray]:
    scores = run.scores
    assert scores is not None
    count = len(scores.own)
    if run.stack is None:
        found = list(RunFiles(run.folder).read_evaluations())
        task = np.concatenate([index for _, index, _ in found])
        after = np.concatenate([np.full(len(index), a + 1) for a, index, _ in found])
        score = np.concatenate([values for *_, values in found])
    else:
        task = np.tile(np.arange(count), 2)
        after = np.concatenate([np.arange(1, count + 1), np.full(count, count)])
        score = np.concatenate([scores.own, scores.last])

    def sizes(values: np.ndarray | None) -> np.ndarray:
        return np.full(len(task), np.nan) if values is None else values[task].astype(np.float64)

    def constant(value: Any) -> np.ndarray:
        return np.full(len(task), None if value is None else str(value), dtype=object)

    return {
        "run": constant(run.id),
        **{k: constant(run.labels.get(k)) for k in labels},
        "seed": np.full(len(task), run.seed),
        "after": after,
        "task": task,
        "name": np.array(scores.names, dtype=object)[task],
        "train_size": sizes(scores.train_sizes),
        "test_size": sizes(scores.test_sizes),
        "score": score,
    }
