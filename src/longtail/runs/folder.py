"""A run and its folder: claim it, resume, train, write results that compare byte for byte.

======================= ============================================================
config.toml             every setting, resolved
tasks.json              names and sizes of the tasks
scores.jsonl            one line per evaluation, append only
summary.json            RP, LP, BWT, FGT and the breakdown; written last, so it marks the end
model.safetensors       final weights
timing.json             dates, seconds, versions, hardware, and from where the run was started;
                        the only file that has them
snapshot/               the last consistent states
======================= ============================================================

A stack's folder has ``stack.json`` in place of config.toml, ``runs.json`` in place of summary.json
and ``scores.npz`` in place of scores.jsonl; while it trains, ``partial.npz`` has its scores so far.
"""

from __future__ import annotations

import io
import json as jsonlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import tomli_w
import torch
from torch import nn

from longtail.metrics import breakdown, curve, summary
from longtail.names import POLICIES
from longtail.runs.build import Stack, build_run, build_stack
from longtail.runs.config import POLICY_FIELDS, RunConfig, read_toml, stack_key
from longtail.runs.progress import Reporter, finite
from longtail.runs.progress import reporter as choose_reporter
from longtail.runs.session import Session
from longtail.runs.snapshot import seed_generators
from longtail.runs.values import first_difference
from longtail.support.files import FolderLock, parse_json, to_json, write_atomic, write_json
from longtail.support.machine import choose_device
from longtail.support.random import derive
from longtail.tasks import Evaluator
from longtail.training import Run
from longtail.training.evaluation import evaluate_validation

__all__ = ["execute", "execute_stack", "stack_key"]


def execute(
    config: RunConfig,
    out: str | Path,
    *,
    quiet: bool = False,
    json: bool = False,
    device: str = "auto",
    threads: int | None = None,
    snapshot_minutes: float = 2.0,
    reporter: Reporter | None = None,
    on_step: Callable[[Run], None] | None = None,
) -> dict[str, Any]:
    """Train ``config`` in the folder ``out``, or go on with it, or do nothing if it is finished.

    Returns:
        The content of summary.json.

    Raises:
        ValueError: the folder holds another configuration or cannot be made, or a living process
            holds it.
        Stopped: a signal came; the state is saved.
    """
    out, tell = Path(out), reporter or choose_reporter(quiet, json)
    place = choose_device(device)
    made = not out.exists()
    with FolderLock(out), _leaving_nothing(out / "config.toml", made):
        _claim(out / "config.toml", config.as_dict(), read_toml, tomli_w.dumps)
        if (out / "summary.json").exists():
            result = _end_mark(out / "summary.json")
            tell.finish(result, str(out))
            return result
        with _threads(threads):
            seed_generators(derive(config.seed, "run"))
            run = build_run(config, place)
            session = Session(run, out, config.as_dict(), tell, snapshot_minutes)
            session.train(_title(config), on_step)
            result = _run_results(run, config)
            write_atomic(out / "model.safetensors", _weights(run.model))
            session.write_timing()
            write_json(out / "summary.json", result)
    tell.finish(result, str(out))
    return result


def execute_stack(
    configs: Sequence[RunConfig],
    out: str | Path,
    *,
    quiet: bool = False,
    json: bool = False,
    device: str = "auto",
    threads: int | None = None,
    snapshot_minutes: float = 2.0,
    reporter: Reporter | None = None,
    on_step: Callable[[Run], None] | None = None,
) -> list[dict[str, Any]]:
    """As `execute`, for configs with one `stack_key`, trained as one program.

    Returns:
        The content of runs.json: id, config and summary of each config, in their order.
    """
    out, tell = Path(out), reporter or choose_reporter(quiet, json)
    place = choose_device(device)
    plan = {config.id: config.as_dict() for config in configs}
    made = not out.exists()
    with FolderLock(out), _leaving_nothing(out / "stack.json", made):
        _claim(out / "stack.json", plan, _read_json, to_json)
        if (out / "runs.json").exists():
            return _read_json(out / "runs.json")
        with _threads(threads):
            seed_generators(derive(configs[0].seed, "run"))
            stack = build_stack(configs, place)
            session = Session(stack.run, out, {"runs": list(plan)}, tell, snapshot_minutes)
            session.train(f"{len(configs)} runs of {configs[0].benchmark}", on_step)
            result, arrays = _stack_results(stack)
            file = io.BytesIO()
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            write_atomic(out / "scores.npz", file.getvalue())
            session.write_timing()
            write_json(out / "runs.json", result)
            (out / "partial.npz").unlink(missing_ok=True)
    return result


@contextmanager
def _leaving_nothing(claim: Path, made: bool) -> Iterator[None]:
    """A new folder stays as it was where anything goes wrong before training begins."""
    out = claim.parent
    new = {path.name for path in out.iterdir()} <= {".lock"}
    try:
        yield
    except Exception:
        if new and not (out / "tasks.json").exists():
            claim.unlink(missing_ok=True)
            (out / ".lock").unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # a file of somebody else's: the folder stays
                    out.rmdir()
        raise


