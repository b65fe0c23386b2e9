"""What runs are called: the labels by which tables and figures tell them apart."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from longtail.names import POLICIES, WARM_UP, Policy
from longtail.report.labels import method_names

# These name a run or follow from its name; every other setting that varies becomes a label.
NAMING = ("seed", "method", "policy", "moments", "benchmark")
# Keys of a table's row that say something else: a setting of such a name needs a longer label.
CHOOSES = "chooses"  # the label of runs that choose and are not reported, where they are shown
RESERVED = ("seed", "method", "policy", "benchmark", "seeds", "diverged", "selected", "validation")
RESERVED += (CHOOSES,)


class Described(Protocol):
    """A run as far as its name is made of it."""

    @property
    def id(self) -> str: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def seed(self) -> int: ...


R = TypeVar("R", bound=Described)
NO_WARM_UP = "continual without warm-up"  # what our studies call Continual Adam with beta3 = 0
BESIDE = "beside"  # report.average: a row of its own for the average of a run's weights
AVERAGES = {"task": "task average", "ema": "ema"}  # what train.average is called in a policy's name


def label(runs: Sequence[R], plan: Mapping[str, Any]) -> list[tuple[R, dict[str, Any]]]:
    """Every run with what tells it apart: the study's labels, else the settings that vary.

    Runs that the study does not name, left over from an earlier file of it, are left out.
    """
    by_id = {run.id: run for run in runs}
    planned = {entry["id"]: entry["labels"] for entry in plan.get("runs", [])}
    if planned:
        return [(by_id[i], dict(labels)) for i, labels in planned.items() if i in by_id]
    flats = [dict(_flatten(run.config)) for run in runs]
    labels = _named(runs, flats)
    several = len({flat.get("benchmark") for flat in flats}) > 1
    if several:
        for own, flat in zip(labels, flats, strict=True):
            own["benchmark"] = str(flat.get("benchmark", "?"))
    for key, name in label_names(_varying(labels, flats)).items():
        for own, flat in zip(labels, flats, strict=True):
            own[name] = flat.get(key)
    return sorted(zip(runs, labels, strict=True), key=_place)


def _named(runs: Sequence[Described], flats: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The method and the policy of every run."""
    called: dict[str, str] = {}
    for run, flat in zip(runs, flats, strict=True):
        method = str(flat.get("method", "?"))
        called[method] = str(run.summary.get("method_name", method))
    shown = method_labels(called)
    labels = []
    for run, flat in zip(runs, flats, strict=True):
        method = shown[str(flat.get("method", "?"))]
        labels.append({"method": method, "policy": policy_name(run.config)})
    return labels


def label_names(keys: Sequence[str], taken: Collection[str] = ()) -> dict[str, str]:
    """What a setting's label is called: `lr` of train.lr, or train_lr where that is something else.

    >>> label_names(["train.lr", "data.seed"])
    {'train.lr': 'lr', 'data.seed': 'data_seed'}
    """
    short = [key.rpartition(".")[2] for key in keys]
    used = {*RESERVED, *taken}
    return {
        key: key.replace(".", "_") if name in used or short.count(name) > 1 else name
        for key, name in zip(keys, short, strict=True)
    }


def average_labels(labels: Mapping[str, Any], average: str) -> dict[str, Any]:
    """The labels of the row that a run's average of the weights has beside the weights' own.

    >>> average_labels({"method": "ewc", "policy": "kept", "lr": 0.1}, "task")
    {'method': 'ewc', 'policy': 'kept, task average', 'lr': 0.1}
    """
    return {**labels, "policy": f"{labels['policy']}, {AVERAGES[average]}"}


def told_seeds(seeds: Sequence[int]) -> str:
    """Seeds in a sentence.

    >>> told_seeds([100]), told_seeds([7, 8, 9]), told_seeds([3, 7])
    ('seed 100', 'seeds 7 to 9', 'seeds 3, 7')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"seeds {seeds[0]} to {seeds[-1]}" if whole else f"seeds {', '.join(map(str, seeds))}"


def run_name(labels: Mapping[str, Any], seed: int) -> str:
    """A run in a few words.

    >>> run_name({"method": "ewc", "policy": "new", "lr": 0.1}, 3)
    'ewc new, lr 0.1, seed 3'
    """
    rest = "".join(
        f", {k} {v}" for k, v in labels.items() if k not in ("method", "policy", "row", "seed")
    )
    return f"{labels['method']} {labels['policy']}{rest}, seed {seed}"


def method_labels(named: Mapping[str, str]) -> dict[str, str]:
    """What to call methods: by the name each has, unless another has it too, or one of ours.

    >>> method_labels({"ewc": "ewc", "mine:A": "anchor", "mine:B": "ewc"})
    {'ewc': 'ewc', 'mine:A': 'anchor', 'mine:B': 'mine:B'}
    """
    names = list(named.values())
    return {
        method: method if names.count(name) > 1 or name in method_names() else name
        for method, name in named.items()
    }


def _place(named: tuple[Described, Mapping[str, Any]]) -> tuple[Any, ...]:
    """The paper's order of methods and policies, then the other labels, then seeds."""
    run, labels = named
    rank = []
    for key, order in (("method", tuple(method_names())), ("policy", tuple(POLICIES))):
        name = labels[key]
        rank.append((order.index(name) if name in order else len(order), name))
    return (*rank, json.dumps(labels, default=str), run.seed)


def _varying(labels: Sequence[Mapping[str, Any]], flats: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that differ between runs of one method, policy and benchmark, seeds apart."""
    seen: dict[tuple[Any, ...], set[str]] = {}
    for own, flat in zip(labels, flats, strict=True):
        for key, value in flat.items():
            if key.partition(".")[0] not in NAMING:
                seen.setdefault((*own.values(), key), set()).add(json.dumps(value))
    varying: dict[str, None] = {}
    for (*_, key), values in seen.items():
        if len(values) > 1:
            varying[key] = None
    return list(varying)


def policy_name(config: dict[str, Any]) -> str:
    """`continual`, `kept`, `new`, or, for an ablation row, what it does with the moments."""
    name = str(config.get("policy", "?"))
    moments = config.get("moments") or {}
    if name not in POLICIES and ":" in name:  # a function, with settings of its own
        told = ", ".join(f"{key} {value}" for key, value in moments.items())
        return f"{name} ({told})" if told else name
    kept = moments.get("past_dtype", "float32")
    past = "" if kept == "float32" else f" {kept}"
    if name in POLICIES and _is_usual(moments, POLICIES[name]):
        return name + past
    both = f"{moments.get('first_moment')}/{moments.get('second_moment')}"
    beta3 = moments.get("beta3")
    if not beta3:
        return both + past
    return both + ("+adjust" if beta3 == WARM_UP else f"+adjust {beta3}") + past


def _is_usual(moments: dict[str, Any], usual: Policy) -> bool:
    """Whether nothing differs from the named policy, as far as it matters to an optimizer."""
    if "beta3" not in moments and usual.second_moment == "task":  # not Continual Adam: v is kept
        usual = replace(usual, second_moment="ema")
    keys = ["boundary", "beta3"]
    if usual.boundary:  # without a boundary nobody asks what happens to the moments there
        keys += ["first_moment", "second_moment"]
    return all(moments.get(key, getattr(usual, key)) == getattr(usual, key) for key in keys)


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
