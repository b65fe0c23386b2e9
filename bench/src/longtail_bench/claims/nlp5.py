"""What the paper says about five unlike tasks, and what it conjectures, as claims on our rows.

The paper: "in the NLP tasks, Continual AdamW has similar performance compared to AdamW ... this may
suggest that Continual Adam [is] more suitable for the scenario where tasks are similar". The first
half is asked of the five tasks, the second of the same five cut into many small ones. On an AdamW
that is kept across tasks, of which the paper does not speak, there is one claim for each method.
"""

from __future__ import annotations

from longtail.report.checks import (
    Claim,
    Margin,
    Row,
    Rows,
    above,
    claim,
    find,
    margin,
    multitask_above,
    with_and_without,
)
from longtail_bench.claims.long_sequences import above_kept, called, methods_with

SMALL = 3.0  # points of RP: the paper's mean difference is -2.6, its largest -8.4


def nlp5(rows: Rows) -> list[Claim]:
    """Five tasks in a row."""
    pairs = _pairs(rows)
    replayed = {"finetune", "reservoir"} <= pairs.keys()
    return [
        *_about_the_same(_scored(pairs)),
        *_upper_bound(rows),
        *([_replay(rows)] if replayed else []),
        *_by_method(rows, pairs),
    ]


def nlp5_long_tail(rows: Rows) -> list[Claim]:
    """The same five tasks in many small parts, in long-tail order."""
    pairs = _pairs(rows)
    scored, found = _scored(pairs), []
    if scored:
        mean = _mean_gain(scored)
        text = "In many small tasks MC raises RP on average over the methods"
        numbers = {"mean_gain": mean.value, "se": mean.se, "methods": len(scored)}
        found = [claim(text, mean.positive, **numbers)]
    return [*found, *_upper_bound(rows), *_by_method(rows, pairs)]


def _pairs(rows: Rows) -> dict[str, tuple[Row, Row]]:
    """Rows with MC and without, of the methods that have both."""
    return {
        m: (find(rows, method=m, policy="continual"), find(rows, method=m, policy="new"))
        for m in methods_with(rows, ("continual", "new"))
    }


def _scored(pairs: dict[str, tuple[Row, Row]]) -> dict[str, tuple[Row, Row]]:
    """Those of which neither row has diverged: what a mean is of."""
    return {m: pair for m, pair in pairs.items() if None not in (pair[0]["RP"], pair[1]["RP"])}


def _about_the_same(pairs: dict[str, tuple[Row, Row]]) -> list[Claim]:
    """That MC makes little difference, and not the same to all methods."""
    if not pairs:
        return []
    mean = _mean_gain(pairs)
    better, worse = _counts(pairs)
    text = f"MC changes RP by less than {SMALL:g} points on average over the methods"
    mixed = "The effect of MC is mixed: some methods retain more with it, some less"
    small = Margin(SMALL - abs(mean.value), mean.se)
    gains = {name: ours["RP"] - theirs["RP"] for name, (ours, theirs) in pairs.items()}
    both = True if better and worse else None
    return [
        claim(text, small.positive, mean_gain=mean.value, se=mean.se, **gains),
        claim(mixed, both, better=better, worse=worse, methods=len(pairs)),
    ]


def _by_method(rows: Rows, pairs: dict[str, tuple[Row, Row]]) -> list[Claim]:
    """Each method with MC against AdamW anew and against AdamW kept, where it has the rows."""
    found = [_raises(name, *pair) for name, pair in pairs.items()]
    found += [entry for method in methods_with(rows) for entry in above_kept(rows, method)]
    if not found:
        raise KeyError("a method with MC, and without or with an AdamW that is kept")
    return found


def _raises(method: str, ours: Row, theirs: Row) -> Claim:
    """One method with MC and without, which a mean over the methods leaves open."""
    numbers = with_and_without(ours, theirs)
    return above(f"{called(method)}: MC raises RP", ours, theirs, **numbers)


def _mean_gain(pairs: dict[str, tuple[Row, Row]]) -> Margin:
    share = 1.0 / len(pairs)
    return margin([(s * share, row) for a, b in pairs.values() for s, row in ((1, a), (-1, b))])


def _counts(pairs: dict[str, tuple[Row, Row]]) -> tuple[int, int]:
    """How many methods MC improves, and how many it makes worse, beyond the noise."""
    signs = [margin([(1.0, a), (-1.0, b)]).positive for a, b in pairs.values()]
    return signs.count(True), signs.count(False)


def _upper_bound(rows: Rows) -> list[Claim]:
    return [multitask_above(rows)] if any(r.get("method") == "multitask" for r in rows) else []


def _replay(rows: Rows) -> Claim:
    """The one difference that is large in the paper: 76 against 41 points."""
    first, second = (find(rows, method=m, policy="continual") for m in ("reservoir", "finetune"))
    text = "Replay (Reservoir) retains more than Finetune"
    return above(text, first, second, reservoir=first["RP"], finetune=second["RP"])
