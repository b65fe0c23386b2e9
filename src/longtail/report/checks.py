"""Claims computed from a table's rows, each with its numbers: what a study asserts.

A study names its checks in `[report] checks = ["mc_improves"]`. A check is a function from the rows
of table.json to a list of claims; studies register their own:

    @register("my_check")
    def my_check(rows):
        return [claim("RP of A is above B", a > b, a=a, b=b)]
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from typing import Any, cast

from longtail.names import METHOD_NAMES
from longtail.report.groups import measured

Rows = list[dict[str, Any]]
Claim = dict[str, Any]
Check = Callable[[Rows], list[Claim]]

CHECKS: dict[str, Check] = {}
_RENAMED = {"image": "images"}
_NOT_NAMES = ("method", "policy", "seeds", "tasks", "diverged", "selected")


def register(name: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return add


def claim(text: str, holds: bool, **numbers: Any) -> Claim:
    return {"claim": text, "holds": bool(holds), "numbers": numbers}


def run(names: list[str], rows: Rows) -> list[Claim]:
    """All claims of the named checks; a check that lacks its rows fails loudly, in a sentence.

    A name with a colon, `package.module:function`, is imported.
    """
    claims: list[Claim] = []
    for name in names:
        check = lookup(name)
        try:
            claims += check(rows)
        except Exception as error:  # a user's function may raise anything: the tables still count
            reason = f"{type(error).__name__}: {error}"
            claims.append(claim(f"{name}: the rows it needs are there", False, missing=reason))
    return claims


def current(name: str) -> str:
    """Today's name of a check: a plan.json written before the claims had a folder has another.

    >>> current("longtail.report.image_checks:seq_mnist")
    'longtail.report.claims.images:seq_mnist'
    """
    old = re.fullmatch(r"longtail\.report\.(\w+)_checks:(\w+)", name)
    if old is None:
        return name
    return f"longtail.report.claims.{_RENAMED.get(old[1], old[1])}:{old[2]}"


def lookup(name: str) -> Check:
    """The check of this name, or `ValueError`."""
    name = current(name)
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"Check {name!r} cannot be imported: {error}") from None
        if not callable(found):
            raise ValueError(f"Check {name!r} is a {type(found).__name__}, not a function")
        return cast(Check, found)
    if name not in CHECKS:
        near = difflib.get_close_matches(name, CHECKS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(CHECKS)}"
        raise ValueError(f"Unknown check {name!r}; {hint}")
    return CHECKS[name]


def find(rows: Rows, **labels: Any) -> dict[str, Any]:
    """The row with these labels; `KeyError` where there is none."""
    for row in rows:
        if all(str(row.get(k)) == str(v) for k, v in labels.items()):
            return row
    raise KeyError(", ".join(f"{k}={v}" for k, v in labels.items()))


def _pairs(rows: Rows) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, with MC, without MC) for all that differs only in its policy."""

    def rest(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        named = {k: v for k, v in row.items() if k not in _NOT_NAMES and not measured(k)}
        return tuple(sorted((k, str(v)) for k, v in named.items()))

    without = {(r.get("method"), rest(r)): r for r in rows if r.get("policy") == "reset"}
    found = []
    for row in rows:
        key = (row.get("method"), rest(row))
        if row.get("policy") == "continual" and key in without:
            extra = " ".join(f"{k}={v}" for k, v in key[1])
            name = METHOD_NAMES.get(str(key[0]), str(key[0]))
            found.append((f"{name} {extra}".strip(), row, without[key]))
    return found


def _improves(rows: Rows, metric: str, higher: bool) -> list[Claim]:
    found = []
    for name, ours, theirs in _pairs(rows):
        a, b = ours.get(metric), theirs.get(metric)
        holds = a is not None and b is not None and (a > b if higher else a < b)
        numbers: dict[str, Any] = {"with_mc": a, "without_mc": b}
        for key, row in (("paper_with_mc", ours), ("paper_without_mc", theirs)):
            if f"{metric}_paper" in row:
                numbers[key] = row[f"{metric}_paper"]
        word = "raises" if higher else "lowers"
        found.append(claim(f"{name}: MC {word} {metric}", holds, **numbers))
    if not found:
        raise KeyError("rows with policy continual and reset")
    return found


@register("mc_improves")
def mc_improves(rows: Rows) -> list[Claim]:
    """With MC every method retains more (scores where higher is better)."""
    return _improves(rows, "RP", True)


@register("mc_improves_error")
def mc_improves_error(rows: Rows) -> list[Claim]:
    """The same for errors, where lower is better."""
    return _improves(rows, "RP", False)


@register("mc_forgets_less")
def mc_forgets_less(rows: Rows) -> list[Claim]:
    return _improves(rows, "FGT", False)


@register("multitask_is_best")
def multitask_is_best(rows: Rows) -> list[Claim]:
    """Training on all tasks at once bounds every method from above."""
    top = find(rows, method="multitask")["RP"]
    best = max(r["RP"] for r in rows if r["method"] != "multitask" and r["RP"] is not None)
    return [
        claim("Multi-task training retains more than any method", top > best, mtl=top, best=best)
    ]


@register("order_of_methods")
def order_of_methods(rows: Rows) -> list[Claim]:
    """Methods with MC rank as in the paper: Spearman's correlation of RP is positive."""
    pairs = [
        (r["RP"], r["RP_paper"])
        for r in rows
        if r.get("policy") == "continual" and r.get("RP") is not None and "RP_paper" in r
    ]
    ours, theirs = zip(*pairs, strict=True)
    rho = _spearman(list(ours), list(theirs))
    text = "With MC, methods rank as in the paper (rank correlation above 0)"
    return [claim(text, rho > 0, rank_correlation=rho, methods=len(pairs))]


def _spearman(a: list[float], b: list[float]) -> float:
    import numpy as np

    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(ranks)[0, 1])


def gap_grows(text: str, ours: dict[str, Any], theirs: dict[str, Any], sign: int = 1) -> Claim:
    """Whether RP of two rows moves apart over the tasks; ``sign`` is -1 where lower is better."""
    import numpy as np

    tasks = np.array(ours["RP_after"])
    gap = np.array(ours["RP_curve"]) - np.array(theirs["RP_curve"])
    slope = float(np.polyfit(tasks, gap, 1)[0])
    quarter = max(1, len(gap) // 4)
    first, last = float(gap[:quarter].mean()), float(gap[-quarter:].mean())
    return claim(
        text,
        sign * slope > 0 and sign * last > max(sign * first, 0.0),
        first_quarter=first,
        last_quarter=last,
        slope_per_100_tasks=100 * slope,
        points=len(gap),
    )
