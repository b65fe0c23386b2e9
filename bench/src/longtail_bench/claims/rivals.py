"""Is Continual Adam the best use of one buffer of the weights' size? Claims that can fail.

A row is one method under one policy on one benchmark at its validated rate and strength, and what
it keeps of a parameter beyond AdamW's two moments follows from its names. Methods that store
examples are compared among themselves. `scores` is for benchmarks where higher is better, `errors`
for the others, `table` for the joined table of `bench/tools/rivals_joined.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from longtail.report.checks import (
    Claim,
    Row,
    Rows,
    above,
    above_all,
    claim,
    every,
    find,
    margin,
    verdict_of,
)
from longtail.report.labelling import AVERAGES, NO_WARM_UP
from longtail.report.labels import method_names

# Bytes a float32 parameter beyond AdamW's eight; perf/rival_step.py measures the same.
METHOD_BYTES = {
    "finetune": 0, "ewc": 8, "ewcpp": 12, "l2": 4, "si": 20, "lwf": 4, "ewc_adam": 8,
    "ewc_routed": 8, "coma": 4, "cofima": 8, "reservoir": 0, "derpp": 0, "agem": 0,
    "agem_routed": 0, "reservoir_l2": 4, "reservoir_ewc_adam": 8, "reservoir_coma": 4,
    "reservoir_cofima": 8, "multitask": 0,
}  # fmt: skip
POLICY_BYTES = {
    "new": 0, "kept": 0, "Adam-Rel": 0, "MoFO": 0, "MoFO with MC": 4, "UPGD": 4, "BAdam": 8,
    "multitask": 0,
}  # fmt: skip
OURS = "continual"
CONSTANT = ", constant rate"  # no schedule within a task, where the benchmark has one
ONE, TWO = 4, 8  # one buffer of the weights' size, and two
HALF = 0.5
Better = Callable[[str, Row, Row], Claim]


def extra_bytes(row: Row) -> int:
    """What a row keeps of a parameter beyond AdamW; policies that begin with `continual` are MC."""
    policy, _, further = str(row["policy"]).partition(", ")
    own = ONE if policy in (OURS, NO_WARM_UP) else POLICY_BYTES[policy]
    averaged = further.rpartition(", ")[2] in AVERAGES.values()
    return METHOD_BYTES[row["method"]] + own + (ONE if averaged else 0)


def stores_examples(row: Row) -> bool:
    """Whether it has a buffer of data."""
    return str(row["method"]).startswith(("reservoir", "derpp", "agem"))


def is_ours(row: Row) -> bool:
    """Whether second moments are averaged over tasks, alone or beside something else."""
    policy = str(row["policy"])
    return policy.partition(", ")[0] in (OURS, NO_WARM_UP) or policy.endswith("with MC")


def name_of(row: Row) -> str:
    """What a claim calls a row."""
    known = {"continual": "with MC", "kept": "Adam kept", "new": "fresh Adam"}
    known[NO_WARM_UP] = "with MC but no warm-up"
    policy, comma, further = str(row["policy"]).partition(", ")
    return f"{method_names()[row['method']]}, {known.get(policy, policy)}{comma}{further}"


def scores(rows: Rows) -> list[Claim]:
    """Of one benchmark where a larger RP is better."""
    return _claims(rows, sign=1.0)


def errors(rows: Rows) -> list[Claim]:
    """Of one benchmark where a smaller RP is better."""
    return _claims(rows, sign=-1.0)


def table(rows: Rows) -> list[Claim]:
    """Of the joined table: each benchmark's, and what holds on all of them."""
    found: list[Claim] = []
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        part = [row for row in rows if row["benchmark"] == benchmark]
        sign = 1.0 if part[0]["higher_is_better"] else -1.0
        claims = _claims(part, sign)
        found += [{**c, "claim": f"{part[0]['benchmark']}: {c['claim']}"} for c in claims]
    for words in ("no rival without data retains more", "no rival with a buffer retains more"):
        same = [c for c in found if f"{words} in one buffer" in c["claim"]]
        if len(same) > 1:
            text = f"On every benchmark {words} than MC in one buffer of the weights' size"
            found.append(claim(text, every(map(verdict_of, same)), benchmarks=len(same)))
    return found


def _claims(rows: Rows, sign: float) -> list[Claim]:
    def better(text: str, first: Row, second: Row) -> Claim:
        numbers: dict[str, Any] = {name_of(row): row.get("RP") for row in (first, second)}
        return above(text, first, second, lower=sign < 0, **numbers)

    found = [
        *_at_equal_memory(rows, sign),
        *_pairs(rows, better),
        *_with_mc(rows, better),
        *_averages(rows, better),
        *_constant_rate(rows, better),
        *_way_to_multitask(rows, sign),
    ]
    if not found:
        raise KeyError("rows of Finetune or Reservoir with policy continual, and rivals")
    return found


def _best(rows: Iterable[Row], sign: float) -> Row | None:
    """The row with the best RP; one all of whose runs diverged is no candidate."""
    whole = [row for row in rows if row.get("RP") is not None]
    return max(whole, key=lambda row: sign * row["RP"], default=None)


