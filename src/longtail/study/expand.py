"""The runs that a study file stands for, and those of them that meet conditions."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longtail.report.labelling import label_names, method_labels
from longtail.runs.config import (
    Option,
    RunConfig,
    optimizer_class,
    options,
    own_name,
    resolve,
)
from longtail.runs.values import flatten, parse, unknown
from longtail.study.file import (
    MOST_RUNS,
    ROW_KEYS,
    ROW_TABLES,
    Study,
    parse_seeds,
    setting_of,
)
from longtail.training.optimizer_class import ADAM_SETTINGS

_ADAM_KEYS = {f"train.{name}" for name in ADAM_SETTINGS}
MOMENT_LABELS = ("first_moment", "second_moment", "past_dtype")  # of a row's moments, in its labels
OWN = ("methods", "optim")  # tables whose settings one method or optimizer has and another has not


@dataclass(frozen=True)
class Planned:
    """One run of a study: its settings, and what the study calls it."""

    config: RunConfig
    labels: dict[str, Any]

    @property
    def id(self) -> str:
        return self.config.id


def expand(study: Study) -> list[Planned]:
    """The runs, in the order of the file: policies, methods and grid outside, seeds inside."""
    _check_method_settings(study.benchmark, study.methods, study.method_settings, study.grid)
    _check_optimizer_settings(study)
    count = len(study.seeds) * sum(
        math.prod(map(len, _grid_of_row(study, method, policy).values()))
        for method in study.methods
        for policy in _policies_of(study, method)
    )
    if count > MOST_RUNS:
        raise ValueError(f"up to {count:,} runs: a study has at most {MOST_RUNS:,}")
    found: dict[str, Planned] = {}
    choosing = {*study.select.get("seeds", ())}
    trial = flatten({"train": study.select.get("train", {})})
    for method in study.methods:
        for policy in _policies_of(study, method):
            for flags, labels in _combinations(study, method, policy):
                first = resolve(study.benchmark, flags=flags)
                chooses = resolve(study.benchmark, flags={**flags, **trial}) if trial else first
                for seed in study.seeds:
                    config = chooses if seed in choosing else first
                    planned = Planned(config.with_seed(seed), labels)
                    other = found.setdefault(planned.id, planned).labels["policy"]
                    if other != labels["policy"]:  # one of them would not be in the table
                        names = f"{other!r} and {labels['policy']!r}"
                        raise ValueError(f"{names} of [[policies]] do the same for {method}")
    return list(found.values())


def _policies_of(study: Study, method: str) -> Iterable[dict[str, Any]]:
    """Rows for this method; multi-task training has one task, so its policies are all the same."""
    rows = [r for r in study.policies if method in r.get("methods", study.methods)]
    named = [r for r in rows if "methods" in r]
    if method != "multitask" or named:
        return named if method == "multitask" else rows
    return [{"name": "new", "policy": "new"}]


def grid_of(study: Study, method: str) -> dict[str, list[Any]]:
    """The settings that vary for a method: `methods.ewc.strength` is `methods.strength` of EWC."""
    general = {k: v for k, v in study.grid.items() if setting_of(k) == k}
    own = {
        setting_of(k): v
        for k, v in study.grid.items()
        if setting_of(k) != k and k.split(".")[1] == method
    }
    return general | own


def _row_settings(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a row of [[policies]] has for itself."""
    row = flatten({table: policy.get(table, {}) for table in ROW_TABLES})
    return row | {key: policy[key] for key in ("policy", "optimizer") if key in policy}


def _grid_of_row(study: Study, method: str, policy: Mapping[str, Any]) -> dict[str, list[Any]]:
    """`grid_of` a method without what the row sets itself, and without what no run of it has."""
    row = _row_settings(policy)
    grid = {k: v for k, v in grid_of(study, method).items() if k not in row}
    if "optimizer" in grid:
        return grid
    known = {o.key for o in _options(study, method, {**study.fixed, **row})}
    return {k: v for k, v in grid.items() if k in known or k.partition(".")[0] not in OWN}


def _combinations(
    study: Study, method: str, policy: Mapping[str, Any]
) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    row = _row_settings(policy)
    called = method_labels({m: own_name(m) for m in study.methods})[method]
    labels: dict[str, Any] = {"method": called, "policy": str(policy["name"]), **_labels(policy)}
    keys = list(dict.fromkeys(map(setting_of, study.grid)))
    names = label_names(keys, {k for row in study.policies for k in _labels(row)})
    grid = _grid_of_row(study, method, policy)
    ours = any(map(_ours, _optimizer_names(study)))
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        shared = {"method": method, **study.fixed}
        given = {**shared, **row, **chosen}
        known = {o.key for o in _options(study, method, given)}
        # A method without the setting (finetune and a buffer's size) has one run, not several; nor
        # is there one for every momentum of an optimizer without any.
        left_out = {k for k in chosen if k.partition(".")[0] in OWN and k not in known}
        if ours:  # betas of [train] are for it alone
            left_out |= {k for k in study.fixed if k in _ADAM_KEYS and k not in known}
        settings = {
            **shared,
            **_settings_of(study.method_settings, "methods", method, known),
            **_settings_of(study.optimizer_settings, "optim", given.get("optimizer"), known),
            **row,
            **chosen,
        }
        named = {names[k]: v for k, v in chosen.items() if k not in left_out}
        yield {k: v for k, v in settings.items() if k not in left_out}, {**labels, **named}


def _options(study: Study, method: str, given: Mapping[str, Any]) -> Iterable[Option]:
    policy, optimizer = given.get("policy"), given.get("optimizer")
    name = None if optimizer is None else str(optimizer)
    return options(study.benchmark, method, policy, name)


