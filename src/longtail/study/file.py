"""A study file: what it may say, and the runs it stands for.

    name = "my_study"                       # default: the file's name
    benchmark = "synthetic"
    methods = ["finetune", "ewc"]
    optimizers = ["continual", "reset"]     # or [[policies]], named ablation rows
    seeds = "0-9"                           # or [0, 1, 5]
    stack = true                            # train runs as one program where the benchmark can

    [data]                                  # fixed settings, as in a run's config.toml
    tasks = 1000
    [train]
    lr = 0.1
    [method]
    buffer = 200                            # for every method that has this setting
    [method.ewc]
    strength = 2.0                          # for one

    [grid]                                  # every combination
    "data.setting" = ["same", "perturb", "shift"]

    [[policies]]                            # in place of `optimizers`
    name = "both kept"                      # further keys (row = 9) become columns of the table
    first_moment = "task"
    second_moment = "task"
    beta3 = 0.0

    [select]                                # report only the best value, by validation score
    key = "train.lr"

    [resources]                             # per run, for a cluster
    cpus = 1
    gpus = 0.25

    [report]                                # see docs/report.md
    title = "My study"

Every run has an id, a hash of its resolved settings, so that adding a seed or a method later
computes only what is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longtail.report.labelling import label_names
from longtail.runs.config import POLICY_FIELDS, RunConfig, flatten, options, read_toml, resolve
from longtail.runs.values import parse, unknown
from longtail.study.schema import check_method_settings, checked


@dataclass(frozen=True)
class Study:
    """A study file, read and checked."""

    name: str
    benchmark: str
    methods: list[str]
    policies: list[dict[str, Any]]
    seeds: list[int]
    fixed: dict[str, Any]  # data.* and train.*
    method_settings: dict[str, Any]
    grid: dict[str, list[Any]]
    stack: bool = True
    select: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """One run of a study: its settings, and what the study calls it."""

    config: RunConfig
    labels: dict[str, Any]

    @property
    def id(self) -> str:
        return self.config.id


def read(path: Path, seeds: str | None = None) -> Study:
    """Reads a study file; `ValueError` names what is wrong with it."""
    tree = checked(read_toml(path))
    if "benchmark" not in tree:
        raise ValueError(f"{path} names no benchmark")
    study = Study(
        name=tree.get("name", path.stem),
        benchmark=tree["benchmark"],
        methods=tree["methods"],
        policies=tree["policies"],
        seeds=parse_seeds(seeds if seeds is not None else tree.get("seeds", [0])),
        fixed=flatten({k: tree.get(k, {}) for k in ("data", "train")}),
        method_settings=tree.get("method", {}),
        grid=tree["grid"],
        stack=tree.get("stack", True),
        select=tree.get("select", {}),
        resources=tree.get("resources", {}),
        report=tree.get("report", {}),
    )
    if Path(study.name).name != study.name or study.name in ("", ".."):
        raise ValueError(f"name = {study.name!r}: it names the study's folder, so it has no slash")
    if study.select and study.select.get("key") not in study.grid:
        raise ValueError(f"select.key = {study.select.get('key')!r} is not a key of [grid]")
    return study


def parse_seeds(value: Any) -> list[int]:
    """Seeds from a list, a number or a text such as "0-4, 7".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found = _listed_seeds(value)
    if max(found) >= 2**63:  # a stack keeps its seeds in a tensor
        raise ValueError(f"seeds must be below 2**63, got {max(found)}")
    return found


def _listed_seeds(value: Any) -> list[int]:
    if type(value) is int and value >= 0:
        return [value]
    if isinstance(value, list) and value and all(type(v) is int and v >= 0 for v in value):
        return list(dict.fromkeys(value))
    if not isinstance(value, str):
        raise ValueError(f"seeds must be a list of integers or a text like '0-9', got {value!r}")
    found: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"seeds must look like 0-9 or 0,3,7, got {value!r}")
        if dash and int(last) < int(first):
            raise ValueError(f"seeds = {value!r}: the range {part.strip()} is empty")
        found += range(int(first), int(last if dash else first) + 1)
    return list(dict.fromkeys(found))


def expand(study: Study) -> list[Planned]:
    """The runs, in the order of the file: policies, methods and grid outside, seeds inside."""
    check_method_settings(study.benchmark, study.methods, study.method_settings, study.grid)
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
