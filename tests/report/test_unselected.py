"""What unselected tables say that their seeds have chosen."""

from __future__ import annotations

from typing import Any

from longtail.report.unselected import best_values

KEYS = ["lr"]


def row(lr: float, validation: float | None, rp: float | None, **more: Any) -> dict[str, Any]:
    labels = {"method": "finetune", "policy": "continual", "lr": lr, "chooses": True}
    return {**labels, "seeds": 2, "RP": rp, "validation": validation, **more}


def test_a_value_that_diverged_does_not_let_test_scores_choose() -> None:
    rows = [row(0.01, 90.0, 80.0), row(0.001, 85.0, 95.0)]
    lost = row(0.1, None, None, diverged=2)
    for tried in (rows, [lost, *rows]):
        (best,) = best_values({"higher_is_better": True, "rows": tried}, KEYS).values()
        assert best == '{"lr": 0.01}'


def test_seeds_that_held_nothing_out_choose_by_their_own_scores() -> None:
    rows = [row(0.01, None, 80.0), row(0.001, None, 95.0)]
    (best,) = best_values({"higher_is_better": True, "rows": rows}, KEYS).values()
    assert best == '{"lr": 0.001}'
