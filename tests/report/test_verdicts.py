import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.made_up_runs import config, identity, write_run, write_study
from longtail.report import read
from longtail.report.checks import Claim, claim
from longtail.report.command import write
from longtail.report.table import build
from longtail.report.verdicts import MC, Finding, default_claims, finding, in_words, verdict_line


def said(folder: Path, claims: list[Claim] | None = None) -> Finding:
    table = build(read(folder))
    return finding(table, default_claims(table, MC) if claims is None else claims)


def mc(name: str, holds: bool | None, low: Any, high: Any) -> Claim:
    return claim(f"{name}: MC raises RP", holds, with_mc=high, without_mc=low)


def test_says_for_what_the_checks_hold_with_their_numbers(tmp_path: Path):
    write_study(tmp_path)
    others = [claim("Something else is true", True, x=1.0)]
    found = said(tmp_path, [*others, mc("EWC", True, 61.2, 70.0), mc("DER++", True, 71.0, 72.5)])
    assert found.text == "MC raises RP for EWC (61.20 → 70.00) and DER++ (71.00 → 72.50)."
    assert found.note == "In brackets: RP without → with MC, in percent."
    assert found.points()[0] == ("EWC", 61.2, 70.0, "holds")


def test_an_optimizer_that_is_kept_has_a_sentence_of_its_own(tmp_path: Path):
    write_study(tmp_path)

    def kept(name: str, holds: bool | None, low: float, high: float) -> Claim:
        return claim(f"{name}: RP with MC is above that of one kept", holds, with_mc=high, kept=low)

    claims = [mc("EWC", True, 61.2, 70.0), kept("EWC", None, 69.5, 70.0)]
    found = said(tmp_path, claims)
    assert found.text == (
        "MC raises RP for EWC (61.20 → 70.00). “RP with MC is above that of one kept” is "
        "undecided for EWC (69.50 → 70.00)."
    )
    assert found.note == "In brackets: RP without → with MC, then kept → with MC, in percent."
    assert found.claims == claims[:1]
    alone = said(tmp_path, claims[1:])
    assert (
        alone.text == "“RP with MC is above that of one kept” is undecided for EWC (69.50 → 70.00)."
    )
    assert alone.note == "In brackets: RP kept → with MC, in percent."


def test_a_kept_optimizer_does_not_take_the_place_of_how_a_gap_grows(tmp_path: Path):
    """As in Table 1, whose claims on an Adam that is kept come before those on the gap."""
    kept = claim("same: RP with MC is below that of one kept", True, with_mc=0.05, kept=1.15)
    gap = claim("same: the gap grows", True, first_quarter=-0.7, last_quarter=-1.6)
    plain = claim("same: row 7 is below row 3", True, row_7=0.05, row_3=0.06)
    write_study(tmp_path)
    found = said(tmp_path, [plain, kept, gap])
    assert found.text == (
        "The gap grows for same (-0.70 → -1.60). RP with MC is below that of one kept for same "
        "(1.15 → 0.05)."
    )
    assert found.note.endswith("last quarter of the tasks, then kept → with MC, in percent.")
    assert found.claims == [gap]


def test_runs_without_checks_are_compared_with_a_kept_optimizer_too(tmp_path: Path):
    write_study(tmp_path)
    for seed in range(3):
        settings = config("ewc", "kept", seed)
        write_run(tmp_path / "runs" / identity(settings), settings, tasks=12)
    text = said(tmp_path).text
    assert "MC raises RP" in text
    assert "RP with MC is above that of an Adam that is kept across tasks" in text
    assert text.count("EWC") == 2


