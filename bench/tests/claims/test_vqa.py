"""The paper's claims about VQA-CL hold for its own numbers, and fail where they should."""

from __future__ import annotations

from typing import Any

import pytest

from longtail.report.papers import _table
from longtail_bench.claims.vqa import difficulty, vqa

Rows = list[dict[str, Any]]


def paper_rows() -> Rows:
    rows = [dict(row) for row in _table("vqa")["rows"]]
    for row in rows:
        row.update({f"{metric}_se": 0.01 for metric in ("RP", "FGT", "BWT")})
        row.update({f"RP_{part}_se": 0.01 for part in ("slope", "first", "last", "growth")})
        grows = 0.01 if row.get("policy") == "continual" else 0.0
        row["RP_after"] = list(range(50, 1001, 50))
        row["RP_curve"] = [60 + grows * after for after in row["RP_after"]]
    return rows


def failed(rows: Rows) -> list[str]:
    return [c["claim"] for c in vqa(rows) if not c["holds"]]


def test_the_papers_own_numbers_hold() -> None:
    claims = vqa(paper_rows())
    assert failed(paper_rows()) == []
    assert len(claims) == 1 + 6 * 4 + 2 + 2 + 6 + 6


def test_a_method_that_mc_makes_worse_is_named() -> None:
    rows = paper_rows()
    for row in rows:
        if row["method"] == "ewc" and row["policy"] == "continual":
            row["RP"], row["BWT"] = 50.0, -3.0
    assert failed(rows) == [
        "EWC: MC raises RP",
        "Continual AdamW improves every method",
        "EWC: MC raises BWT",
        "EWC: backward transfer is positive with MC",
        "EWC: the gap to MTL shrinks with MC",
    ]


def test_without_rows_of_replay_nothing_is_said_of_it() -> None:
    rows = [row for row in paper_rows() if row["method"] not in ("reservoir", "derpp", "agem")]
    claims = vqa(rows)
    assert len(claims) == 1 + 3 * 4 + 2 + 1 + 3 + 3
    assert not [c for c in claims if "replays" in c["claim"]]


def test_an_adamw_that_is_kept_is_compared_where_it_has_rows() -> None:
    rows = paper_rows()
    ours = [row for row in rows if row.get("policy") == "continual"]
    rows += [{**row, "policy": "kept", "RP": row["RP"] - 1.0} for row in ours[:2]]
    rows[-1]["RP"] += 2.0
    text = "RP with MC is above that of an Adam that is kept across tasks"
    assert [c["verdict"] for c in vqa(rows) if text in c["claim"]] == ["holds", "fails"]


def test_what_has_no_rows_yet_is_not_asked() -> None:
    """Claims on the rows that are there are not lost with the others."""
    rows = [
        row
        for row in paper_rows()
        if row["method"] != "multitask"
        and (row["method"], row["policy"]) not in {("finetune", "continual"), ("ewc", "new")}
    ]
    texts = [c["claim"] for c in vqa(rows)]
    assert "DER++: MC raises RP" in texts
    assert not [text for text in texts if text.startswith(("Finetune", "EWC:"))]
    assert not [text for text in texts if "ulti-task" in text or "MTL" in text]
    assert "Continual AdamW improves every method, of the 4 that have rows" in texts
    with pytest.raises(KeyError, match="policy continual"):
        vqa([row for row in rows if row["policy"] == "continual"])


def test_a_gap_that_shrinks_is_named() -> None:
    rows = paper_rows()
    for row in rows:
        row["RP_curve"] = row["RP_curve"][::-1]
    assert len([text for text in failed(rows) if "grows" in text]) == 6


def test_a_world_that_is_too_easy_is_named() -> None:
    def row(rp: float) -> dict[str, Any]:
        return {"method": "multitask", "RP": rp, "RP_se": 0.5}

    assert difficulty([row(75.0)])[0]["holds"]
    assert difficulty([row(97.0)])[0]["verdict"] == "fails"
    assert difficulty([row(90.5)])[0]["verdict"] == "undecided"
    several = [row(rp) for rp in (50.0, 80.0, 95.0)]
    assert difficulty(several)[0]["holds"]
