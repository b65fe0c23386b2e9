"""The rivals' studies, their joined table, its figure, and the blocks of the doc pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import scripts
from longtail import methods as registered
from longtail.study.expand import expand
from longtail.study.file import read_study
from longtail_bench.claims.rivals import extra_bytes

STUDIES = scripts.ROOT / "bench/src/longtail_bench/studies"
NUMBERS = {
    ("finetune", "continual"): 60.0,
    ("l2", "kept"): 62.0,
    ("finetune", "MoFO"): 50.0,
    ("reservoir", "continual"): 64.0,
    ("multitask", "multitask"): 70.0,
}


@pytest.fixture
def joined():
    return scripts.load("bench/tools/rivals_joined.py")


@pytest.fixture
def pages():
    return scripts.load("bench/tools/rival_pages.py")


def write(folder: Path) -> Path:
    rows: list[dict[str, Any]] = [
        {"method": m, "policy": p, "seeds": 2, "RP": rp, "RP_se": 0.5, "LP": rp, "FGT": 1.0,
         "RP_by_seed": {"0": rp - 0.5, "1": rp + 0.5}, "selected": {"lr": 0.001}}
        for (m, p), rp in NUMBERS.items()
    ]  # fmt: skip
    for name, sign in (("mnist", 1.0), ("synthetic", -1.0)):
        made = [{**row, "RP": sign * row["RP"]} for row in rows]
        about = {"unit": "percent", "higher_is_better": sign > 0, "provenance": {"commit": name}}
        (folder / name).mkdir(parents=True)
        (folder / name / "table.json").write_text(json.dumps({**about, "rows": made, "checks": []}))
    return folder


@pytest.mark.parametrize("name", ["synthetic", "mnist", "fsmol", "wsd"])
def test_every_row_of_a_study_has_a_known_cost(name: str) -> None:
    runs = expand(read_study(STUDIES / f"rivals_{name}.toml", "0"))
    rows = {(run.config.method, run.labels["policy"]) for run in runs}
    assert all(extra_bytes({"method": m, "policy": p}) >= 0 for m, p in rows)
    methods = {method for method, _ in rows}
    assert {"finetune", "reservoir", "multitask"} <= methods
    if name != "wsd":
        left_out = {"ewcpp", *(["derpp"] if name == "synthetic" else [])}
        assert methods == {*registered.names(), "multitask"} - left_out
        policies = {policy for method, policy in rows if method == "finetune"}
        assert {"MoFO", "MoFO with MC", "Adam-Rel", "UPGD", "BAdam", "continual"} <= policies


def test_the_joined_table_has_every_row_its_cost_and_the_checks(joined, tmp_path: Path) -> None:
    perf = tmp_path / "perf.json"
    row = {"method": "l2", "policy": "kept", "time": 1.25}
    perf.write_text(json.dumps({"rows": [row], "provenance": {"commit": "x"}}))
    table = joined.joined(write(tmp_path / "results"), perf)
    assert len(table["rows"]) == 10
    l2 = next(r for r in table["rows"] if r["method"] == "l2" and r["benchmark"] == "mnist")
    assert (l2["bytes"], l2["time"], l2["examples"]) == (4, 1.25, False)
    assert table["provenance"]["mnist"] == {"commit": "mnist"}
    assert any("no rival without data" in c["claim"] for c in table["checks"])
    assert [line.partition(":")[0] for line in joined.best(table["rows"], 2)] == [
        "l2, kept",
        "reservoir, continual",
    ]
    ranks = {(r["method"], r["policy"]): r["mean_rank"] for r in table["ranking"]}
    assert ranks["l2", "kept"] == ranks["reservoir", "continual"] == 0.0  # each among its kind
    assert ranks["finetune", "continual"] == 0.5
    assert ranks["finetune", "MoFO"] == 1.0
    assert ("multitask", "multitask") not in ranks
    with pytest.raises(ValueError, match="no table of synthetic"):
        joined.joined(tmp_path)


def test_a_constant_rate_takes_the_time_of_one_that_decays(joined, tmp_path: Path) -> None:
    perf = tmp_path / "perf.json"
    row = {"method": "finetune", "policy": "continual, task average", "time": 1.5}
    perf.write_text(json.dumps({"rows": [row], "provenance": {}}))
    made = {"method": "finetune", "policy": "continual, constant rate, task average", "RP": 1.0}
    (tmp_path / "wsd").mkdir()
    mc = {**made, "policy": "continual"}  # without which nothing can be checked
    content = {"unit": "percent", "higher_is_better": True, "provenance": {}, "rows": [mc, made]}
    (tmp_path / "wsd" / "table.json").write_text(json.dumps(content))
    plain, constant = joined.joined(tmp_path, perf)["rows"]
    assert (constant["time"], constant["bytes"], plain["time"]) == (1.5, 8, None)


def test_a_constant_rate_is_ranked_with_the_plain_row_where_all_are_constant(joined) -> None:
    def row(benchmark: str, policy: str, rp: float) -> dict[str, Any]:
        about = {"benchmark": benchmark, "higher_is_better": True, "examples": False, "bytes": 4}
        return {**about, "method": "finetune", "policy": policy, "RP": rp}

    constant = "continual, constant rate"
    made = [row("synthetic", p, rp) for p, rp in (("kept", 1), ("continual", 2), (constant, 3))]
    made += [row("fsmol", p, rp) for p, rp in (("kept", 1), ("continual", 2))]
    ranks = {r["policy"]: r["mean_rank"] for r in joined.ranking(made)}
    assert ranks == {constant: 0.0, "continual": 0.25, "kept": 1.0}


def test_the_frontier_is_what_nobody_beats_at_its_cost(joined) -> None:
    rows = [
        {"RP": rp, "bytes": cost, "higher_is_better": True}
        for rp, cost in ((5.0, 0), (4.0, 0), (6.0, 4), (5.5, 4), (5.9, 8), (7.0, 12))
    ]
    assert [row["RP"] for row in joined.frontier(rows, "bytes")] == [5.0, 6.0, 7.0]
    errors = [{**row, "RP": -row["RP"], "higher_is_better": False} for row in rows]
    assert [row["RP"] for row in joined.frontier(errors, "bytes")] == [-5.0, -6.0, -7.0]


def test_the_figure_is_drawn(joined, tmp_path: Path) -> None:
    rows = joined.joined(write(tmp_path / "results"))["rows"]
    paths = joined.draw([{**row, "RP": abs(row["RP"])} for row in rows], tmp_path / "figures")
    assert [path.suffix for path in paths] == [".svg", ".png"]
    assert "L2, Adam kept" in paths[0].read_text("utf-8")


def test_pages_show_their_own_rows_beside_mc(pages, joined, tmp_path: Path) -> None:
    rows = joined.joined(write(tmp_path / "results"))["rows"]
    text = pages.block("l2", rows)
    assert "| mnist | l2, kept | 62.00 ± 0.50 | 62.00 | 1.00 | 4 |  | lr 0.001 |" in text
    assert "| mnist | finetune, continual | 60.00" in text
    assert "| mnist | finetune, MoFO | 50.00" in pages.block("mofo", rows)
    assert pages.block("si", rows) == pages.NOTHING
    averages = [
        {**row, "policy": "kept, task average"} for row in rows if row["policy"] == "continual"
    ]
    text = pages.block("averages", [*rows, *averages])  # each kind beside its own base
    for method in ("finetune", "reservoir"):
        assert f"| mnist | {method}, kept, task average |" in text
        assert f"| mnist | {method}, continual |" in text
    known = {path.stem for path in pages.pages()}
    assert {"l2", "si", "lwf", "ewc_adam", "coma", "cofima", "mofo", "adam_rel", "upgd"} <= known
    text = pages.whole(rows, joined.ranking(rows))
    assert "| without data | l2, kept | 0.00 | 4 |" in text
    assert "| with a buffer of data | reservoir, continual | 0.00 | 4 |" in text
    assert pages.main(["--check"]) == 0
