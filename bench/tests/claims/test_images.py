"""The appendix's claims on made-up rows: they hold where they should and fail where they should."""

from typing import Any

import pytest

from longtail_bench.claims.images import seq_cifar10, seq_mnist

MNIST = {
    "finetune": (19.11, 18.79),
    "ewc": (44.94, 41.29),
    "ewcpp": (19.78, 19.75),
    "reservoir": (81.18, 78.56),
    "derpp": (87.12, 85.32),
    "agem": (71.42, 70.08),
}
BUFFERED = ("reservoir", "derpp", "agem")


def paper_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"method": "multitask", "RP": 95.6, "RP_paper": 95.64}]
    for method, scores in MNIST.items():
        for buffer in (200, 500) if method in BUFFERED else (None,):
            for policy, score in zip(("continual", "new"), scores, strict=True):
                row = {"method": method, "policy": policy, "RP": score, "RP_paper": score}
                rows.append(row if buffer is None else {**row, "buffer": buffer})
    return [{**row, "RP_se": 0.01} for row in rows]


def failing(rows: list[dict[str, Any]]) -> list[str]:
    return [c["claim"] for c in seq_mnist(rows) if not c["holds"]]


def change(rows: list[dict[str, Any]], by: float, **labels: Any) -> list[dict[str, Any]]:
    def match(row: dict[str, Any]) -> bool:
        return all(row.get(k) == v for k, v in labels.items())

    return [{**row, "RP": row["RP"] + by} if match(row) else row for row in rows]


def test_the_papers_own_numbers_meet_every_bar() -> None:
    claims = seq_mnist(paper_rows())
    assert all(c["holds"] for c in claims)
    assert len(claims) == 16
    gain = next(c for c in claims if c["claim"] == "DER++, buffer 500: MC raises RP")["numbers"]
    assert gain["difference"] == pytest.approx(1.8)
    assert gain["se"] == pytest.approx(0.01 * 2**0.5)


@pytest.mark.parametrize(
    ("by", "labels", "claim"),
    [
        (-1.1, {"method": "multitask"}, "Multi-task training is within 1 of the paper"),
        (3.2, {"method": "reservoir"}, "Reservoir is within 3"),
        (-2.0, {"method": "derpp", "buffer": 200}, "DER++ with a buffer of 200 is at least"),
        (5.0, {"method": "ewcpp", "policy": "new"}, "EWC++ AdamW new keeps about one task"),
        (-24.0, {"method": "ewc"}, "EWC is within 5"),
        (
            -2.0,
            {"method": "agem", "policy": "continual", "buffer": 500},
            "A-GEM, buffer 500: MC raises RP",
        ),
    ],
)
def test_each_bar_can_be_missed(by: float, labels: dict[str, Any], claim: str) -> None:
    missed = failing(change(paper_rows(), by, **labels))
    assert len(missed) == 1
    assert missed[0].startswith(claim)


def test_one_buffer_near_the_paper_is_enough() -> None:
    assert failing(change(paper_rows(), 6.0, method="reservoir", buffer=500)) == []


def test_a_gain_within_two_standard_errors_is_undecided() -> None:
    noisy = [{**row, "RP_se": 1.0} if row["method"] == "agem" else row for row in paper_rows()]
    found = {c["claim"]: c["verdict"] for c in seq_mnist(noisy)}
    assert found["A-GEM, buffer 200: MC raises RP"] == "undecided"
    assert found["Reservoir, buffer 200: MC raises RP"] == "holds"


def test_missing_rows_are_named() -> None:
    with pytest.raises(KeyError, match="multitask"):
        seq_mnist([r for r in paper_rows() if r["method"] != "multitask"])


def test_cifar_claims() -> None:
    rows = [r for r in paper_rows() if r.get("buffer") != 200]
    assert [c["holds"] for c in seq_cifar10(rows)] == [True] * 9
    worse = change(rows, -10.0, method="multitask")
    assert [c["verdict"] for c in seq_cifar10(worse)] == ["fails", *["holds"] * 8]


def test_cifar_claims_against_an_adam_that_is_kept() -> None:
    rows = [
        {k: v for k, v in r.items() if k != "buffer"}
        for r in paper_rows()
        if r.get("buffer") != 200
    ]
    kept = [{**r, "policy": "kept"} for r in rows if r.get("policy") == "continual"]
    kept = change(change(kept, 1.0, method="derpp"), -1.0, method="agem")
    found = {c["claim"]: c["verdict"] for c in seq_cifar10(rows + kept)}
    above = "RP with MC is above that of an Adam that is kept across tasks"
    assert found["Reservoir: " + above] == "undecided"
    assert found["DER++: " + above] == "fails"
    assert found["A-GEM: " + above] == "holds"
