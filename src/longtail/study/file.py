"""A study file: what it may say. Every key is known and every value of its type, or refused.

    name = "my_study"                       # default: the file's name
    benchmark = "synthetic"
    methods = ["finetune", "ewc"]
    policies = ["continual", "new"]         # or [[policies]], named ablation rows
    optimizer = "adamw"                     # default: the benchmark's
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
    [optim]
    momentum = 0.9                          # for every optimizer that has it
    [optim.sgd]
    nesterov = true                         # for one

    [grid]                                  # every combination
    "data.setting" = ["same", "perturb", "shift"]
    "method.ewc.strength" = [1.0, 10.0]     # for one method alone

    [[policies]]                            # in place of `policies`
    name = "both kept"                      # further keys (row = 9) become columns of the table
    policy = "continual"                    # default: kept where an optimizer is named
    optimizer = "adam"
    moments = { first_moment = "task", second_moment = "task", beta3 = 0.0 }
    train = { lr = 0.1 }                    # settings of this row alone; also optim

    [select]                                # report only the best value, by validation score
    key = "train.lr"                        # or several: ["train.lr", "methods.strength"]
    seeds = "100-104"                       # or by the RP of these seeds, which count for no more
    train = { validation = 0.1 }            # for these seeds alone: by their validation score

    [resources]                             # per run, for a cluster
    cpus = 1
    gpus = 0.25

    [report]                                # see docs/report.md
    title = "My study"

Every run has an id, a hash of its resolved settings, so that adding a seed or a method later
computes only what is new.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from longtail.report import checks, papers
from longtail.report.labelling import RESERVED
from longtail.report.labels import measured
from longtail.runs.config import POLICY_FIELDS, method_names, read_toml
from longtail.runs.values import check, flatten, short, unknown
from longtail.support.machine import most_threads

MOST_RUNS = 1_000_000  # of a study: all are named before the first begins
KEYS: dict[str, Any] = {
    "name": str, "benchmark": str, "methods": Any, "optimizer": str, "seeds": Any,
    "stack": bool, "data": dict, "train": dict, "method": dict, "optim": dict, "grid": dict,
    "policies": Any, "select": dict, "resources": dict, "report": dict,
}  # fmt: skip
TABLES: dict[str, dict[str, Any]] = {
    "select": {"key": str | list[str], "seeds": Any, "train": dict},
    "resources": {"cpus": float, "gpus": float},
    "report": {
        "title": str, "paper": str, "unit": str, "metrics": list[str], "further": list[str],
        "index": list[str], "columns": str, "pair": tuple[str, str], "checks": list[str],
        "average": bool | Literal["beside"],
    },
}  # fmt: skip
ROW_TABLES = ("train", "optim", "moments")  # settings of a row of [[policies]] alone
ROW_KEYS = ("name", "policy", "optimizer", "methods", *ROW_TABLES)
# What names a run has keys of its own, in the plural, and is not for [grid].
PLURALS = {"seed": "seeds", "method": "methods", "policy": "policies"}


@dataclass(frozen=True)
class Study:
    """A study file, read and checked."""

    name: str
    benchmark: str
    methods: list[str]
    policies: list[dict[str, Any]]
    seeds: list[int]
    fixed: dict[str, Any]  # optimizer, data.* and train.*
    method_settings: dict[str, Any]
    optimizer_settings: dict[str, Any]
    grid: dict[str, list[Any]]
    stack: bool = True
    select: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


def read_study(path: Path, seeds: str | None = None) -> Study:
    """Reads a study file; `ValueError` names what is wrong with it."""
    content = read_toml(path)
    if "studies" in content:
        raise ValueError(f"{path} names studies, and is none itself")
    tree = _checked(content)
    if "benchmark" not in tree:
        raise ValueError(f"{path} names no benchmark")
    study = Study(
        name=tree.get("name", path.stem),
        benchmark=tree["benchmark"],
        methods=tree["methods"],
        policies=tree["policies"],
        seeds=_all_seeds(seeds if seeds is not None else tree.get("seeds", [0]), tree),
        fixed=flatten({k: tree[k] for k in ("optimizer", "data", "train") if k in tree}),
        method_settings=tree.get("method", {}),
        optimizer_settings=tree.get("optim", {}),
        grid=tree["grid"],
        stack=tree.get("stack", True),
        select=tree.get("select", {}),
        resources=tree.get("resources", {}),
        report=tree.get("report", {}),
    )
    check_name(study.name)
    known = {setting_of(key) for key in study.grid}
    for key in keys_of(study.select):
        if key not in known:
            raise ValueError(f"select.key = {key!r} is not a key of [grid]")
    return study


def check_name(name: str) -> None:
    """Refuses a name that is no name of a folder."""
    if Path(name).name != name or name in ("", ".."):
        raise ValueError(f"name = {name!r}: it names the study's folder, so it has no slash")


def keys_of(select: Mapping[str, Any]) -> list[str]:
    """The settings that [select] chooses values of."""
    found = select.get("key", [None] if select else [])
    return list(found) if isinstance(found, list | tuple) else [found]


def setting_of(key: str) -> str:
    """What a key of [grid] sets: `methods.strength` is the setting of `methods.ewc.strength`."""
    table, *rest = key.split(".")
    return f"methods.{rest[1]}" if table == "methods" and len(rest) == 2 else key


def _all_seeds(value: Any, tree: Mapping[str, Any]) -> list[int]:
    """Those of the study, and those by which [select] chooses."""
    found = parse_seeds(value)
    choosing = tree.get("select", {}).get("seeds", [])
    both = [seed for seed in choosing if seed in found]
    if both:
        raise ValueError(f"select.seeds: seed {both[0]} is one of the study's, which are reported")
    return found + choosing


def parse_seeds(value: Any) -> list[int]:
    """Seeds from a list, a number or a text such as "0-4, 7".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    found = _listed_seeds(value)
    if len(found) > MOST_RUNS:
        raise ValueError(f"{len(found):,} seeds: a study has at most {MOST_RUNS:,} runs")
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
        if not _is_seed(first) or (dash and not _is_seed(last)):
            raise ValueError(f"seeds must look like 0-9 or 0,3,7, got {short(value)}")
        if dash and int(last) < int(first):
            raise ValueError(f"seeds = {value!r}: the range {part.strip()} is empty")
        some = range(int(first), int(last if dash else first) + 1)
        if len(found) + some.stop - some.start > MOST_RUNS:  # before it fills the memory
            count = len(found) + some.stop - some.start
            raise ValueError(
                f"seeds = {short(value)} are {count:,}: a study has at most {MOST_RUNS:,} runs"
            )
        found += some
    return list(dict.fromkeys(found))


