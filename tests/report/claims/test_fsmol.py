"""Claims on FS-Mol: each holds on rows made for it and fails on the opposite."""

from typing import Any

import pytest

from longtail.report.checks import run

CHECK = ["longtail.report.claims.fsmol:fsmol"]
TABLE = {
    ("finetune", None): {
        "continual": 60,
        "reset": 56,
        "carry": 58,
        "continual without warm-up": 59,
    },
    ("reservoir", 3480): {"continual": 63, "reset": 60, "carry": 61},
    ("multitask", None): {"reset": 65},
}


def rows(change: dict[tuple[Any, ...], float] | None = None, se: float = 0.2) -> list[dict]:
    found = []
    for (method, buffer), policies in TABLE.items():
        for policy, value in policies.items():
            rp = (change or {}).get((method, policy), value)
            row = {"method": method, "policy": policy, "RP": rp, "RP_se": se}
            row |= {"FGT": 70 - rp, "FGT_se": se, "RP_after": [1, 2, 3, 4]}
            row["RP_curve"] = [50 + (rp - 50) * i / 4 for i in (1, 2, 3, 4)]
            row |= {f"breakdown.{size}.RP": rp for size in ("head", "body", "tail")}
            row["breakdown.tail.RP_se"] = se
            found.append(row if buffer is None else {**row, "buffer": buffer})
    return found


def held(changed: list[dict]) -> dict[str, bool]:
    return {c["claim"]: c["holds"] for c in run(CHECK, changed)}


def test_all_claims_hold_on_rows_made_for_them() -> None:
    found = held(rows())
    assert len(found) == 14
    closes = "Finetune: with MC it closes half of the gap to multi-task training"
    assert [text for text, holds in found.items() if not holds] == [closes]  # 4 of 9 points


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({("finetune", "carry"): 60.3}, "Finetune: MC retains more than Adam kept as it is"),
        ({("reservoir", "reset"): 63.0}, "Reservoir with a buffer of 3480: MC forgets less than"),
        ({("finetune", "reset"): 61.0}, "Finetune: the gap between MC and a fresh optimizer"),
        ({("multitask", "reset"): 63.1}, "Multi-task training retains more than any method"),
        ({("reservoir", "continual"): 60.0}, "Reservoir with a buffer of 3480: with MC it closes"),
        ({("finetune", "continual without warm-up"): 60.0}, "Finetune: the warm-up of MC"),
        (
            {("finetune", "reset"): 59.9},
            "Finetune: MC retains more than a fresh optimizer for every task in the smaller half",
        ),
    ],
)
def test_a_claim_fails_where_its_rows_say_the_opposite(
    change: dict[tuple[Any, ...], float], failing: str
) -> None:
    found = {text: holds for text, holds in held(rows(change)).items() if text.startswith(failing)}
    assert list(found.values()).count(False) >= 1


def test_what_ten_seeds_cannot_tell_apart_does_not_hold() -> None:
    found = held(rows(se=2.0))
    assert not any(holds for text, holds in found.items() if "retains more than a fresh" in text)
    alone = rows()
    for row in alone:
        row["RP_se"] = None  # one seed has no standard error
    assert not any(
        holds
        for text, holds in held(alone).items()
        if "MC retains more" in text and "smaller half" not in text
    )


def test_missing_rows_are_said() -> None:
    (claim,) = run(CHECK, [row for row in rows() if row["method"] != "multitask"])
    assert not claim["holds"]
    assert "method=multitask" in claim["numbers"]["missing"]
