"""Claims computed from a table's rows, each with its numbers: what a study asserts.

A study names its checks in `[report] checks = ["mc_improves"]`. A check is a function from the rows
of table.json to a list of claims; studies register their own:

    @register("my_check")
    def my_check(rows):
        a, b = find(rows, method="a"), find(rows, method="b")
        return [above("RP of A is above B", a, b)]

A claim says that a margin is positive, such as RP of one row minus RP of another. It **holds** or
**fails** where the margin is more than two standard errors from zero, and is **undecided** between
them; one seed has no standard error, so it decides nothing. Rows that share their seeds are
compared seed by seed:

    margin_s = Σ_i c_i RP_i,s        margin = mean over s        se = sd(margin_s) / sqrt(n)
"""

from __future__ import annotations

import difflib
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, cast

from longtail.names import KEPT
from longtail.report.labels import measured, method_names
from longtail.report.statistics import GROWTH, growth, pairs
from longtail.support import doors
from longtail.support.modules import import_named

Row = dict[str, Any]
Rows = list[Row]
Claim = dict[str, Any]
Check = Callable[[Rows], list[Claim]]

CHECKS: dict[str, Check] = {}
VERDICTS = ("holds", "fails", "undecided")
ERRORS = 2.0  # standard errors from zero at which a margin is decided
GROUP = "longtail.checks"
COUNTS = ("seeds", "tasks", "diverged", "selected")  # what a row has besides names and numbers