def _is_seed(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40


def _checked(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a study file with all of its keys known and its values of their types.

    Raises:
        ValueError: names the key and the value that are wrong.
    """
    found = _table(tree, KEYS, "", "key of a study file")
    for name, types in TABLES.items():
        if name in found:
            found[name] = _table(found[name], types, f"{name}.", f"key of [{name}]")
    for key, value in found.get("resources", {}).items():
        if not 0 <= value < math.inf or (key == "cpus" and value == 0):  # NaN neither
            raise ValueError(f"resources.{key} must be above zero, got {value!r}")
        if key == "cpus" and value > most_threads():  # each is a thread of the run
            raise ValueError(f"resources.cpus must be at most {most_threads():,}, got {value!r}")
    methods = found.get("methods", ["finetune"])
    if not _texts(methods):
        hint = "; settings of methods go into [method]" if isinstance(methods, dict) else ""
        raise ValueError(f"methods must be a list of names, got {methods!r}{hint}")
    found["grid"] = _grid(found.get("grid", {}))
    select = found.get("select", {})
    if "key" in select:
        key = select["key"]
        select["key"] = [*map(_plural, key)] if isinstance(key, list) else _plural(key)
    if "seeds" in select:
        select["seeds"] = parse_seeds(select["seeds"])
    elif "train" in select:
        raise ValueError("select.train is for select.seeds, and there are none")
    return {**found, "methods": methods, "policies": _policies(found, methods)}


def _table(tree: Mapping[str, Any], types: Mapping[str, Any], prefix: str, kind: str) -> dict:
    found = {}
    for key, value in tree.items():
        if key not in types:
            raise ValueError(f"{prefix}{key} = {value!r}: {unknown(kind, key, types)}")
        if types[key] is dict and not isinstance(value, dict):
            raise ValueError(f"{key} must be a table, as [{key}] begins one, got {value!r}")
        found[key] = value if types[key] is dict else check(value, types[key], f"{prefix}{key}")
    return found


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _policies(tree: Mapping[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Named rows: those of [[policies]], else one for every policy's name."""
    chosen = "optimizer" in tree or "optimizer" in tree["grid"]
    rows = tree.get("policies", ["kept"] if chosen else ["continual", "new"])
    if _texts(rows):
        return [{"name": policy, "policy": policy} for policy in rows]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"policies must be names or rows of [[policies]], got {rows!r}")
    for row in rows:
        _row(row, methods)
    taken: set[tuple[str, str]] = set()
    for row in rows:  # one name may stand for one thing with some methods, for another with others
        own = {(row["name"], method) for method in row.get("methods", methods)}
        if taken & own:
            raise ValueError(f"two rows of [[policies]] are called {row['name']!r}")
        taken |= own
    return list(rows)


def _row(row: Mapping[str, Any], methods: Sequence[str]) -> None:
    if "name" not in row:
        raise ValueError(f"a row of [[policies]] has no name: {row}")
    for key, value in row.items():  # other keys are columns of the table, unless they look like one
        near = difflib.get_close_matches(key, (*ROW_KEYS, *POLICY_FIELDS), n=1, cutoff=0.75)
        if key not in ROW_KEYS and near:
            hint = f"did you mean {near[0]!r}?"
            if near[0] in POLICY_FIELDS:
                hint = f"{near[0]} belongs in its table `moments`"
            raise ValueError(
                f"{key} = {value!r} in the row {row['name']!r} of [[policies]]: {hint}"
            )
        if key in ROW_TABLES:
            if not isinstance(value, dict):
                raise ValueError(f"{key} of the row {row['name']!r} must be a table, got {value!r}")
        elif key not in ROW_KEYS and (key in RESERVED or measured(key)):
            raise ValueError(
                f"{key} = {value!r} in the row {row['name']!r} of [[policies]]: "
                "a table has another column of this name"
            )
    for key in ("policy", "optimizer"):
        check(row.get(key, ""), str, f"{key} of the row {row['name']!r}")
    beta3 = row.get("moments", {}).get("beta3", 0.0)
    check(beta3, float, f"beta3 of the row {row['name']!r}")
    only = row.get("methods", list(methods))
    if not _texts(only):
        raise ValueError(
            f"methods of the row {row['name']!r} must be a list of names, got {only!r}"
        )
    for method in only:
        if method not in methods and method not in method_names():
            raise unknown(f"method of the row {row['name']!r}", method, methods)


def _grid(tree: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {_plural(key): values for key, values in flatten(tree).items()}
    for key, values in found.items():
        if key in PLURALS:
            raise ValueError(f"grid.{key} = {values!r}: give {PLURALS[key]} at the top of the file")
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid.{key} must be a list of values, got {values!r}")
    return found


def _plural(key: str) -> str:
    """The table of a run is called methods, that of a study [method]: both are understood."""
    return f"methods.{key.removeprefix('method.')}" if key.startswith("method.") else key


def check_report(report: Mapping[str, Any], labels: Sequence[Mapping[str, Any]]) -> None:
    """Refuses what a report could not do, before hours of runs: `labels` are those of the runs."""
    for name in report.get("checks", ()):
        checks.lookup(name)
    if "paper" in report:
        papers.unit(report["paper"])
    known = {key for row in labels for key in row} | {"tasks", "seeds"}
    for key in (*report.get("index", ()), report.get("columns", "method")):
        if key not in known:
            raise unknown("label in [report]", key, known)
    named = {str(row[key]) for row in labels for key in ("policy", "row") if key in row}
    for policy in report.get("pair", ()):
        if policy not in named:
            raise unknown("policy in report.pair", policy, named)
