"""What an unfinished study of WSD-CL has measured, as a study of the tasks that were learned.

    python bench/tools/wsd_partial.py runs/wsd_one_epoch runs/wsd_one_epoch_part
    longtail report runs/wsd_one_epoch_part

A stack writes its scores at the evaluation points it passes (partial.npz). The first T tasks of the
sequence are a sequence of their own, `data.tasks = T`, with the same targets, order and batches, so
these scores are those of a finished run of it: the folder written here says just that. Runs have no
validation score, which is taken at the end, so no setting can be selected by it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail.metrics import ScoreMatrix, breakdown, summary
from longtail.report.reading import read_plan
from longtail.runs.build import Stack
from longtail.runs.config import RunConfig, resolve
from longtail.runs.files import StackFiles, StudyFiles
from longtail.runs.progress import finite
from longtail.tasks import validation_share
from longtail_bench import wsd
from longtail_bench.wsd.baselines import describe
from longtail_bench.wsd.tasks import WordTasks, word_tasks


def rewrite(runs: Path, out: Path) -> dict[str, int]:
    """Write the begun stacks below `runs` to `out`; how many tasks each has learned."""
    found: dict[str, int] = {}
    renamed: dict[str, str] = {}
    for path in sorted(runs.glob(f"**/{StackFiles.PARTIAL}")):
        files = StackFiles(path.parent)
        if files.result.exists():
            continue
        arrays = files.read_partial()
        tasks = int(arrays["after"][-1]) + 1
        members = files.read_settings()
        whole = [resolve(file=config) for config in members.values()]
        configs = [replace(c, data=replace(c.data, tasks=tasks)) for c in whole]
        renamed |= dict(zip(members, (c.id for c in configs), strict=True))
        stack = StudyFiles(out).stack(files.folder.name)
        _write_stack(stack, configs, arrays, first_tasks(whole, tasks))
        found[files.folder.name] = tasks
    if not found:
        raise ValueError(f"{runs} has no stack that was begun and not finished (partial.npz)")
    plan = read_plan(runs, [])
    if plan:
        kept = [{**run, "id": renamed[run["id"]]} for run in plan["runs"] if run["id"] in renamed]
        title = f"{plan['report'].get('title', plan['name'])}, first {max(found.values()):,} tasks"
        report = {**plan["report"], "title": title}
        content = {**plan, "runs": kept, "stacks": {}, "select": {}, "report": report}
        StudyFiles(out).write_plan(content)
    return found


def first_tasks(configs: list[RunConfig], tasks: int) -> WordTasks:
    """The sequence as the stack saw it, up to the task it has been evaluated after."""
    data: Any = configs[0].data
    limits = {"cap": data.cap, "test_cap": data.test_cap, "longest": data.longest}
    words = word_tasks(wsd.prepared_of(data), data.seed, tasks=data.tasks, **limits)
    share = configs[0].train.validation
    if share > 0:
        words = validation_share(words, torch.tensor(Stack(configs).seeds), share)
    assert isinstance(words, WordTasks)
    return words.select(range(tasks))


def matrix_of(arrays: Mapping[str, np.ndarray], words: WordTasks) -> ScoreMatrix:
    count = len(words)
    matrix = ScoreMatrix(words.test_sizes, True, words.train_sizes > 0)
    scores = {name: torch.from_numpy(arrays[name][..., :count]) for name in ("own", "best", "last")}
    points = zip(arrays["after"], np.moveaxis(arrays["curve"], -1, 0), strict=True)
    matrix.load_state_dict({
        "lead": arrays["own"].shape[:-1], "row": count - 1, "rows": {}, **scores,
        "_last_after": torch.full((count,), count - 1),
        "_has_own": torch.ones(count, dtype=torch.bool),
        "_has_best": torch.ones(count, dtype=torch.bool),
        "curve": {int(j): torch.from_numpy(rp.copy()) for j, rp in points},
    })  # fmt: skip
    return matrix


def _write_stack(
    files: StackFiles,
    configs: list[RunConfig],
    arrays: Mapping[str, np.ndarray],
    words: WordTasks,
) -> None:
    matrix, places = matrix_of(arrays, words), Stack(configs).places
    metrics = {**summary(matrix), "breakdown": breakdown(matrix, words.train_sizes)}
    metrics |= describe(matrix, words)
    more = {"tasks": len(words), "score": "accuracy"}
    more["scores"] = {"accuracy": {"unit": "percent", "higher_is_better": True}}
    entries = [
        {
            "id": config.id,
            "config": config.as_dict(),
            "summary": finite({**_at(metrics, place), **more, "optimizer": config.optimizer}),
        }
        for config, place in zip(configs, places, strict=True)
    ]
    files.make_folder()
    kept = {name: arrays[name][..., : len(words)] for name in ("own", "best", "last")}
    kept |= {"curve": arrays["curve"]}
    stacked: dict[str, Any] = {k: np.stack([v[p] for p in places]) for k, v in kept.items()}
    stacked |= {"after": arrays["after"]}
    stacked |= {"test_sizes": words.test_sizes, "train_sizes": words.train_sizes}
    files.write_scores(stacked)
    files.write_tasks(words.names, words.train_sizes, words.test_sizes)
    files.write_settings({config.id: config.as_dict() for config in configs})
    files.finish([entry["id"] for entry in entries], entries)


def _at(values: Any, place: tuple[int, int]) -> Any:
    if isinstance(values, Mapping):
        return {key: _at(value, place) for key, value in values.items()}
    return float(values[place]) if isinstance(values, np.ndarray) else values


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of the study")
    parser.add_argument("out", type=Path, help="folder to write, which is not there yet")
    args = parser.parse_args(argv)
    if args.out.exists():
        raise SystemExit(f"{args.out} is there already")
    for name, tasks in rewrite(args.runs, args.out).items():
        print(f"stack {name}: {tasks:,} tasks")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