def register(name: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return add


def for_every_value(check: Check) -> Check:
    """Marks a check that compares only rows which differ in nothing else.

    Where nothing is selected it is asked for every value of a setting. Others ask for the one row
    of a method, and would take that of the first value.
    """
    vars(check)["for_every_value"] = True
    return check


def is_for_every_value(name: str) -> bool:
    return vars(lookup(name)).get("for_every_value", False)


def claim(text: str, holds: bool | None, **numbers: Any) -> Claim:
    """A claim that holds or fails, or, with None, one that these rows cannot decide."""
    verdict = "undecided" if holds is None else "holds" if holds else "fails"
    return {"claim": text, "holds": verdict == "holds", "verdict": verdict, "numbers": numbers}


class Margin(NamedTuple):
    """A number that a claim says is positive, and its standard error; None for a single seed."""

    value: float
    se: float | None

    @property
    def positive(self) -> bool | None:
        """True or False where zero is more than `ERRORS` standard errors away, else None."""
        if not math.isfinite(self.value):  # every run of one side diverged
            return self.value > 0 if math.isinf(self.value) else None
        if self.se is None or abs(self.value) <= ERRORS * self.se:
            return None
        return self.value > 0


def margin(
    terms: Sequence[tuple[float, Row]],
    metric: str = "RP",
    constant: float = 0.0,
    worst: float = math.inf,
) -> Margin:
    """constant + Σ c * metric over (c, row), by seed where all rows have two seeds in common.

    A row without a value, all of whose runs diverged, counts as the worst that there is: infinite
    for an error, minus infinity where higher is better. Where some of a row's runs diverged, the
    others are not what the row would be: the margin then has no standard error and decides nothing.
    """
    means = [worst if row.get(metric) is None else float(row[metric]) for _, row in terms]
    value = constant + sum(c * mean for (c, _), mean in zip(terms, means, strict=True))
    if any(row.get("diverged") and row.get(metric) is not None for _, row in terms):
        return Margin(value, None)
    tables = [row.get(f"{metric}_by_seed") or {} for _, row in terms]
    seeds = [s for s in tables[0] if all(t.get(s) is not None for t in tables)]
    if len(seeds) > 1:
        each = [sum(c * t[s] for (c, _), t in zip(terms, tables, strict=True)) for s in seeds]
        mean = sum(each) / len(each)
        variance = sum((x - mean) ** 2 for x in each) / (len(each) - 1)
        all_shared = all(len(t) == len(seeds) for t in tables)
        return Margin(value if all_shared else constant + mean, math.sqrt(variance / len(each)))
    errors = [row.get(f"{metric}_se") for _, row in terms]
    known = [c * e for (c, _), e in zip(terms, errors, strict=True) if e is not None]
    return Margin(value, math.hypot(*known) if len(known) == len(terms) else None)


def above(
    text: str, first: Row, second: Row, metric: str = "RP", *, lower: bool = False, **numbers: Any
) -> Claim:
    """That `first` is above `second`; with `lower`, below it."""
    sign = -1.0 if lower else 1.0
    found = margin([(sign, first), (-sign, second)], metric, worst=-sign * math.inf)
    shown = numbers or {"first": first.get(metric), "second": second.get(metric)}
    return claim(text, found.positive, **shown, difference=sign * found.value, se=found.se)


def above_all(
    text: str, first: Row, others: Sequence[Row], *, lower: bool = False, **numbers: Any
) -> Claim:
    """That RP of `first` is above that of every other row; with `lower`, below it.

    The difference shown is that from the row which is hardest to tell.
    """
    sign = -1.0 if lower else 1.0
    worst = -sign * math.inf
    found = hardest(margin([(sign, first), (-sign, row)], worst=worst) for row in others)
    return claim(text, found.positive, **numbers, difference=sign * found.value, se=found.se)


def hardest(margins: Iterable[Margin]) -> Margin:
    """Of several that must all be positive the one that decides for all.

    It is one that fails, else one that is undecided, else one that holds; of these the smallest.
    That need not be the margin to the row with the best mean: another row may be noisier, or have a
    single seed.
    """

    def order(found: Margin) -> tuple[int, float]:
        place = {False: 0, None: 1, True: 2}[found.positive]
        return place, -math.inf if math.isnan(found.value) else found.value

    return min(margins, key=order)


def at_least(text: str, row: Row, least: float, metric: str = "RP", **numbers: Any) -> Claim:
    """That a row's metric is not below `least`."""
    found = margin([(1.0, row)], metric, -least, worst=-math.inf)
    shown = {metric: row.get(metric), **numbers}
    return claim(text, found.positive, **shown, se=found.se)


def within(
    text: str, row: Row, target: float, tolerance: float, metric: str = "RP", **numbers: Any
) -> Claim:
    """That a row's metric is no further than `tolerance` from `target`."""
    gap = margin([(1.0, row)], metric, -target)
    found = Margin(tolerance - abs(gap.value), gap.se)
    return claim(text, found.positive, **{metric: row.get(metric), **numbers}, se=gap.se)


def every(verdicts: Iterable[bool | None]) -> bool | None:
    """Of several: False where one fails, None where one is undecided, else True."""
    known = list(verdicts)
    return False if False in known else None if None in known else True


def some(verdicts: Iterable[bool | None]) -> bool | None:
    """Of several: True where one holds, None where one is undecided, else False."""
    known = list(verdicts)
    return True if True in known else None if None in known else False


def tally(claims: Sequence[Claim]) -> str:
    """How many hold, fail and are undecided, as a phrase.

    >>> tally([claim("a", True), claim("b", None)])
    '1 of 2 hold, 1 undecided'
    """
    count = {word: sum(c["verdict"] == word for c in claims) for word in VERDICTS}
    text = f"{count['holds']} of {len(claims)} hold"
    text += f", {count['fails']} fail" if count["fails"] else ""
    return text + (f", {count['undecided']} undecided" if count["undecided"] else "")


def verdict_of(entry: Claim) -> bool | None:
    """What `claim` was given: True, False or None."""
    return {"holds": True, "fails": False}.get(entry["verdict"])


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


def runnable(asked: Sequence[str], trusted: Collection[str]) -> tuple[list[str], list[str]]:
    """The checks to run, ours and those a person named; and the rest, which would be its code.

    Args:
        asked: what a folder's plan names: a results folder is data, whoever wrote it.
        trusted: what a person named, in a study file or by saying so.
    """
    found = [name for name in asked if is_ours(name) or name in trusted]
    return found, [name for name in asked if name not in found]


def is_ours(name: str) -> bool:
    """Whether this is a check of ours, or one that an installed package offers by this name."""
    return name in CHECKS or name in doors.offered(GROUP)


def lookup(name: str) -> Check:
    """The check of this name, or `ValueError`."""
    if name in CHECKS:
        return CHECKS[name]
    if name in doors.offered(GROUP):
        return _function(name, doors.load(GROUP, name))
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return _function(name, getattr(import_named(module), attribute))
        except (ImportError, AttributeError) as error:
            raise ValueError(f"Check {name!r} cannot be imported: {error}") from None
    names = [*CHECKS, *doors.offered(GROUP)]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}{doors.hint()}"
    raise ValueError(f"Unknown check {name!r}; {hint}")


