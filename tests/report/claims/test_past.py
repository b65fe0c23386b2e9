"""Claims on a past in fewer bytes, on made-up rows."""

import pytest

from longtail.report.claims.past import past_dtype


def row(policy: str, values: list[float], setting: str = "same", se: float = 0.1) -> dict:
    by_seed = {str(i): value for i, value in enumerate(values)}
    mean = sum(values) / len(values)
    labels = {"method": "finetune", "policy": policy, "setting": setting, "tasks": 1000}
    past = {} if policy == "float32" else {"past_dtype": policy}
    return {**labels, **past, "RP": mean, "RP_se": se, "RP_by_seed": by_seed}


FULL = [0.5, 0.7, 0.6, 0.8]


@pytest.mark.parametrize(
    ("shift", "verdicts"),
    [
        ([0.01, -0.01, 0.01, -0.01], ["holds", "holds"]),
        ([0.02, -0.005, 0.01, 0.0], ["undecided", "holds"]),
        ([0.02, 0.021, 0.02, 0.021], ["fails", "holds"]),
        ([0.2, 0.21, 0.2, 0.21], ["fails", "fails"]),
    ],
)
def test_rows_are_compared_seed_by_seed(shift: list[float], verdicts: list[str]) -> None:
    other = [a + b for a, b in zip(FULL, shift, strict=True)]
    claims = past_dtype([row("float32", FULL), row("uint8", other)])
    assert [found["verdict"] for found in claims] == verdicts
    assert claims[0]["claim"].startswith("finetune setting=same: RP with uint8 is within one")


def test_each_setting_and_type_is_compared_with_its_own_float32() -> None:
    rows = [
        row(policy, [x + step for x in FULL], setting)
        for setting, step in (("same", 0.0), ("shift", 5.0))
        for policy in ("float32", "bfloat16", "uint8")
    ]
    claims = past_dtype(rows)
    assert len(claims) == 8
    assert all(found["holds"] for found in claims)


def test_one_seed_decides_nothing_and_no_float32_is_told() -> None:
    alone = [row("float32", [0.5]), row("uint8", [0.5])]
    for found in alone:
        found["RP_se"] = None
    assert [found["verdict"] for found in past_dtype(alone)] == ["undecided", "undecided"]
    with pytest.raises(KeyError, match="float32"):
        past_dtype([row("uint8", FULL)])
