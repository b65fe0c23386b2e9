"""The runs that a study file stands for, and those of them that meet conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longtail.report.labelling import label_names
from longtail.runs.config import POLICY_FIELDS, RunConfig, options, resolve
from longtail.runs.values import flatten, parse, unknown
from longtail.study.file import MOST_RUNS, Study, parse_seeds


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
    combinations = math.prod(map(len, study.grid.values()))
    count = len(study.methods) * len(study.policies) * combinations * len(study.seeds)
    if count > MOST_RUNS:
        raise ValueError(f"up to {count:,} runs: a study has at most {MOST_RUNS:,}")
    found: dict[str, Planned] = {}
    for method in study.methods:
        for policy in _policies_of(study, method):
            for config, labels in _combinations(study, method, policy):
                first = resolve(study.benchmark, flags=config)
                for seed in study.seeds:
                    planned = Planned(replace(first, seed=seed), labels)
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
    return [{"name": "reset", "optimizer": "reset"}]


def _combinations(
    study: Study, method: str, policy: Mapping[str, Any]
) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    optimizer = policy.get("optimizer", "continual")
    known = {o.key for o in options(study.benchmark, method, optimizer)}
    fixed = {"method": method, "optimizer": optimizer, **study.fixed}
    fixed |= {f"policy.{k}": policy[k] for k in POLICY_FIELDS if k in policy}
    fixed |= _settings_of(study, method, known)
    labels: dict[str, Any] = {"method": method, "policy": str(policy["name"]), **_labels(policy)}
    # A method without the setting (finetune and a buffer's size) has one run, not several.
    grid = {k: v for k, v in study.grid.items() if k in known or not k.startswith("methods.")}
    names = label_names(list(study.grid), {k for row in study.policies for k in _labels(row)})
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        named = {names[k]: v for k, v in chosen.items()}
        yield {**fixed, **chosen}, {**labels, **named}


def _labels(policy: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of [[policies]] adds to the table, beside its name."""
    used = ("name", "optimizer", "methods", "beta3", "boundary")
    labels = {k: v for k, v in policy.items() if k not in used}
    return {**labels, "lr_adjust": policy["beta3"] > 0} if "beta3" in policy else labels


def _settings_of(study: Study, method: str, known: set[str]) -> dict[str, Any]:
    found = {}
    for key, value in study.method_settings.items():
        if not isinstance(value, dict):
            if f"methods.{key}" in known:
                found[f"methods.{key}"] = value
        elif key == method:
            found |= {f"methods.{k}": v for k, v in value.items()}
    return found


def matching(runs: list[Planned], conditions: Sequence[str]) -> list[Planned]:
    """Runs that meet all of `key=value[,value...]`; keys are labels, seed, or dotted settings."""
    named = [(run, _named(run)) for run in runs] if conditions else []
    left = runs
    for text in conditions:
        key, equals, wanted = text.partition("=")
        key = key.strip()
        if not equals:
            raise ValueError(f"--only takes key=value, got {text!r}")
        if runs and not any(key in names for _, names in named):
            raise unknown("key of --only", key, {k for _, names in named for k in names})
        if key == "seed":
            values = {str(s) for s in parse_seeds(wanted)}  # a range may be wider than the study's
        else:
            known = {str(names.get(key)) for _, names in named}
            values = {_meant(value.strip(), key, known) for value in wanted.split(",")}
        chosen = {run.id for run, names in named if str(names.get(key)) in values}
        left = [run for run in left if run.id in chosen]
    return left


def _meant(value: str, key: str, known: set[str]) -> str:
    """The one of `known` that a value written on the command line stands for."""
    if value in known:
        return value
    parsed = str(parse(value))  # 1e-3 is 0.001, and true is True
    if known and parsed not in known:
        raise unknown(f"{key} of --only", value, known)
    return parsed


def _named(run: Planned) -> dict[str, Any]:
    return {**flatten(run.config.as_dict()), **run.labels, "seed": run.config.seed}


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
        table, _, name = key.partition(".")
        if table == "methods" and name not in known:
            wrong = unknown("setting of the study's methods", name, known)
            raise ValueError(f"grid.{key} = {values!r}: {wrong}")