def _at_equal_memory(rows: Rows, sign: float) -> list[Claim]:
    """MC against the best that fits into one buffer, and into two, with data and without.

    In one buffer a rival does without MC; in two it may stand beside it.
    """
    found = []
    for method, kind in (("finetune", "without data"), ("reservoir", "with a buffer")):
        stored = method == "reservoir"
        ours = [r for r in rows if r["method"] == method and r["policy"] == OURS]
        for most, size in ((ONE, "one buffer"), (TWO, "two buffers")):
            rivals = [
                row
                for row in rows
                if row["method"] != "multitask"
                and stores_examples(row) == stored
                and extra_bytes(row) <= most
                and not (is_ours(row) and extra_bytes(row) <= ONE)
            ]
            best = _best(rivals, sign)
            if ours and best is not None:
                text = (
                    f"{method_names()[method]} with MC: no rival {kind} retains more "
                    f"in {size} of the weights' size (the best is {name_of(best)})"
                )
                numbers = {name_of(row): row.get("RP") for row in (ours[0], best)}
                found.append(above_all(text, ours[0], rivals, lower=sign < 0, **numbers))
    return found


# What a part of a rival is said to be good for: the one with it, the one without.
PAIRS = {
    "EWC's Fisher information retains more than L2 without any": ("ewc", "l2"),
    "EWC by Adam's v retains more than EWC with a pass of its own": ("ewc_adam", "ewc"),
    "EWC whose penalty is in the first moment alone retains more": ("ewc_routed", "ewc"),
    "A-GEM whose projection is in the first moment alone retains more": ("agem_routed", "agem"),
    "CoMA retains more than no average": ("coma", "finetune"),
    "CoFiMA's Fisher information retains more than CoMA without any": ("cofima", "coma"),
    "LwF retains more than Finetune": ("lwf", "finetune"),
    "Replay with L2 retains more than replay alone": ("reservoir_l2", "reservoir"),
    "Replay with CoMA retains more than replay alone": ("reservoir_coma", "reservoir"),
}


def _pairs(rows: Rows, better: Better) -> list[Claim]:
    """Each part of a rival under the policy of AdamW that is kept, and with MC."""
    found = []
    for text, (first, second) in PAIRS.items():
        for policy, told in (("kept", "Adam kept"), (OURS, "with MC")):
            try:
                pair = [find(rows, method=m, policy=policy) for m in (first, second)]
            except KeyError:
                continue
            found.append(better(f"{text}, {told}", *pair))
    return found


def _with_mc(rows: Rows, better: Better) -> list[Claim]:
    """MC beside every method, in one buffer more than that method with Adam kept."""
    found: list[Claim] = []
    bare: list[Claim] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own, name = {r["policy"]: r for r in rows if r["method"] == method}, method_names()[method]
        if OURS in own and "kept" in own:
            found.append(better(name, own[OURS], own["kept"]))
        if OURS in own and NO_WARM_UP in own:
            text = f"{name}: MC without its warm-up retains more than with it"
            bare.append(better(text, own[NO_WARM_UP], own[OURS]))
    if not found:
        return bare
    told = {f"{c['claim']}: difference": c["numbers"]["difference"] for c in found}
    text = "MC retains more than Adam kept with every method"
    return [claim(text, every(map(verdict_of, found)), **told), *bare]


def _averages(rows: Rows, better: Better) -> list[Claim]:
    """An average of the weights against the weights, each at its own rate."""
    found = []
    for method in ("finetune", "reservoir", "derpp"):
        for policy in ("kept", f"kept{CONSTANT}", OURS, f"{OURS}{CONSTANT}", NO_WARM_UP):
            for kind in AVERAGES.values():
                try:
                    average = find(rows, method=method, policy=f"{policy}, {kind}")
                    plain = find(rows, method=method, policy=policy)
                except KeyError:
                    continue
                name = name_of(plain)
                text = f"{name}: the average of the weights ({kind}) retains more than the weights"
                found.append(better(text, average, plain))
    return found


def _constant_rate(rows: Rows, better: Better) -> list[Claim]:
    """A rate that is constant within a task against one that decays: the weights, their average."""
    found = []
    for method in ("finetune", "reservoir"):
        for policy in ("kept", OURS):
            for more in ("", f", {AVERAGES['task']}"):
                try:
                    constant = find(rows, method=method, policy=policy + CONSTANT + more)
                    decaying = find(rows, method=method, policy=policy + more)
                except KeyError:
                    continue
                text = f"{name_of(decaying)}: a constant rate retains more than one that decays"
                found.append(better(text, constant, decaying))
    return found


def _way_to_multitask(rows: Rows, sign: float) -> list[Claim]:
    """Whether the best in two buffers closes half of what MC leaves to multi-task training.

    best - ours >= HALF (top - ours) is what has to be told from zero.
    """
    found = []
    for stored, kind in ((False, "without data"), (True, "with a buffer of data")):
        try:
            top = find(rows, method="multitask")
            ours = find(rows, method="finetune", policy=OURS)
        except KeyError:
            return found
        fitting = [
            row
            for row in rows
            if row["method"] != "multitask"
            and stores_examples(row) == stored
            and extra_bytes(row) <= TWO
        ]
        best = _best(fitting, sign)
        if best is None or ours.get("RP") is None or top.get("RP") is None:
            continue
        rest = margin([(sign, best), (sign * (HALF - 1.0), ours), (-sign * HALF, top)])
        way = sign * (top["RP"] - ours["RP"])
        share = sign * (best["RP"] - ours["RP"]) / way if way > 0 else None
        numbers: dict[str, Any] = {"finetune_mc": ours["RP"], "best": best["RP"]}
        numbers |= {"multitask": top["RP"], "share": share, "se": rest.se}
        text = (
            f"The best {kind} in two buffers ({name_of(best)}) halves the gap of Finetune with MC "
            "to multi-task training"
        )
        # where multi-task training is no better there is no gap to be halved
        found.append(claim(text, rest.positive if way > 0 else None, **numbers))
    return found
