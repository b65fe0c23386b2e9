"""What a study found: its claims, the paired tests of its policies, and one sentence of both.

The sentence claims nothing of its own: it takes the checks that compare with and without MC (else
those on how a gap grows, else the first), and says for what they hold, fail or are undecided. Where
checks also compare MC with an AdamW that is kept, which is what most people do, a second sentence
says it of them. A folder of runs that asks for no checks gets those of `default_claims`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from longtail.names import KEPT, METRICS
from longtail.report.checks import Claim, Row, above, runnable, tally, with_and_without
from longtail.report.checks import run as run_checks
from longtail.report.frame import Line
from longtail.report.labels import POLICY_LABELS, row_name
from longtail.report.statistics import holm, paired, pairs
from longtail.report.table import Table, labels_of_row
from longtail.report.text import number

MOST_NAMES = 4
MOST_DESCRIBED = 8  # rows; of more the first four say nothing of the study
MC = ("continual", "new")
_MC_NUMBERS = ("without_mc", "with_mc")
_KEPT_NUMBERS = ("kept", "with_mc")
# What the two numbers of a claim are called, and what a reader is told about them.
# The first that claims have make the sentence. What they say of a kept AdamW follows in another.
_NUMBERS = {
    _MC_NUMBERS: "{metric} without → with MC",
    ("second", "first"): "{metric} of the second → the first",
    ("first_quarter", "last_quarter"): "RP of the first minus that of the second, over the "
    "first → the last quarter of the tasks",
    _KEPT_NUMBERS: "{metric} kept → with MC",
}


@dataclass(frozen=True)
class Finding:
    """What a study found.

    Args:
        text: the sentence.
        note: what the numbers in its brackets are.
        claims: the checks it puts into words; none where there is nothing to compare.
        numbers: the names of the two numbers that each of them has, where they have them.
    """

    text: str
    claims: list[Claim]
    numbers: tuple[str, str] | None = None
    note: str = ""

    @property
    def metric(self) -> str:
        """The one that the claims are about."""
        return _metric(self.claims[0]) if self.claims else "RP"

    @property
    def subject(self) -> str:
        """What its first claim is about, such as a method."""
        return about(self.claims[0])

    def points(self) -> list[tuple[str, float, float, str]]:
        """(what it is about, from, to, verdict) of every claim that has both numbers."""
        points = []
        for entry in self.claims if self.numbers else ():
            low, high = (entry["numbers"][key] for key in self.numbers or ())
            if isinstance(low, int | float) and isinstance(high, int | float):
                points.append((about(entry), float(low), float(high), entry["verdict"]))
        return points


def pair_of(plan: Mapping[str, Any]) -> tuple[str, str]:
    """The two policies, or rows, that figures and statistics compare: ours first."""
    first, second = plan.get("report", {}).get("pair", MC)
    return first, second


def asked_checks(plan: Mapping[str, Any]) -> list[str]:
    """The checks that a plan names, whoever wrote it."""
    asked = plan.get("report", {}).get("checks", [])
    return list(filter(_is_text, asked)) if isinstance(asked, list) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def claims_of(
    plan: Mapping[str, Any], table: Table, trusted: Collection[str] = ()
) -> tuple[list[Claim], list[str]]:
    """What the study's checks say, or those for runs that ask for none; and which were not run.

    Args:
        plan: of the study.
        table: with the rows to compare.
        trusted: checks that a person named, not only the folder.
    """
    asked = asked_checks(plan)
    ours, skipped = runnable(asked, trusted)
    if not table.rows or (not asked and plan.get("unselected")):
        return [], skipped  # by test scores the values of [select] are not compared
    if not asked:
        return default_claims(table, pair_of(plan)), skipped
    return run_checks(ours, table.rows), skipped


def default_claims(table: Table, pair: tuple[str, str]) -> list[Claim]:
    """For runs that ask for no checks: that of the pair the first policy is the better one.

    Nothing is claimed of rows that the scores themselves have picked: of nine rows that differ in
    nothing but chance, the best is above the next.
    """
    if table.kinds.mixed or "RP" not in table.metrics:
        return []
    labels = list(map(labels_of_row, table.rows))
    higher = table.kinds.better("RP")
    claims = []
    for a, b in pairs(labels, *pair):
        ours, theirs = table.rows[a], table.rows[b]
        verb = "raises" if higher else "lowers"
        what = f"MC {verb} RP" if pair == MC else f"{pair[0]} {verb} RP beside {pair[1]}"
        numbers = with_and_without(ours, theirs) if pair == MC else {}
        text = f"{_name_without_policy(labels[a])}: {what}"
        claims.append(above(text, ours, theirs, lower=not higher, **numbers))
    for a, b in pairs(labels, "continual", "kept") if pair == MC else ():
        ours, kept = table.rows[a], table.rows[b]
        what = f"RP with MC is {'above' if higher else 'below'} that of {KEPT}"
        text = f"{_name_without_policy(labels[a])}: {what}"
        both = {"with_mc": ours["RP"], "kept": kept["RP"]}
        claims.append(above(text, ours, kept, "RP", lower=not higher, **both))
    return claims


def _name_without_policy(labels: Row) -> str:
    rest = {name: v for name, v in labels.items() if name not in ("policy", *POLICY_LABELS)}
    return row_name(rest)


# Paired tests ------------------------------------------------------------------------------------


def compare_policies(lines: Sequence[Line], pair: tuple[str, str]) -> list[Row]:
    """The first policy of the pair against the second, seed by seed, for each row and metric.

    p-values are corrected over the rows of a metric.
    """
    compared = []
    for a, b in pairs([line.labels for line in lines], *pair):
        first, second = lines[a], lines[b]
        by_seed = _shared_seeds(first, second)
        scores = {}
        for metric in METRICS:
            if metric in first.runs:
                scores[metric] = by_seed[f"{metric} a"], by_seed[f"{metric} b"]
        higher = first.entries[0].kind.higher_is_better
        compared.append(Compared(first.labels, higher, scores))
    return paired_tests(compared, pair)


def _shared_seeds(first: Line, second: Line) -> pd.DataFrame:
    """The runs of the two with the same seed, neither of which diverged, side by side."""
    columns = ["seed", *first.runs.columns.intersection([*METRICS])]
    ours, theirs = first.runs.loc[first.finite, columns], second.runs.loc[second.finite, columns]
    return ours.merge(theirs, on="seed", suffixes=(" a", " b"))


@dataclass(frozen=True)
class Compared:
    """Two rows that differ in their policy: by metric, the two scores of every seed they share."""

    labels: Row
    higher_is_better: bool
    scores: Mapping[str, tuple[Any, Any]]


def paired_tests(compared: Sequence[Compared], pair: tuple[str, str]) -> list[Row]:
    """The test of every metric of every two rows, corrected within a metric."""
    tests: list[Row] = []
    for each in compared:
        rest = {name: value for name, value in each.labels.items() if name != "policy"}
        for metric, (first, second) in each.scores.items():
            higher = each.higher_is_better != (metric == "FGT")
            result = paired(first, second, higher_is_better=higher)
            if result.n:
                tests.append({**rest, "pair": list(pair), "metric": metric, **asdict(result)})
    for metric in METRICS:
        rows = [test for test in tests if test["metric"] == metric]
        for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
            row["p_holm"] = p
    return tests


# One sentence ------------------------------------------------------------------------------------


def finding(table: Table, claims: Sequence[Claim]) -> Finding:
    """The sentence on a table, and the claims that it rests on."""
    return in_words(claims, table.unit) if claims else Finding(_described(table), [])


def in_words(claims: Sequence[Claim], unit: str) -> Finding:
    """The sentence that these claims make, whose numbers are in this unit."""
    keys, chosen = _headline(claims)
    text, brackets = _said(chosen, keys, unit), ""
    if keys is not None and any(_pair_text(entry, keys, unit) for entry in chosen):
        brackets = _NUMBERS[keys].format(metric=_metric(chosen[0]))
    kept = [c for c in claims if all(key in c["numbers"] for key in _KEPT_NUMBERS)]
    if keys != _KEPT_NUMBERS and kept:
        text += f" {_said(kept, _KEPT_NUMBERS, unit)}"
        brackets += ", then kept → with MC" if brackets else "RP kept → with MC"
    note = f"In brackets: {brackets}, in {unit}." if brackets else ""
    return Finding(text, chosen, keys, note)


def _headline(claims: Sequence[Claim]) -> tuple[tuple[str, str] | None, list[Claim]]:
    """The claims that say the same of several methods or settings, those on MC before others."""
    for keys in _NUMBERS:
        some = [c for c in claims if all(key in c["numbers"] for key in keys)]
        if some:
            return keys, [c for c in some if _statement(c) == _statement(some[0])]
    return None, [c for c in claims if _statement(c) == _statement(claims[0])]


def _statement(entry: Claim) -> str:
    """`MC raises RP` of "Finetune: MC raises RP"."""
    return entry["claim"].rpartition(": ")[2]


def about(entry: Claim) -> str:
    return entry["claim"].rpartition(": ")[0]


def _metric(entry: Claim) -> str:
    return next((m for m in ("FGT", "BWT", "LP") if m in _statement(entry).split()), "RP")


def _said(chosen: list[Claim], keys: tuple[str, str] | None, unit: str) -> str:
    parts = {}
    for word in ("holds", "undecided", "fails"):
        some = [c for c in chosen if c["verdict"] == word]
        names = [f"{about(c)}{_pair_text(c, keys, unit)}" for c in some]
        parts[word] = _listed(names, len(some)) if some else None
    statement = _statement(chosen[0])
    statement = statement[0].upper() + statement[1:]
    alone = not any(about(c) for c in chosen)
    if alone:
        words = {"holds": "", "undecided": "Undecided: ", "fails": "Does not hold: "}
        return f"{words[chosen[0]['verdict']]}{statement}{parts[chosen[0]['verdict']] or ''}."
    said = [
        f"{words} for {parts[word]}"
        for word, words in (("holds", "holds"), ("undecided", "is undecided"), ("fails", "fails"))
        if parts[word]
    ]
    if parts["holds"] and len(said) == 1:
        return f"{statement} for {parts['holds']}."
    return f"“{statement}” {_listed(said, len(said))}."


def _pair_text(entry: Claim, keys: tuple[str, str] | None, unit: str) -> str:
    values = [entry["numbers"].get(key) for key in keys or ()]
    if not any(isinstance(v, int | float) for v in values):
        return ""
    shown = ["diverged" if v is None else number(float(v), unit) for v in values]
    return f" ({' → '.join(shown)})"


def _listed(names: list[str], count: int) -> str:
    """`a, b and c`, the rest counted.

    >>> _listed(["a", "b"], 2)
    'a and b'
    """
    shown = names
    if count > MOST_NAMES:
        named = names[: MOST_NAMES - 1]
        shown = [*named, f"{count - len(named)} more"]
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]


def _described(table: Table) -> str:
    """A study without anything to compare: its numbers, without a claim, where they are few."""
    rows = table.rows
    if len(rows) > MOST_DESCRIBED:
        return f"{len(rows)} rows, of which nothing is claimed; see the table."
    shown = []
    for row in rows[:MOST_NAMES]:
        values = []
        for metric in ("RP", "LP"):
            if row.get(metric) is not None:  # 0.0 is a score
                values.append(f"{metric} {number(row[metric], table.unit)}")
        name, tasks = row_name(labels_of_row(row)), row.get("tasks")
        name += f" after {tasks:,} tasks" if isinstance(tasks, int) else ""
        none = "every seed diverged" if row.get("diverged") else "no score"
        shown.append(f"{name}: {', '.join(values) or none}")
    if not shown:
        return ""
    more = len(rows) - len(shown)
    return "; ".join(shown) + (f"; and {more} more rows" if more else "") + f" ({table.unit})."


def verdict_line(claims: Sequence[Claim]) -> str:
    """`27 of 29 checks hold, 1 undecided`."""
    return tally(claims).replace(" hold", " checks hold" if len(claims) != 1 else " check holds", 1)
