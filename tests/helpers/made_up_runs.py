"""Run folders with made-up scores, in the form that `longtail.runs.files` writes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

POLICIES = {
    "continual": {"first_moment": "reset", "second_moment": "task", "beta3": 0.9, "boundary": True},
    "kept": {"first_moment": "ema", "second_moment": "ema", "beta3": 0.0, "boundary": False},
    "new": {"first_moment": "reset", "second_moment": "reset", "beta3": 0.0, "boundary": True},
}


def config(
    method: str = "finetune", policy: str = "continual", seed: int = 0, **train: Any
) -> dict[str, Any]:
    return {
        "benchmark": "toy",
        "method": method,
        "policy": policy,
        "optimizer": "adamw",
        "seed": seed,
        "data": {"tasks": 12},
        "train": {"lr": 0.01, **train},
        "methods": {},
        "moments": POLICIES[policy],
    }


def identity(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def scores(settings: dict[str, Any], tasks: int, every: int) -> list[dict[str, Any]]:
    """Each task is evaluated when learned, all so far every `every` tasks; MC forgets less."""
    rng = np.random.default_rng([settings["seed"], len(settings["method"])])
    own = 0.8 + 0.1 * rng.random(tasks)
    slope = 0.02 if settings["policy"] == "continual" else 0.1
    slope *= {"ewc": 0.8, "derpp": 0.6}.get(settings["method"], 1.0) * (1 + 0.1 * rng.random())
    lines = []
    for after in range(tasks):
        whole = (after + 1) % every == 0 or after == tasks - 1
        seen = range(after + 1) if whole else [after]
        values = {str(i): float(own[i] - slope * np.log1p(after - i)) for i in seen}
        lines.append({"after": after, "scores": values})
    return lines


def summarise(lines: list[dict[str, Any]], test_sizes: np.ndarray) -> dict[str, Any]:
    tasks = len(test_sizes)
    last = np.array([lines[-1]["scores"][str(i)] for i in range(tasks)])
    own = np.array([lines[i]["scores"][str(i)] for i in range(tasks)])
    best = np.full(tasks, -np.inf)
    for line in lines:
        for i, value in line["scores"].items():
            best[int(i)] = max(best[int(i)], value)
    w = test_sizes
    return {
        "RP": float(np.average(last, weights=w)),
        "LP": float(np.average(own, weights=w)),
        "BWT": float(np.average((last - own)[:-1], weights=w[:-1])),
        "FGT": float(np.average((best - last)[:-1], weights=w[:-1])),
        "tasks": tasks,
        **scored("accuracy", "percent"),
    }


def scored(name: str, unit: str, *, higher_is_better: bool = True) -> dict[str, Any]:
    """What a summary says of its only score."""
    return {"score": name, "scores": {name: {"unit": unit, "higher_is_better": higher_is_better}}}


def sizes(tasks: int) -> tuple[np.ndarray, np.ndarray]:
    train = (5000 / np.arange(1, tasks + 1) ** 1.2).astype(int)
    return train, np.maximum(train // 10, 1)


def write_run(
    folder: Path,
    settings: dict[str, Any],
    *,
    tasks: int = 12,
    every: int = 4,
    names: list[str] | None = None,
    finished: bool = True,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".longtail.json").write_text('{"kind": "run"}')
    train, test = sizes(tasks)
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    lines = scores(settings, tasks, every)
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = names or [f"word{i}" for i in range(tasks)]
    table = {"names": names, "train_sizes": train.tolist(), "test_sizes": test.tolist()}
    (folder / "tasks.json").write_text(json.dumps(table))
    if finished:
        (folder / "summary.json").write_text(json.dumps(summarise(lines, test)))
        timing = {"seconds": 1.5, "longtail": "0.1.0", "finished": "2026-01-02T03:04:05"}
        (folder / "timing.json").write_text(json.dumps(timing))
    return folder


def set_rp(folder: Path, rp: float) -> None:
    """Give a run another RP, in its summary and, as they must agree, in its last evaluation."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    final = lines[-1]["scores"]
    lines[-1]["scores"] = {task: value + rp - summary["RP"] for task, value in final.items()}
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path.write_text(json.dumps({**summary, "RP": rp}))


def write_stack(folder: Path, members: list[dict[str, Any]], *, tasks: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".longtail.json").write_text('{"kind": "stack"}')
    train, test = sizes(tasks)
    every = 4
    runs = [scores(m, tasks, every) for m in members]
    entries = [
        {"id": identity(m), "config": m, "summary": summarise(lines, test)}
        for m, lines in zip(members, runs, strict=True)
    ]
    (folder / "runs.json").write_text(json.dumps(entries))
    (folder / "timing.json").write_text(json.dumps({"seconds": 2.0}))
    whole = [i for i, line in enumerate(runs[0]) if len(line["scores"]) == i + 1 and i]

    def value(lines: list[dict[str, Any]], after: int, task: int) -> float:
        return lines[after]["scores"][str(task)]

    own = [[value(lines, i, i) for i in range(tasks)] for lines in runs]
    last = [[value(lines, tasks - 1, i) for i in range(tasks)] for lines in runs]
    curve = [
        [np.average([value(r, a, i) for i in range(a + 1)], weights=test[: a + 1]) for a in whole]
        for r in runs
    ]
    np.savez(
        folder / "scores.npz",
        own=np.array(own),
        best=np.maximum(own, last),
        last=np.array(last),
        curve=np.array(curve),
        after=np.array(whole),
        train_sizes=train,
        test_sizes=test,
    )
    return folder


def write_study(folder: Path, *, seeds: int = 3, tasks: int = 12, **kwargs: Any) -> Path:
    for method in ("finetune", "ewc", "derpp"):
        for policy in ("continual", "new"):
            for seed in range(seeds):
                settings = config(method, policy, seed)
                write_run(folder / "runs" / identity(settings), settings, tasks=tasks, **kwargs)
    return folder


def change_summaries(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Writes what `change` adds to the summary of every finished run, given its settings."""
    for path in sorted(folder.rglob("summary.json")):
        settings = tomllib.loads((path.parent / "config.toml").read_text())
        summary = json.loads(path.read_text())
        path.write_text(json.dumps({**summary, **change({**settings, "summary": summary})}))
