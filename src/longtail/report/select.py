"""Model selection: of the values of one setting, or of several, those best on validation data.

Reported seeds are never chosen by their test scores. Seeds that [select] names choose by validation
or, where nothing was held out, by their own RP, and are then left out of the table.

A family is what differs in the values of the [select] keys alone; both are known by a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.report.checks import is_for_every_value
from longtail.report.labelling import CHOOSES, told_seeds
from longtail.report.labels import display

if TYPE_CHECKING:
    import pandas as pd

    from longtail.report.frame import Frames

VALIDATION, RP = "validation", "RP"


@dataclass(frozen=True)
class Tried:
    """What the values of the [select] keys have scored in one family.

    Attributes:
        score: what chooses, "validation" or "RP".
        means: by the text of the value; None where a run diverged or has no score.
        higher_is_better: for the score.
    """

    score: str
    means: dict[str, float | None]
    higher_is_better: bool

    @property
    def best(self) -> str | None:
        """The value with the best mean, the first of several; None where nothing can choose."""
        sign = 1.0 if self.higher_is_better else -1.0
        best, most = None, -np.inf
        for value, mean in self.means.items():
            if mean is not None and (best is None or sign * mean > most):
                best, most = value, sign * mean
        return best

    @property
    def ends(self) -> list[str]:
        """The keys whose best value is the smallest or the largest number of those tried."""
        if self.best is None:
            return []
        ends = []
        for key, value in json.loads(self.best).items():
            numbers = set(filter(_is_number, (json.loads(text).get(key) for text in self.means)))
            if len(numbers) > 1 and value in (min(numbers), max(numbers)):
                ends.append(key)
        return ends


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Choice:
    """What [select] asks for, and what each family has tried.

    Attributes:
        keys: what runs call the settings that are chosen.
        seeds: that choose and are not reported; none where all do both.
        tried: by the text of the family, in the order of the study.
    """

    keys: list[str]
    seeds: list[int]
    tried: dict[str, Tried] = field(default_factory=dict)

    @property
    def best(self) -> dict[str, str]:
        """The best value of every family for which there is one."""
        best: dict[str, str] = {}
        for family, tried in self.tried.items():
            if tried.best is not None:
                best[family] = tried.best
        return best


def place(labels: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, str]:
    """The family of a line, and its values of the [select] keys."""
    family = {name: value for name, value in labels.items() if name not in (*keys, "seed")}
    values = {key: labels[key] for key in keys if key in labels}
    return json.dumps(family, default=str), json.dumps(values)


def select(frames: Frames) -> tuple[Frames, Choice]:
    """The runs with the best values of the study's [select] keys, and what chose them.

    Their keys lack the settings that were chosen, which may differ between methods: these stand in
    `chosen`. Runs of a family for which nothing was chosen stay as they are.
    """
    choice = chosen_by(frames)
    if not choice.tried:
        return frames, choice
    stored = placed(frames.stored, choice.keys)
    finished = stored["status"].eq("finished")
    reported = finished & ~stored["seed"].isin(choice.seeds)
    best = stored["family"].map(choice.best)
    undecided = ~stored["family"].isin(choice.best)
    problems = []
    for family in choice.tried:
        if family not in choice.best:
            ours = stored[finished & stored["family"].eq(family)]
            some = bool(ours["seed"].isin(choice.seeds).any())
            problems.append(told_nothing(family, choice, tried=some))
    won = finished & stored["value"].eq(best)
    kept = stored[~finished | (reported & (won | undecided))]
    chosen = {}
    for family, value in choice.best.items():
        chosen[family] = json.loads(value)
    renamed = kept["family"].where(won, kept["key"])
    left_out = frames.counted - kept["run"].nunique()
    plan = frames.plan
    if choice.best:
        plan = {**plan, "selected": notes_on(choice)}
    selected = replace(
        frames,
        plan=plan,
        problems=(*frames.problems, *problems),
        stored=kept.assign(key=renamed).drop(columns=["family", "value"]),
        chosen=chosen,
        not_selected=frames.not_selected + left_out,
    )
    return selected, choice


def chosen_by(frames: Frames) -> Choice:
    """What every family of finished runs has tried."""
    keys = labels_of(frames.plan)
    choice = Choice(keys, frames.plan.get("select", {}).get("seeds", []))
    finished = frames.finished
    if not keys or finished.empty:
        return choice
    tried = {}
    for family, runs in placed(finished, keys).groupby("family", sort=False):
        tried[str(family)] = _tried(runs, choice.seeds)
    return replace(choice, tried=tried)


def placed(runs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The runs with their family and their value."""
    families, values = {}, {}
    for key in dict.fromkeys(runs["key"]):
        families[key], values[key] = place(json.loads(key), keys)
    return runs.assign(family=runs["key"].map(families), value=runs["key"].map(values))


def _tried(runs: pd.DataFrame, seeds: Sequence[int]) -> Tried:
    """The mean score of every value that seeds which choose have tried; a diverged run has none."""
    asked = runs[runs["seed"].isin(seeds)] if seeds else runs
    held_out = bool(asked["validated"].all())
    score = RP if seeds and len(asked) and not held_out else VALIDATION
    higher = bool(runs["sign"].iloc[0] > 0)
    means: dict[str, float | None] = {}
    for value, own in asked.groupby("value", sort=False):
        if not seeds and not own["validated"].any():  # nothing was held out
            return Tried(score, {}, higher)
        scores = own[score].to_numpy() if score in own else np.array([np.nan])
        means[str(value)] = float(np.mean(scores)) if np.isfinite(scores).all() else None
    return Tried(score, means, higher)