PUBLISHED = sorted((Path(__file__).parents[2] / "bench" / "results").rglob("table.json"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_no_verdict_on_mc_is_left_out(path: Path):
    """Each claim that compares RP with MC and without, or with one that is kept, is counted."""
    table = json.loads(path.read_text())
    claims = table.get("checks", [])
    for keys in (("without_mc", "with_mc"), ("kept", "with_mc")):
        some = [
            c
            for c in claims
            if all(key in c["numbers"] for key in keys) and not c["claim"].endswith(("FGT", "BWT"))
        ]
        if not some or "finding" not in table:
            continue
        sentence = next(
            text
            for text in re.split(r"(?<=\.) (?=[“A-Z])", in_words(claims, table["unit"]).text)
            if some[0]["claim"].rpartition(": ")[2] in text
        )
        more = sum(int(n) for n in re.findall(r"and (\d+) more", sentence))
        assert sentence.count(" → ") + more == len(some), path


def test_never_says_more_than_the_checks(tmp_path: Path):
    write_study(tmp_path)
    claims = [mc("A", True, 1, 2), mc("B", None, 1, 1.1), mc("C", False, 2, 1)]
    assert said(tmp_path, claims).text == (
        "“MC raises RP” holds for A (1.00 → 2.00), is undecided for B (1.00 → 1.10) and "
        "fails for C (2.00 → 1.00)."
    )
    assert said(tmp_path, claims[1:2]).text == "“MC raises RP” is undecided for B (1.00 → 1.10)."
    assert said(tmp_path, claims[2:]).text == "“MC raises RP” fails for C (2.00 → 1.00)."
    for holds, word in ((None, "Undecided: "), (False, "Does not hold: "), (True, "")):
        alone = [claim("replay is best", holds, reservoir=3.0)]
        assert said(tmp_path, alone).text == f"{word}Replay is best."
    lost = [mc("A", True, None, 2.0)]
    assert said(tmp_path, lost).text == "MC raises RP for A (diverged → 2.00)."


def test_growth_of_a_gap_is_said_where_nothing_is_compared_with_mc(tmp_path: Path):
    write_study(tmp_path)
    text = "same: the gap between Continual Adam and Adam grows"
    claims = [claim("RP is near the paper's", True)]
    claims += [claim(text, True, first_quarter=-0.5, last_quarter=-1.5)]
    found = said(tmp_path, claims)
    assert found.text == ("The gap between Continual Adam and Adam grows for same (-0.50 → -1.50).")
    assert "first → the last quarter" in found.note


def test_long_lists_are_counted(tmp_path: Path):
    write_study(tmp_path)
    found = said(tmp_path, [mc(f"M{i}", True, 1, 2) for i in range(9)])
    assert found.text.endswith("M2 (1.00 → 2.00) and 6 more.")


def test_runs_without_checks_get_those_on_their_policies(tmp_path: Path):
    write_study(tmp_path)
    written = write(read(tmp_path), tmp_path, with_figures=False, with_page=False)
    table = json.loads(written["json"].read_text())
    assert [c["claim"] for c in table["checks"]] == [
        "Finetune: MC raises RP",
        "EWC: MC raises RP",
        "DER++: MC raises RP",
    ]
    assert {c["verdict"] for c in table["checks"]} == {"holds"}
    assert table["finding"].startswith("MC raises RP for Finetune (")


def test_rows_that_nobody_named_are_not_compared_however_far_apart(tmp_path: Path):
    for method in ("finetune", "derpp"):
        for seed in range(3):
            write_run(tmp_path / f"{method}{seed}", config(method, "new", seed), tasks=40)
    found = said(tmp_path)
    assert found.claims == []
    assert found.text.startswith("Finetune AdamW new after 40 tasks: RP ")


def test_a_single_run_is_described_without_a_claim(tmp_path: Path):
    write_run(tmp_path, config())
    found = said(tmp_path)
    assert found.claims == []
    assert found.text.startswith("Finetune Continual AdamW after 12 tasks: RP 81.24, LP 85.97")
    assert "percent" in found.text


def test_many_rows_without_a_claim_are_counted_and_not_recited(tmp_path: Path):
    for i in range(9):
        settings = config("finetune", "continual", lr=0.1**i)
        write_run(tmp_path / identity(settings), settings)
    table = build(read(tmp_path))
    assert finding(table, []).text == "9 rows, of which nothing is claimed; see the table."


def test_a_score_of_zero_is_a_score(tmp_path: Path):
    write_run(tmp_path, config())
    table = build(read(tmp_path))
    table.rows[0].update(RP=0.0, LP=0.0)
    assert finding(table, []).text.startswith(
        "Finetune Continual AdamW after 12 tasks: RP 0.00, LP"
    )
    table.rows[0].update(RP=None, LP=None)
    assert "no score" in finding(table, []).text


def test_a_pair_of_ones_own_is_compared_by_default(tmp_path: Path):
    planned = []
    for name, policy in (("mine", "continual"), ("theirs", "new")):
        for seed in range(3):
            settings = config(policy=policy, seed=seed)
            write_run(tmp_path / identity(settings), settings)
            labels = {"method": "finetune", "policy": name}
            planned.append({"id": identity(settings), "labels": labels})
    plan = {"runs": planned, "report": {"pair": ["mine", "theirs"]}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    written = write(read(tmp_path), tmp_path, with_figures=False, with_page=False)
    text = json.loads(written["json"].read_text())["finding"]
    assert text.startswith("Mine raises RP beside theirs for Finetune (")


def test_verdicts_are_counted_in_words():
    assert verdict_line([claim("a", True)] * 27 + [claim("b", None), claim("c", False)]) == (
        "27 of 29 checks hold, 1 fail, 1 undecided"
    )
    assert verdict_line([claim("a", True)]) == "1 of 1 check holds"