def _optimizer_names(study: Study) -> list[str | None]:
    """The optimizers that a study may train with; None for the benchmark's own."""
    rows = [row["optimizer"] for row in study.policies if "optimizer" in row]
    found = [*study.grid.get("optimizer", ()), *rows]
    if "optimizer" in study.fixed:
        found.append(study.fixed["optimizer"])
    elif len(rows) < len(study.policies) and "optimizer" not in study.grid:
        found.append(None)
    return found


def _ours(name: str | None) -> bool:
    return name is None or optimizer_class(str(name)).ours


def _labels(policy: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of [[policies]] adds to the table, beside its name."""
    labels = {k: v for k, v in policy.items() if k not in ROW_KEYS}
    moments = policy.get("moments", {})
    labels |= {k: moments[k] for k in MOMENT_LABELS if k in moments}
    return {**labels, "lr_adjust": moments["beta3"] > 0} if "beta3" in moments else labels


def _settings_of(
    settings: Mapping[str, Any], table: str, name: str | None, known: set[str]
) -> dict[str, Any]:
    """What [method] or [optim] says of the method or the optimizer of this name."""
    found = {}
    for key, value in settings.items():
        if not isinstance(value, dict):
            if f"{table}.{key}" in known:
                found[f"{table}.{key}"] = value
        elif key == name:
            found |= {f"{table}.{k}": v for k, v in value.items()}
    return found


def matching(runs: list[Planned], conditions: Sequence[str]) -> list[Planned]:
    """Runs that meet all of `key=value[,value...]`; keys are labels, seed, or dotted settings."""
    named = _all_named(runs) if conditions else []
    left = runs
    for text in conditions:
        key, equals, wanted = text.partition("=")
        key = key.strip()
        if not equals:
            raise ValueError(f"--only takes key=value, got {text!r}")
        kinds = {id(names): names for _, names in named}.values()
        if runs and key != "seed" and not any(key in names for names in kinds):
            raise unknown("key of --only", key, {"seed", *(k for names in kinds for k in names)})
        if key == "seed":
            values = {str(s) for s in parse_seeds(wanted)}  # a range may be wider than the study's
        else:
            known = {str(names.get(key)) for names in kinds}
            paths = {run.config.method: run.labels["method"] for run in runs}
            also = paths if key == "method" else {}  # a user's method has a name and a path
            whole = wanted.strip() in known  # the name of a policy may have a comma
            words = [wanted] if whole else wanted.split(",")
            texts = [also.get(word.strip(), word.strip()) for word in words]
            values = {_meant(text, key, known) for text in texts}
        chosen = {
            run.id
            for run, names in named
            if str(run.config.seed if key == "seed" else names.get(key)) in values
        }
        left = [run for run in left if run.id in chosen]
    return left


def _meant(value: str, key: str, known: set[str]) -> str:
    """The one of `known` that a value written on the command line stands for."""
    if value in known:
        return value
    parsed = parse(value)  # 1e-3 is 0.001, and true is True
    if type(parsed) is int and str(parsed) not in known:  # 3 where the study has 3.0
        with contextlib.suppress(OverflowError):  # an integer of hundreds of digits
            parsed = float(parsed)
    if known and str(parsed) not in known:
        raise unknown(f"{key} of --only", value, known)
    return str(parsed)


def _all_named(runs: list[Planned]) -> list[tuple[Planned, dict[str, Any]]]:
    """Every run with its settings and labels, which those that differ in their seed share."""
    shared: dict[tuple[int, int], dict[str, Any]] = {}
    found = []
    for run in runs:
        place = id(run.labels), id(run.config.train)  # as `expand` makes them
        if place not in shared:
            shared[place] = {**flatten(run.config.as_dict()), **run.labels}
        found.append((run, shared[place]))
    return found


def _check_method_settings(
    benchmark: str, methods: Iterable[str], settings: Mapping[str, Any], grid: Mapping[str, Any]
) -> None:
    """Refuses a setting that no method of the study has, and one for a method it does not have."""
    methods = list(methods)
    known = {o.name for m in methods for o in options(benchmark, m) if o.table == "methods"}
    for key, value in settings.items():
        if isinstance(value, dict):
            if key not in methods:
                wrong = unknown("method of this study", key, methods)
                raise ValueError(f"[method.{key}] = {value!r}: {wrong}")
        elif key not in known:
            wrong = unknown("setting of the study's methods", key, known)
            raise ValueError(f"method.{key} = {value!r}: {wrong}")
    for key, values in grid.items():
        table, *rest = key.split(".")
        if table == "methods" and len(rest) == 2 and rest[0] not in methods:
            wrong = unknown("method of this study", rest[0], methods)
            raise ValueError(f"grid.{key} = {values!r}: {wrong}")
        name = rest[-1] if rest else ""
        if table == "methods" and name not in known:
            wrong = unknown("setting of the study's methods", name, known)
            raise ValueError(f"grid.{key} = {values!r}: {wrong}")


def _check_optimizer_settings(study: Study) -> None:
    """Refuses a setting that no optimizer of the study has."""
    named = [name for name in _optimizer_names(study) if name is not None]
    known = {s.name for name in named for s in optimizer_class(str(name)).settings()}
    for key, value in study.optimizer_settings.items():
        if isinstance(value, dict):
            if key not in named:
                wrong = unknown("optimizer of this study", key, map(str, named))
                raise ValueError(f"[optim.{key}] = {value!r}: {wrong}")
        elif key not in known:
            wrong = unknown("setting of the study's optimizers", key, known)
            raise ValueError(f"optim.{key} = {value!r}: {wrong}")
    for key, values in study.grid.items():
        table, _, name = key.partition(".")
        if table == "optim" and name not in known:
            wrong = unknown("setting of the study's optimizers", name, known)
            raise ValueError(f"grid.{key} = {values!r}: {wrong}")