def _function(name: str, check: object) -> Check:
    if not callable(check):
        raise ValueError(f"Check {name!r} is a {type(check).__name__}, not a function")
    return cast(Check, check)


def find(rows: Rows, **labels: Any) -> dict[str, Any]:
    """The row with these labels; `KeyError` where there is none."""
    for row in rows:
        if all(str(row.get(k)) == str(v) for k, v in labels.items()):
            return row
    raise KeyError(", ".join(f"{k}={v}" for k, v in labels.items()))


def _pairs(rows: Rows) -> list[tuple[str, Row, Row]]:
    """(name, with MC, without MC) for all that differs only in its policy."""
    labels = []
    for row in rows:
        labels.append({k: v for k, v in row.items() if k not in COUNTS and not measured(k)})
    found = []
    for ours, theirs in pairs(labels, "continual", "new", bound=("policy",)):
        method = str(labels[ours].get("method"))
        parts = [method_names().get(method, method)]
        for key, value in sorted(labels[ours].items()):
            if key not in ("method", "policy"):
                parts.append(f"{key}={value}")
        found.append((" ".join(parts), rows[ours], rows[theirs]))
    return found


def _improves(rows: Rows, metric: str, higher: bool) -> list[Claim]:
    found = []
    for name, ours, theirs in _pairs(rows):
        word = "raises" if higher else "lowers"
        text = f"{name}: MC {word} {metric}"
        numbers = with_and_without(ours, theirs, metric)
        found.append(above(text, ours, theirs, metric, lower=not higher, **numbers))
    if not found:
        raise KeyError("rows with policy continual and new")
    return found


def with_and_without(ours: Row, theirs: Row, metric: str = "RP") -> dict[str, Any]:
    """The numbers of a claim on MC, the paper's beside ours where it has them."""
    numbers: dict[str, Any] = {"with_mc": ours.get(metric), "without_mc": theirs.get(metric)}
    for name, row in (("paper_with_mc", ours), ("paper_without_mc", theirs)):
        if f"{metric}_paper" in row:
            numbers[name] = row[f"{metric}_paper"]
    return numbers


def against_kept(
    rows: Rows,
    name: str,
    *,
    lower: bool = False,
    ours: str = "continual",
    kept: str = "kept",
    by: str = "policy",
    **labels: Any,
) -> list[Claim]:
    """With MC against an Adam kept across tasks; no claim in a table that lacks one of the rows.

    Args:
        name: what the claim is about, such as the method.
        lower: whether a smaller RP is better.
        ours: the value of the label `by` in the row with MC.
        kept: its value in the row of the Adam that is kept.
        by: the label that tells the two rows apart.
        labels: what they have in common.
    """
    try:
        first, second = (find(rows, **{by: value}, **labels) for value in (ours, kept))
    except KeyError:
        return []
    text = f"{name}: RP with MC is {'below' if lower else 'above'} that of {KEPT}"
    numbers = {"with_mc": first["RP"], "kept": second["RP"]}
    return [above(text, first, second, lower=lower, **numbers)]