def labels_of(plan: Mapping[str, Any]) -> list[str]:
    """What runs call the settings of [select], [] where nothing is selected."""
    asked = plan.get("select", {}).get("key", "")
    called: set[str] = set()
    for entry in plan.get("runs", []):
        called |= entry["labels"].keys()
    keys = []
    for key in asked if isinstance(asked, list) else [asked]:
        if key:
            short = str(key).rpartition(".")[2]
            keys.append(short if short in called or not called else str(key).replace(".", "_"))
    return keys


# In words and as JSON ----------------------------------------------------------------------------


def family_name(family: str) -> str:
    """A family in the words of a reader."""
    return " ".join(display(name, value) for name, value in json.loads(family).items())


def notes_on(choice: Choice) -> list[str]:
    """Notes on the best values of every family: by which scores, and which lie at an end."""
    keys, best = choice.keys, choice.best
    scores = sorted({tried.score for tried in choice.tried.values()})
    by = " or ".join("RP" if score == RP else "validation score" for score in scores)
    by += f" of {told_seeds(choice.seeds)}" if choice.seeds else ""
    values, ends = [], []
    for family, text in best.items():
        value = json.loads(text)
        values.append(f"{family_name(family)} {_told(value, keys)}".strip())
        at_end = {key: value[key] for key in choice.tried[family].ends}
        if at_end:
            ends.append(f"{family_name(family)} {_told(at_end, keys)}".strip())
    notes = [f"{', '.join(keys)} chosen by {by}: {'; '.join(values)}."]
    if ends:
        notes.append(f"At an end of what was tried, so others may be better: {'; '.join(ends)}.")
    return notes


def _told(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The values that were chosen, by name where there are several settings."""
    if len(keys) == 1:
        return json.dumps(values.get(keys[0]))
    return " ".join(f"{key} {json.dumps(value)}" for key, value in values.items())


def told_nothing(family: str, choice: Choice, *, tried: bool) -> str:
    """Why no value of a family was chosen; `tried` is whether any seed that chooses has run."""
    name, told = family_name(family), ", ".join(choice.keys)
    if choice.seeds:
        none = "none of them has finished"
        reason = "of every value one diverged or has no score" if tried else none
        return f"{name}: no {told} was selected by {told_seeds(choice.seeds)}, as {reason}"
    return (
        f"{name}: no {told} was selected, since the runs have no validation score "
        "(set train.validation above 0)"
    )


def as_json(choice: Choice, scale: float) -> list[dict[str, Any]]:
    """What chose, for table.json: of every family the mean score of each value, in its unit."""
    families = []
    for family, tried in choice.tried.items():
        if tried.best is None:
            continue
        means = []
        for value, mean in tried.means.items():
            means.append({**json.loads(value), "mean": None if mean is None else mean * scale})
        chosen = {"chosen": json.loads(tried.best), "at_end": tried.ends}
        families.append({**json.loads(family), "score": tried.score, **chosen, "tried": means})
    return families


def without_selection(frames: Frames) -> Frames:
    """The same runs with nothing selected: a line for every value, and the scores that choose.

    Seeds that only choose may have trained on fewer examples: they have lines of their own.

    Raises:
        ValueError: the study selects nothing.
    """
    plan = unselected_plan(frames.plan)
    stored = frames.stored
    choosing = stored["seed"].isin(frames.plan["select"].get("seeds", []))
    apart = {}
    for key in dict.fromkeys(stored["key"][choosing]):
        apart[key] = json.dumps({**json.loads(key), CHOOSES: True})
    keys = stored["key"].where(~choosing, stored["key"].map(apart))
    return replace(frames, plan=plan, stored=stored.assign(key=keys))


def unselected_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a study whose table shows every value.

    Raises:
        ValueError: the study selects nothing.
    """
    keys, choosing = labels_of(plan), plan.get("select", {}).get("seeds", [])
    if not keys:
        raise ValueError("--no-select: the study selects nothing (its file has no [select])")
    report = dict(plan.get("report", {}))
    report["further"] = [*report.get("further", ()), VALIDATION]
    report["checks"] = list(filter(is_for_every_value, report.get("checks", ())))
    if report.get("index"):
        report["index"] = list(dict.fromkeys([*report["index"], *keys]))
    rest = {name: value for name, value in plan.items() if name != "select"}
    notes = {"selected": [_apart(plan["select"], choosing)]} if choosing else {}
    return {**rest, "report": report, "unselected": True, **notes}


def _apart(asked: Mapping[str, Any], choosing: Sequence[int]) -> str:
    text = f"Lines with {CHOOSES} = yes are of {told_seeds(choosing)}, by which values are chosen"
    settings = [f"{name} = {value!r}" for name, value in asked.get("train", {}).items()]
    trained = f" (trained with {', '.join(settings)})" if settings else ""
    return f"{text}{trained}; checks leave them out."
