"""What tables call methods, policies and lines: names of ours, and those that packages offer.

Packages name their methods for tables as ``longtail.labels``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from longtail.names import METHOD_NAMES, METRICS, POLICY_NAMES
from longtail.support import doors

GROUP = "longtail.labels"
# Labels of an ablation's row that follow from its policy, so that its name says them all.
POLICY_LABELS = ("row", "first_moment", "second_moment", "lr_adjust")


@cache
def method_names() -> dict[str, str]:
    """From the name of a method to what tables call it, in the order of tables.

    Multi-task training, which bounds the others, stands last.
    """
    named = dict(METHOD_NAMES)
    last = named.pop("multitask")
    for _, labels in doors.load_all(GROUP):
        named |= labels
    return named | {"multitask": last}


def measured(key: str) -> bool:
    """Whether a row's key is a number of it (RP, RP_se, late.RP), not part of its name (lr)."""
    return "." in key or key.partition("_")[0] in (*METRICS, "validation")


def display(key: str, value: Any) -> str:
    """A label as a reader sees it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    names = {"method": method_names(), "policy": POLICY_NAMES}.get(key, {})
    text = "-" if value is None else str(value)  # a list too, such as betas
    return names.get(text, text)


def row_name(labels: Mapping[str, Any]) -> str:
    """A line of a table in a few words: method and policy, and whatever else tells it apart.

    >>> row_name({"method": "ewc", "policy": "continual", "lr": 0.1}).endswith(", lr 0.1")
    True
    """
    parts = [line_name(labels)]
    for name, value in labels.items():
        if name not in ("method", "policy", *POLICY_LABELS):
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def line_name(labels: Mapping[str, Any]) -> str:
    """Method and policy, the part of a name that a colour stands for."""
    method = display("method", labels.get("method", ""))
    if "row" in labels:  # an ablation of one method: its name would be on every line
        return named_row(labels)
    if labels.get("method") == "multitask":
        return method
    policy = display("policy", labels.get("policy", ""))
    return f"{method} {policy}".strip()


def named_row(labels: Mapping[str, Any]) -> str:
    """A row of an ablation as a reader sees it: `Continual Adam (row 7)`.

    >>> named_row({"policy": "mine", "row": 2})
    'mine (row 2)'
    """
    name = display("policy", labels.get("policy", ""))
    return f"{name} (row {labels['row']})".strip()


def is_policy(labels: Mapping[str, Any], policy: str) -> bool:
    """Whether a line has the policy of this name, or is the row of this number."""
    return policy in (str(labels.get("policy")), str(labels.get("row")))
