"""Model selection: of the values of one setting, report the one that is best on validation data.

Test scores play no part: a group without a validation score is not selected from, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np

from longtail.report.groups import display
from longtail.report.labelling import CHOOSES, told_seeds
from longtail.report.results import Result, Results, count


def select(results: Results) -> None:
    """Keeps, in place, the runs with the best values of the study's [select] keys.

    Where [select] names seeds, these alone choose and are not reported: by their validation score
    where they have one, else by their RP. Where none of them has been trained, a plan
    may have in `chosen` what a table has told (`longtail study --best-in`).
    """
    keys, choosing = labels_of(results.plan), results.plan.get("select", {}).get("seeds", [])
    if not keys or not results.finished:
        return
    families = _families(results, keys)
    kept: set[int] = (
        set()
    )  # not by the run's name: it may stand twice, the second time by its average
    best: dict[str, str] = {}
    for rest, values in families.items():
        chosen = _best(values, choosing)
        told = results.plan.get("chosen", {}).get(rest)
        if chosen is None and isinstance(told, str) and told in values:
            chosen = told
        if chosen is None:
            runs = [run for some in values.values() for run in some]
            tried = any(run.seed in choosing for run in runs)
            results.problems.append(told_nothing(rest, keys, choosing, tried=tried))
            kept |= {id(run) for run in runs if run.seed not in choosing}
            continue
        kept |= {id(run) for run in values[chosen] if run.seed not in choosing}
        best[rest] = chosen
        for run in values[chosen]:  # no longer part of the name: it may differ between methods
            run.chosen = json.loads(chosen)
            run.labels = {k: v for k, v in run.labels.items() if k not in keys}
    before = count(results.runs)
    results.runs = [run for run in results.runs if id(run) in kept or run.status != "finished"]
    results.not_selected += before - count(results.runs)
    if best:
        scores = {_score(values, choosing) for values in families.values()}
        text = told_best(best, keys, choosing, scores)
        results.plan = {**results.plan, "selected": [text]}


def _families(results: Results, keys: list[str]) -> dict[str, dict[str, list[Result]]]:
    """The finished runs by what they are called without the chosen settings, and by those."""
    families: dict[str, dict[str, list[Result]]] = {}
    for run in results.finished:
        family, value = place(run.labels, keys)
        families.setdefault(family, {}).setdefault(value, []).append(run)
    return families


def place(labels: dict[str, Any], keys: list[str]) -> tuple[str, str]:
    """What a run is called without the settings of [select], and its values of those."""
    rest = {k: v for k, v in labels.items() if k not in (*keys, "seed")}
    chosen = {k: labels[k] for k in keys if k in labels}
    return json.dumps(rest, default=str), json.dumps(chosen)


def best_values(results: Results) -> dict[str, str]:
    """For every family of finished runs, as `place` names it, the values that are best."""
    keys, choosing = labels_of(results.plan), results.plan.get("select", {}).get("seeds", [])
    found = {family: _best(v, choosing) for family, v in _families(results, keys).items()}
    return {family: value for family, value in found.items() if value is not None}


def family_name(family: str) -> str:
    """A family, as `place` names it, in the words of a reader."""
    return " ".join(display(k, v) for k, v in json.loads(family).items())


def told_best(
    best: dict[str, str], keys: list[str], choosing: list[int], scores: Collection[str]
) -> str:
    """The note on what was chosen: the values of every family, and by which scores and seeds."""
    notes = [f"{family_name(f)} {_told(json.loads(v), keys)}".strip() for f, v in best.items()]
    by = " or ".join("RP" if name == "RP" else "validation score" for name in sorted(scores))
    by += f" of {told_seeds(choosing)}" if choosing else ""
    return f"{', '.join(keys)} chosen by {by}: {'; '.join(notes)}."


def _told(values: dict[str, Any], keys: list[str]) -> str:
    """The values that were chosen, by name where there are several settings."""
    if len(keys) == 1:
        return json.dumps(values.get(keys[0]))
    return " ".join(f"{key} {json.dumps(value)}" for key, value in values.items())


def told_nothing(family: str, keys: list[str], choosing: list[int], *, tried: bool) -> str:
    """Why no value of a family was chosen; `tried` is whether any seed that chooses has run."""
    name, told = family_name(family), ", ".join(keys)
    if choosing:
        none = "none of them has finished"
        why = "of every value one diverged or has no score" if tried else none
        return f"{name}: no {told} was selected by {told_seeds(choosing)}, as {why}"
    return (
        f"{name}: no {told} was selected, since the runs have no validation score "
        "(set train.validation above 0)"
    )


# Checks that compare rows which differ in nothing else. Others ask for the one row of a method, and
# would take that of the first value.
AT_EVERY_VALUE = (
    "mc_improves",
    "mc_improves_error",
    "mc_forgets_less",
    "longtail.report.claims.wsd:wsd",
)


def without_selection(results: Results) -> None:
    """Has, in place, nothing selected: a line for every value, and the scores that would choose.

    Seeds that only choose may have trained on fewer examples: they have lines of their own.
    """
    plan = results.plan
    keys, choosing = labels_of(plan), plan.get("select", {}).get("seeds", [])
    if not keys:
        raise ValueError("--no-select: the study selects nothing (its file has no [select])")
    for run in results.runs:
        if run.seed in choosing:
            run.labels = {**run.labels, CHOOSES: True}
    report = plan.get("report", {})
    report = {**report, "further": [*report.get("further", ()), "validation"]}
    report["checks"] = [name for name in report.get("checks", ()) if name in AT_EVERY_VALUE]
    if report.get("index"):
        report["index"] = [*dict.fromkeys([*report["index"], *keys])]
    rest = {k: v for k, v in plan.items() if k != "select"}
    results.plan = {**rest, "report": report, "unselected": True}
    if choosing:
        own = plan["select"].get("train", {})
        text = (
            f"Lines with {CHOOSES} = yes are of {told_seeds(choosing)}, by which values are chosen"
        )
        text += (
            f" (trained with {', '.join(f'{k} = {v!r}' for k, v in own.items())})" if own else ""
        )
        results.plan["selected"] = [f"{text}; checks leave them out."]


def labels_of(plan: dict[str, Any]) -> list[str]:
    """What runs call the settings of [select], [] where nothing is selected."""
    found = plan.get("select", {}).get("key", "")
    labels = [entry["labels"] for entry in plan.get("runs", [])]

    def label(key: str) -> str:
        short = key.rpartition(".")[2]
        known = any(short in names for names in labels) or not labels
        return short if known else key.replace(".", "_")

    return [label(str(key)) for key in (found if isinstance(found, list) else [found]) if key]


def _best(values: dict[str, list[Result]], choosing: list[int]) -> str | None:
    """The value whose runs have the best mean score; a diverged run rules it out."""
    means: dict[str, float] = {}
    name = _score(values, choosing)
    for value, runs in values.items():
        asked = [run for run in runs if run.seed in choosing] if choosing else runs
        scores: list[Any] = [run.summary.get(name) for run in asked if not run.diverged]
        if not choosing and all(name not in run.summary for run in asked):
            return None
        if (
            scores
            and len(scores) == len(asked)
            and all(isinstance(s, int | float) and np.isfinite(s) for s in scores)
        ):
            means[value] = float(np.mean(scores))
    if not means:
        return None
    higher = next(iter(values.values()))[0].higher_is_better
    return (max if higher else min)(means, key=lambda value: means[value])


def _score(values: dict[str, list[Result]], choosing: list[int]) -> str:
    """What chooses: the score on validation examples, or RP where seeds choose that have none."""
    asked = [run for runs in values.values() for run in runs if run.seed in choosing]
    held_out = all("validation" in run.summary for run in asked)
    return "RP" if choosing and asked and not held_out else "validation"
