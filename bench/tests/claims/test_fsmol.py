"""Claims on FS-Mol: each holds on rows made for it and fails on the opposite."""

from typing import Any

import pytest

from longtail.report.checks import run

CHECK = ["longtail_bench.claims.fsmol:fsmol"]
TABLE = {
    ("finetune", None): {
        "continual": 60.0,
        "new": 56.0,
        "kept": 58.0,
        "continual without warm-up": 59.0,
    },
    ("reservoir", 3480): {"continual": 63.0, "new": 60.0, "kept": 61.0},
    ("multitask", None): {"new": 65.0},
}


def rows(change: dict[tuple[str, str], float] | None = None, se: float | None = 0.1) -> list[dict]:
    found = []
    for (method, buffer), policies in TABLE.items():
        for policy, value in policies.items():
            rp = (change or {}).get((method, policy), value)
            row: dict[str, Any] = {"method": method, "policy": policy, "RP": rp, "FGT": 70 - rp}
            row |= {
                "RP_after": [1, 2, 3, 4],
                "RP_curve": [50 + (rp - 50) * i / 4 for i in range(4)],
            }
            row |= {f"breakdown.{size}.RP": rp for size in ("head", "body", "tail")}
            measured = ("RP", "FGT", "RP_slope", "RP_first", "RP_last", "RP_growth")
            row |= {f"{name}_se": se for name in (*measured, "breakdown.tail.RP")}
            found.append(row if buffer is None else {**row, "buffer": buffer})
    return found


def verdicts(changed: list[dict]) -> dict[str, str]:
    return {c["claim"]: c["verdict"] for c in run(CHECK, changed)}


def test_all_claims_hold_on_rows_made_for_them() -> None:
    found = verdicts(rows())
    assert len(found) == 14
    closes = "Finetune: with MC it closes half of the gap to multi-task training"
    assert {text for text, verdict in found.items() if verdict != "holds"} == {closes}
    assert found[closes] == "fails"  # 4 of 9 points


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (("finetune", "kept", 61.0), "Finetune: RP with MC is above that of an Adam that is kept"),
        (("reservoir", "new", 64.0), "Reservoir with a buffer of 3480: MC forgets less than"),
        (("finetune", "new", 61.0), "Finetune: the gap between MC and a fresh optimizer"),
        (("multitask", "new", 62.0), "Multi-task training retains more than any method"),
        (("reservoir", "continual", 60.0), "Reservoir with a buffer of 3480: with MC it closes"),
        (("finetune", "continual without warm-up", 61.0), "Finetune: the warm-up of MC"),
        (
            ("finetune", "kept", 61.0),
            "Finetune: MC retains more than an Adam that is kept across tasks in the",
        ),
    ],
)
def test_a_claim_fails_where_its_rows_say_the_opposite(
    change: tuple[str, str, float], failing: str
) -> None:
    method, policy, value = change
    found = verdicts(rows({(method, policy): value}))
    told = [verdict for text, verdict in found.items() if text.startswith(failing)]
    assert told
    assert set(told) == {"fails"}


def test_what_the_seeds_cannot_tell_apart_is_undecided() -> None:
    for error in (5.0, None):  # None: a single seed
        found = verdicts(rows(se=error))
        for words in ("MC raises RP", "that of an Adam that is kept", "retains more than a"):
            assert {v for text, v in found.items() if words in text} == {"undecided"}


def test_missing_rows_are_said() -> None:
    (claim,) = run(CHECK, [row for row in rows() if row["method"] != "multitask"])
    assert not claim["holds"]
    assert "method=multitask" in claim["numbers"]["missing"]