def _claim(
    path: Path,
    config: dict[str, Any],
    read: Callable[[Path], dict[str, Any]],
    dump: Callable[[dict[str, Any]], str],
) -> None:
    """Write the settings into a new folder; refuse one that was started with others."""
    marks = ("tasks.json", "snapshot", "summary.json", "runs.json")
    begun = any((path.parent / name).exists() for name in marks)
    if not path.exists() or not begun:  # settings whose benchmark could not be built bind nobody
        write_atomic(path, dump(config))
        return
    difference = first_difference(read(path), config)
    if difference:
        key, there, here = difference
        raise ValueError(
            f"{path.parent} holds another configuration: {key} is {there!r} there and {here!r} "
            "here; choose another --out or the same settings"
        )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    if count is not None and count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _title(config: RunConfig) -> str:
    return f"{config.benchmark}, {config.method}, {config.optimizer}, seed {config.seed}"


def _weights(model: nn.Module) -> bytes:
    # Copies: tied weights share memory, which safetensors would refuse to write.
    state = {k: v.detach().cpu().clone().contiguous() for k, v in model.state_dict().items()}
    return safetensors.torch.save(state, metadata={"format": "pt"})


def _run_results(run: Run, config: RunConfig) -> dict[str, Any]:
    return _result(finite(_metrics(run)), run, config)


def _metrics(run: Run) -> dict[str, Any]:
    """What was measured: numbers, or arrays [P, S] of a stack."""
    main = run.sequence.objective.score_name
    found = {**summary(run.matrix), "breakdown": breakdown(run.matrix, run.sequence.train_sizes)}
    found |= {name: summary(matrix) for name, matrix in run.matrices.items() if name != main}
    evaluator = run.evaluate or Evaluator()
    found |= evaluator.summary(run.matrix, run.sequence)
    with run.evaluating():
        validation = evaluate_validation(run.scored, run.sequence, evaluator)
    return found if validation is None else {**found, "validation": validation}


def _result(
    metrics: Mapping[str, Any], run: Run, config: RunConfig, policy: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What summary.json says, where ``metrics`` are finite numbers or None."""
    objective = run.sequence.objective
    return {
        **metrics,
        "tasks": len(run.sequence),
        "optimizer": _policy_name(config),
        "policy": finite(config.as_dict()["policy"] if policy is None else policy),
        "score": objective.score_name,
        "higher_is_better": objective.higher_is_better,
    }


def _policy_name(config: RunConfig) -> str:
    """The policy's name, marked where its settings are not those that go by this name."""
    known = POLICIES[config.optimizer]
    same = all(getattr(config.policy, k) == getattr(known, k) for k in POLICY_FIELDS)
    return config.optimizer + ("" if same else " (changed)")


def _stack_results(stack: Stack) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    matrix, sequence = stack.run.matrix, stack.run.sequence
    metrics = _listed(_metrics(stack.run))
    after, points = curve(matrix)
    entries = []
    for config, place in zip(stack.configs, stack.places, strict=True):
        told = config.as_dict()
        found = _result(_at(metrics, place), stack.run, config, told["policy"])
        entries.append({"id": config.id, "config": told, "summary": found})
    rows, seeds = (list(numbers) for numbers in zip(*stack.places, strict=True))
    arrays = {
        name: np.ascontiguousarray(values[rows, seeds])
        for name, values in (
            ("own", matrix.own),
            ("best", matrix.best),
            ("last", matrix.last),
            ("curve", points),
        )
    }
    arrays |= {"after": after, "test_sizes": sequence.test_sizes}
    return entries, arrays | {"train_sizes": sequence.train_sizes}


def _listed(values: Any) -> Any:
    """A nest of arrays as lists of finite numbers or None: thousands of runs pick theirs."""
    if isinstance(values, Mapping):
        return {str(key): _listed(value) for key, value in values.items()}
    if isinstance(values, np.ndarray):
        return _Listed(finite(values.astype(np.float64).tolist()))
    return finite(values)


class _Listed(list[Any]):
    """An array [P, S] as lists, to be told from a list that is everyone's."""


def _at(values: Any, place: tuple[int, int]) -> Any:
    """One replica's share of what `_listed` gives; plain numbers are everyone's."""
    if type(values) is _Listed:
        return values[place[0]][place[1]]
    if type(values) is dict:
        return {key: _at(value, place) for key, value in values.items()}
    return values


def _end_mark(path: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    try:
        return parse_json(path, dict)
    except ValueError as error:
        text = f"{path.parent}: {error}; delete this file and the last snapshot gives it anew"
        raise ValueError(text) from None


def _read_json(path: Path) -> Any:
    return jsonlib.loads(path.read_text(encoding="utf-8"))
