"""Model selection: of the values of one setting, report the one that is best on validation data.

Reported seeds are never chosen by their test scores. Seeds that [select] names choose by validation
or, where nothing was held out, by their own RP, and are then left out of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from longtail.report.checks import is_for_every_value
from longtail.report.groups import display
from longtail.report.labelling import CHOOSES, told_seeds
from longtail.report.results import Result, Results, count


class Tried(NamedTuple):
    """What the values of the [select] keys have scored in one family, as `place` writes them."""

    score: str  # what chooses: "validation" or "RP"
    means: dict[str, float | None]  # None where a run diverged or has no score
    higher_is_better: bool

    @property
    def best(self) -> str | None:
        """The value with the best mean."""
        scores = {value: mean for value, mean in self.means.items() if mean is not None}
        choose = max if self.higher_is_better else min
        return choose(scores, key=lambda value: scores[value]) if scores else None

    @property
    def ends(self) -> list[str]:
        """The keys whose best value is the smallest or the largest number of those tried."""
        if self.best is None:
            return []
        chosen, tried = json.loads(self.best), [json.loads(value) for value in self.means]
        found = []
        for key, value in chosen.items():
            numbers = {other[key] for other in tried if _number(other.get(key))}
            if len(numbers) > 1 and value in (min(numbers), max(numbers)):
                found.append(key)
        return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def select(results: Results) -> dict[str, Tried]:
    """Keeps, in place, the runs with the best values of the study's [select] keys.

    Returns what chose, by family.

    Where [select] names seeds, these alone choose and are not reported: by their validation score
    where they have one, else by their RP. Where none of them has been trained, a plan
    may have in `chosen` what a table has told (`longtail study --best-in`).
    """
    keys, choosing = labels_of(results.plan), results.plan.get("select", {}).get("seeds", [])
    if not keys or not results.finished:
        return {}
    families = _families(results, keys)
    tried = {rest: _tried(values, choosing) for rest, values in families.items()}
    # By object and not by id: with `average = "beside"` one run stands twice, once for its weights
    # and once for their average.
    kept: set[int] = set()
    best: dict[str, str] = {}
    for rest, values in families.items():
        chosen = tried[rest].best
        given = results.plan.get("chosen", {}).get(rest)
        if chosen is None and isinstance(given, str) and given in values:
            chosen = given
        if chosen is None:
            runs = [run for some in values.values() for run in some]
            begun = any(run.seed in choosing for run in runs)
            results.problems.append(told_nothing(rest, keys, choosing, tried=begun))
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
        results.plan = {**results.plan, "selected": notes_on(best, tried, keys, choosing)}
    return tried


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
    found = {f: _tried(values, choosing).best for f, values in _families(results, keys).items()}
    return {family: value for family, value in found.items() if value is not None}


def family_name(family: str) -> str:
    """A family, as `place` names it, in the words of a reader."""
    return " ".join(display(k, v) for k, v in json.loads(family).items())


def notes_on(
    best: dict[str, str], tried: dict[str, Tried], keys: list[str], choosing: list[int]
) -> list[str]:
    """Notes on the best values of every family: by which scores, and which lie at an end."""
    values = {family: json.loads(value) for family, value in best.items()}
    by = " or ".join("RP" if x == "RP" else "validation score" for x in sorted(_scores(tried)))
    by += f" of {told_seeds(choosing)}" if choosing else ""
    notes = [f"{', '.join(keys)} chosen by {by}: {_listed(values, keys)}."]
    ends = {f: {key: values[f][key] for key in tried[f].ends} for f in best}
    if any(ends.values()):
        found = _listed({family: value for family, value in ends.items() if value}, keys)
        notes.append(f"At an end of what was tried, so others may be better: {found}.")
    return notes


def _scores(tried: dict[str, Tried]) -> set[str]:
    return {family.score for family in tried.values()}


def _listed(values: dict[str, dict[str, Any]], keys: list[str]) -> str:
    """Families with their values."""
    return "; ".join(f"{family_name(f)} {_told(v, keys)}".strip() for f, v in values.items())


def as_json(tried: dict[str, Tried], unit: str) -> list[dict[str, Any]]:
    """What chose, for table.json: of every family the mean score of each value, in this unit."""
    scale = 100.0 if unit == "percent" else 1.0
    found = []
    for family, entry in tried.items():
        if entry.best is None:
            continue
        means = [
            {**json.loads(value), "mean": None if mean is None else mean * scale}
            for value, mean in entry.means.items()
        ]
        chosen = {"chosen": json.loads(entry.best), "at_end": entry.ends}
        found.append({**json.loads(family), "score": entry.score, **chosen, "tried": means})
    return found


def from_json(
    entries: list[dict[str, Any]], higher_is_better: bool
) -> Iterator[tuple[dict[str, Any], Tried]]:
    """What `as_json` wrote, in its unit: the labels of each family, and what chose there."""
    for entry in entries:
        labels = {k: v for k, v in entry.items() if k not in ("score", "chosen", "at_end", "tried")}
        means = {
            json.dumps({k: v for k, v in each.items() if k != "mean"}): each["mean"]
            for each in entry["tried"]
        }
        yield labels, Tried(entry["score"], means, higher_is_better)


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
    report["checks"] = [name for name in report.get("checks", ()) if is_for_every_value(name)]
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


def _tried(values: dict[str, list[Result]], choosing: list[int]) -> Tried:
    """The mean score of every value that seeds which choose have tried; a diverged run has none."""
    means: dict[str, float | None] = {}
    name = _score(values, choosing)
    higher = next(iter(values.values()))[0].higher_is_better
    for value, runs in values.items():
        asked = [run for run in runs if run.seed in choosing] if choosing else runs
        if not choosing and all(name not in run.summary for run in asked):
            return Tried(name, {}, higher)
        scores: list[Any] = [run.summary.get(name) for run in asked if not run.diverged]
        whole = len(scores) == len(asked) and all(_number(s) and np.isfinite(s) for s in scores)
        if asked:
            means[value] = float(np.mean(scores)) if whole else None
    return Tried(name, means, higher)


def _score(values: dict[str, list[Result]], choosing: list[int]) -> str:
    """What chooses: the score on validation examples, or RP where seeds choose that have none."""
    asked = [run for runs in values.values() for run in runs if run.seed in choosing]
    held_out = all("validation" in run.summary for run in asked)
    return "RP" if choosing and asked and not held_out else "validation"
