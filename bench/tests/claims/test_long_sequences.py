"""What the paper claims of both long sequences: where it holds, fails, and cannot be told."""

from __future__ import annotations

from typing import Any

import pytest

from longtail_bench.claims.long_sequences import (
    above_kept,
    finetune_beats,
    improves_every,
    methods_with,
    nearer_to_mtl,
)
from longtail_bench.claims.vqa import vqa
from longtail_bench.claims.wsd import wsd

Row = dict[str, Any]


def row(method: str, policy: str, rp: float | None, se: float | None = 0.1) -> Row:
    errors = {f"{metric}_se": se for metric in ("RP", "FGT", "BWT")}
    return {"method": method, "policy": policy, "RP": rp, "FGT": rp, "BWT": rp, **errors}


def table(**changed: Row) -> list[Row]:
    rows = {
        "finetune": row("finetune", "continual", 70.0),
        "finetune_new": row("finetune", "new", 60.0),
        "ewc": row("ewc", "continual", 71.0),
        "ewc_new": row("ewc", "new", 65.0),
        "multitask": row("multitask", "new", 75.0),
    }
    return [*(rows | changed).values()]


def verdict(rows: list[Row]) -> str:
    return finetune_beats(rows, methods_with(rows, ("continual", "new")))["verdict"]


def test_finetune_beats_all_only_where_it_beats_each() -> None:
    assert verdict(table()) == "holds"
    assert verdict(table(ewc_new=row("ewc", "new", 71.0))) == "fails"
    assert verdict(table(ewc_new=row("ewc", "new", 70.1))) == "undecided"
    # one seed decides nothing, though another method without MC has the better mean
    assert verdict(table(finetune_new=row("finetune", "new", 64.0, None))) == "undecided"


def test_the_gap_to_multi_task_training_is_a_distance() -> None:
    def gap(ours: float, theirs: float, se: float | None = 0.1) -> Row:
        rows = table(ewc=row("ewc", "continual", ours, se), ewc_new=row("ewc", "new", theirs))
        return nearer_to_mtl(rows, "ewc")[0]

    assert gap(71.0, 65.0)["verdict"] == "holds"
    assert gap(65.0, 71.0)["verdict"] == "fails"
    assert gap(71.0, 65.0, None)["verdict"] == "undecided"
    above = gap(76.0, 65.0)  # one point above it in place of ten below
    assert above["verdict"] == "holds"
    assert above["numbers"]["difference"] == pytest.approx(9.0)
    assert above["numbers"]["se"] == pytest.approx((0.1**2 + 0.1**2 + (2 * 0.1) ** 2) ** 0.5)
    assert gap(90.0, 65.0)["verdict"] == "fails"
    assert gap(90.0, 65.0, None)["verdict"] == "undecided"


def test_an_adamw_that_is_kept_is_compared_where_it_has_a_row() -> None:
    assert above_kept(table(), "ewc") == []
    (found,) = above_kept([*table(), row("ewc", "kept", 72.0)], "ewc")
    assert found["verdict"] == "fails"
    assert found["claim"] == "EWC: RP with MC is above that of an Adam that is kept across tasks"


def test_every_method_is_said_of_how_many() -> None:
    claims = [c for c in vqa(table()) if c["claim"].endswith("MC raises RP")]
    text = "Continual AdamW improves every method, of the 2 that have rows"
    assert improves_every(claims)["claim"] == text
    assert text in [c["claim"] for c in wsd(table())]
    alone = [r for r in table() if r["method"] != "ewc"]
    for check in (vqa, wsd):
        assert not [c for c in check(alone) if "every method" in c["claim"]]


@pytest.mark.parametrize("lost", ["finetune", "ewc", "ewc_new", "multitask"])
@pytest.mark.parametrize("check", [vqa, wsd])
def test_a_row_all_of_whose_runs_diverged_takes_no_other_claim_with_it(check, lost: str) -> None:
    known = next(r for r, name in zip(table(), NAMES, strict=True) if name == lost)
    rows = table(**{lost: {**known, "RP": None, "RP_se": None, "BWT": None, "FGT": None}})
    assert {c["claim"] for c in check(table())} - {c["claim"] for c in check(rows)} <= {
        f"{name}: the gap to MTL shrinks with MC" for name in ("Finetune", "EWC")
    }


NAMES = ("finetune", "finetune_new", "ewc", "ewc_new", "multitask")


@pytest.mark.parametrize("check", [vqa, wsd])
def test_a_method_of_the_users_own_is_called_by_its_name(check) -> None:
    rows = [*table(), row("mine:Mine", "continual", 72.0), row("mine:Mine", "new", 61.0)]
    found = {c["claim"]: c["numbers"] for c in check(rows)}
    assert "mine:Mine: MC raises RP" in found
    (every,) = [found[text] for text in found if "improves every" in text]
    assert every["mine:Mine"] == pytest.approx(11.0)


def test_where_every_run_diverged_nothing_is_raised() -> None:
    rows = [{**r, "RP": None, "RP_se": None} for r in table() if r["method"] != "multitask"]
    texts = [c["claim"] for c in vqa([*rows, row("multitask", "new", 75.0)])]
    assert "EWC: MC raises RP" in texts
    assert "Multi-task training retains more than any method" not in texts


def test_rows_of_a_kept_adamw_alone_are_compared() -> None:
    rows = [row("ewc", "continual", 71.0), row("ewc", "kept", 69.0)]
    for check in (vqa, wsd):
        assert [c["verdict"] for c in check(rows)] == ["holds"]
