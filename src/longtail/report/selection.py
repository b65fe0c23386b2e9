"""Model selection: of the values of one setting, report the one that is best on validation data.

Test scores play no part: a group without a validation score is not selected from, and says so.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from longtail.report.groups import display
from longtail.report.results import Result, Results


def select(results: Results) -> None:
    """Keeps, in place, the runs with the best value of the study's [select] key."""
    key = _label(results.plan)
    if not key or not results.finished:
        return
    families: dict[str, dict[str, list[Result]]] = {}
    for run in results.finished:
        rest = {k: v for k, v in run.labels.items() if k not in (key, "seed")}
        value = json.dumps(run.labels.get(key))
        families.setdefault(json.dumps(rest, default=str), {}).setdefault(value, []).append(run)
    kept: set[str] = set()
    notes = []
    for rest, values in families.items():
        name = " ".join(display(k, v) for k, v in json.loads(rest).items())
        chosen = _best(values)
        if chosen is None:
            results.problems.append(
                f"{name}: no {key} was selected, since the runs have no validation score "
                "(set train.validation above 0)"
            )
            kept |= {run.id for runs in values.values() for run in runs}
            continue
        kept |= {run.id for run in values[chosen]}
        notes.append(f"{name} {chosen}")
        for run in values[chosen]:  # no longer part of the name: it may differ between methods
            run.labels = {k: v for k, v in run.labels.items() if k != key}
    before = len(results.runs)
    results.runs = [run for run in results.runs if run.id in kept or run.status != "finished"]
    results.not_selected += before - len(results.runs)
    if notes:
        text = f"{key} chosen by validation score: {'; '.join(notes)}."
        results.plan = {**results.plan, "selected": [text]}


# Checks that compare rows which differ in nothing else. Others ask for the one row of a method, and
# would take that of the first value.
AT_EVERY_VALUE = (
    "mc_improves",
    "mc_improves_error",
    "mc_forgets_less",
    "longtail.report.claims.wsd:wsd",
)


def without_selection(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with nothing to select: a line for every value, and the scores that would choose."""
    key = _label(plan)
    if not key:
        raise ValueError("--no-select: the study selects nothing (its file has no [select])")
    report = plan.get("report", {})
    report = {**report, "further": [*report.get("further", ()), "validation"]}
    report["checks"] = [name for name in report.get("checks", ()) if name in AT_EVERY_VALUE]
    if report.get("index"):
        report["index"] = [*dict.fromkeys([*report["index"], key])]
    return {**{k: v for k, v in plan.items() if k != "select"}, "report": report}


def _label(plan: dict[str, Any]) -> str:
    """What runs call the setting of [select], "" where nothing is selected."""
    key = str(plan.get("select", {}).get("key", ""))
    short = key.rpartition(".")[2]
    labels = [entry["labels"] for entry in plan.get("runs", [])]
    return short if any(short in names for names in labels) or not labels else key.replace(".", "_")


def _best(values: dict[str, list[Result]]) -> str | None:
    """The value whose runs have the best mean validation score; a diverged run rules it out."""
    means: dict[str, float] = {}
    for value, runs in values.items():
        scores: list[Any] = [run.summary.get("validation") for run in runs]
        if all("validation" not in run.summary for run in runs):
            return None
        if all(isinstance(s, int | float) and np.isfinite(s) for s in scores):
            means[value] = float(np.mean(scores))
    if not means:
        return None
    higher = next(iter(values.values()))[0].higher_is_better
    return (max if higher else min)(means, key=lambda value: means[value])
