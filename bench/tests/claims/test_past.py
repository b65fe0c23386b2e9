"""Claims on a past in fewer bytes, on made-up rows."""

import pytest

from longtail_bench.claims.past import past_dtype, past_dtype_errors


def row(policy: str, values: list[float], setting: str = "same") -> dict:
    by_seed = {str(i): value for i, value in enumerate(values)}
    mean = sum(values) / len(values)
    labels = {"method": "finetune", "policy": policy, "setting": setting, "tasks": 1000}
    past = {} if policy == "float32" else {"past_dtype": policy}
    return {**labels, **past, "RP": mean, "RP_se": 0.1, "RP_by_seed": by_seed}


FULL = [60.0, 61.0, 59.0, 60.0]


@pytest.mark.parametrize(
    ("shift", "verdict"),
    [
        ([0.0, 0.1, -0.1, 0.1], "holds"),
        ([0.5, 0.51, 0.5, 0.51], "holds"),  # told from zero, and less than a point
        ([2.0, 2.1, 2.0, 2.1], "fails"),
        ([-2.0, -2.1, -2.0, -2.1], "fails"),
        ([0.9, 1.2, 0.8, 1.0], "undecided"),
        ([50.0, -50.0, 49.0, -49.0], "undecided"),  # noise proves no agreement
    ],
)
def test_rows_are_compared_seed_by_seed(shift: list[float], verdict: str) -> None:
    other = [a + b for a, b in zip(FULL, shift, strict=True)]
    (found,) = past_dtype([row("float32", FULL), row("uint8", other)])
    assert found["verdict"] == verdict
    text = "finetune setting=same: RP with uint8 is that of float32 within a point"
    assert found["claim"] == text


def test_an_error_is_compared_with_a_share_of_itself() -> None:
    full = [x / 100 for x in FULL]
    for share, verdict in ((0.01, "holds"), (0.2, "fails")):
        rows = [row("float32", full), row("uint8", [x * (1 + share) for x in full])]
        assert [c["verdict"] for c in past_dtype_errors(rows)] == [verdict]
        assert [c["verdict"] for c in past_dtype(rows)] == ["holds"]  # of percent it is little


def test_each_setting_and_type_is_compared_with_its_own_float32() -> None:
    rows = [
        row(policy, [x + step for x in FULL], setting)
        for setting, step in (("same", 0.0), ("shift", 5.0))
        for policy in ("float32", "bfloat16", "uint8")
    ]
    claims = past_dtype(rows)
    assert len(claims) == 4
    assert all(found["holds"] for found in claims)


def test_one_seed_decides_nothing_and_no_float32_is_told() -> None:
    alone = [row("float32", [0.5]), row("uint8", [0.5])]
    for found in alone:
        found["RP_se"] = None
    assert [found["verdict"] for found in past_dtype(alone)] == ["undecided"]
    with pytest.raises(KeyError, match="float32"):
        past_dtype([row("uint8", FULL)])