@register("mc_improves")
@for_every_value
def mc_improves(rows: Rows) -> list[Claim]:
    """With MC every method retains more (scores where higher is better)."""
    return _improves(rows, "RP", True)


@register("mc_improves_error")
@for_every_value
def mc_improves_error(rows: Rows) -> list[Claim]:
    """The same for errors, where lower is better."""
    return _improves(rows, "RP", False)


@register("mc_forgets_less")
@for_every_value
def mc_forgets_less(rows: Rows) -> list[Claim]:
    return _improves(rows, "FGT", False)


@register("multitask_is_best")
def multitask_is_best(rows: Rows) -> list[Claim]:
    """Training on all tasks at once bounds every method from above."""
    return [multitask_above(rows)]


def multitask_above(rows: Rows) -> Claim:
    """Multi-task training against all other rows, and the best of them."""
    top = find(rows, method="multitask")
    others = [r for r in rows if r["method"] != "multitask" and r["RP"] is not None]
    best = max(r["RP"] for r in others)
    text = "Multi-task training retains more than any method"
    return above_all(text, top, others, multitask=top["RP"], best=best)


@register("order_of_methods")
def order_of_methods(rows: Rows) -> list[Claim]:
    """Methods with MC rank as in the paper: Spearman's correlation of RP is positive."""
    ranked = [
        (r, r["RP_paper"])
        for r in rows
        if r.get("policy") == "continual" and r.get("RP") is not None and "RP_paper" in r
    ]
    if len(ranked) < 2:
        raise KeyError("rows of two methods with MC, and the paper's RP of them")
    theirs = [paper for _, paper in ranked]
    rho = _spearman([row["RP"] for row, _ in ranked], theirs)
    tables = [row.get("RP_by_seed") or {} for row, _ in ranked]
    seeds = [seed for seed in tables[0] if all(seed in table for table in tables)]
    each = [_spearman([table[seed] for table in tables], theirs) for seed in seeds]
    se = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None
    text = "With MC, methods rank as in the paper (rank correlation above 0)"
    numbers = {"rank_correlation": rho, "methods": len(ranked)}
    return [claim(text, Margin(rho, se).positive, **numbers, se=se)]


def _spearman(a: list[float], b: list[float]) -> float:
    """The correlation of ranks; equal values share the mean of their ranks."""
    import numpy as np

    def ranks(values: list[float]) -> np.ndarray:
        x = np.array(values)[:, None]
        return ((x > x.T).sum(1) + (x >= x.T).sum(1)) / 2.0

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def gap_grows(text: str, ours: Row, theirs: Row, sign: int = 1) -> Claim:
    """Whether RP of two rows moves apart over the tasks; ``sign`` is -1 where lower is better.

    Three margins must be positive: the slope of the gap, the gap over the last quarter of the
    points, and how much larger that is than over the first.
    """
    pair = [(float(sign), _with_growth(ours)), (-float(sign), _with_growth(theirs))]
    worst = -sign * math.inf
    parts = (margin(pair, f"RP_{part}", worst=worst) for part in GROWTH)
    slope, early, late, rise = parts
    return claim(
        text,
        every((slope.positive, late.positive, rise.positive)),
        first_quarter=sign * early.value,
        last_quarter=sign * late.value,
        slope_per_100_tasks=sign * slope.value,
        slope_se=slope.se,
        growth_se=rise.se,
        points=len(ours["RP_after"]),
    )


def _with_growth(row: Row) -> Row:
    """A row of a table that was written before rows said how they grow: its curve still says so."""
    if "RP_slope" in row:
        return row
    import numpy as np

    found = growth(np.array(row["RP_after"]), np.array([row["RP_curve"]]))
    return {**row, **{f"RP_{name}": float(values[0]) for name, values in found.items()}}
