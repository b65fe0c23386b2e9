"""Claims on the synthetic tasks beside those of Table 1 itself, which its search tests."""

from __future__ import annotations

from typing import Any

from longtail_bench.claims.synthetic import figure2, methods, table1

Row = dict[str, Any]


def row(method: str, policy: str, rp: float, se: float | None = 0.01) -> Row:
    return {"method": method, "policy": policy, "RP": rp, "RP_se": se}


def table(**changed: Row) -> list[Row]:
    rows = {
        "finetune": row("finetune", "continual", 1.0),
        "finetune_new": row("finetune", "new", 2.0),
        "finetune_kept": row("finetune", "kept", 1.5),
        "reservoir": row("reservoir", "continual", 0.8),
        "reservoir_new": row("reservoir", "new", 0.9),
        "reservoir_kept": row("reservoir", "kept", 0.7),
        "multitask": row("multitask", "new", 0.1),
    }
    return [*(rows | changed).values()]


def verdicts(rows: list[Row]) -> dict[str, str]:
    return {c["claim"]: c["verdict"] for c in methods(rows)}


KEPT = "RP with MC is below that of an Adam that is kept across tasks"
BEST = "Reservoir with MC is below every other method, with MC or without"


def test_every_method_is_compared_with_an_adam_made_anew_and_with_one_that_is_kept() -> None:
    assert verdicts(table()) == {
        "Finetune: MC lowers RP": "holds",
        f"Finetune: {KEPT}": "holds",
        "Reservoir: MC lowers RP": "holds",
        f"Reservoir: {KEPT}": "fails",
        BEST: "holds",
    }
    near = verdicts(table(reservoir_kept=row("reservoir", "kept", 0.81)))
    assert near[f"Reservoir: {KEPT}"] == "undecided"


def test_a_table_without_an_adam_that_is_kept_has_no_claims_on_it() -> None:
    without = [r for r in table() if r["policy"] != "kept"]
    assert not [text for text in verdicts(without) if KEPT in text]


def test_reservoir_is_best_only_where_it_is_below_each_other_row() -> None:
    assert verdicts(table(finetune_kept=row("finetune", "kept", 0.7)))[BEST] == "fails"
    # a single seed decides nothing, whatever its mean
    one = table(finetune_kept=row("finetune", "kept", 1.5, None))
    assert verdicts(one)[BEST] == "undecided"
    # its own other policies and multi-task training are not other methods
    assert verdicts(table(multitask=row("multitask", "new", 0.0)))[BEST] == "holds"


def test_table_1_compares_continual_adam_with_one_that_is_kept_where_it_has_the_row() -> None:
    def rows(kept: float | None) -> list[Row]:
        found = []
        for setting in ("same", "perturb", "shift"):
            for number in range(1, 12):
                found.append(_numbered(number, setting, 1.0))
            if kept is not None:
                found.append(_numbered(12, setting, kept))
        return found

    def on_kept(kept: float | None) -> list[str]:
        return [c["verdict"] for c in table1(rows(kept)) if KEPT in c["claim"]]

    assert on_kept(2.0) == ["holds"] * 3
    assert on_kept(0.5) == ["fails"] * 3
    assert on_kept(1.005) == ["undecided"] * 3
    assert on_kept(None) == []


def test_figure_2_asks_of_both_adams_whether_the_gap_grows() -> None:
    def curve(policy: str, last: float) -> Row:
        start = {"RP_after": [50, 500, 1000], "RP_curve": [0.0, last / 2, last]}
        growth = {"slope": last / 10, "first": 0.0, "last": last, "growth": last}
        errors = {f"RP_{name}_se": 0.001 for name in growth}
        values = {f"RP_{name}": value for name, value in growth.items()}
        return {"method": "finetune", "policy": policy} | start | values | errors

    def rows(**last: float) -> list[Row]:
        settings = ("same", "perturb")
        return [curve(p, end) | {"setting": s} for p, end in last.items() for s in settings]

    def found(rows: list[Row]) -> list[tuple[str, str]]:
        return [(c["claim"].partition("and ")[2].split(" grows")[0], c["verdict"]) for c in rows]

    both = figure2(rows(continual=1.0, new=2.0, kept=0.5))
    assert (
        found(both)
        == [("Adam", "holds")] * 2 + [("an Adam that is kept across tasks", "fails")] * 2
    )
    assert found(figure2(rows(continual=1.0, new=2.0))) == [("Adam", "holds")] * 2


def _numbered(number: int, setting: str, rp: float) -> Row:
    labels = {"row": number, "setting": setting, "LP": 0.01, "LP_se": 0.0}
    return labels | {"RP": rp, "RP_se": 0.01, "RP_paper": 1.0}
