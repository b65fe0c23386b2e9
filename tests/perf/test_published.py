"""Pages quote the measurements that are stored under bench/results/perf."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from helpers.scripts import ROOT

PERF = ROOT / "bench" / "results" / "perf"
COLUMNS = (
    "BERT-base, 199 tensors, 109 M",
    "one tensor of 512 M",
    "MLP, 6 tensors, 90 k",
    "MiniLM, 22.7 M",
)


def stored(name: str) -> dict[str, Any]:
    return json.loads((PERF / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("line", "file", "what"),
    [
        ("H200", "optimizer_step_h200", "step"),
        ("H200, in a CUDA graph", "optimizer_step_h200", "step in a CUDA graph"),
        ("H200, past in one byte", "optimizer_step_uint8_h200", "step"),
        ("the same in a CUDA graph", "optimizer_step_uint8_h200", "step in a CUDA graph"),
        ("one CPU thread", "optimizer_step_cpu", "step"),
        ("one CPU thread, past in one byte", "optimizer_step_uint8_cpu", "step"),
    ],
)
def test_the_table_of_steps_is_what_was_stored(line: str, file: str, what: str) -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    found = re.search(rf"^\| {re.escape(line)} \|(.*)\|$", page, re.MULTILINE)
    assert found
    content = stored(file)
    values = {row["name"]: row["value"] for row in content["rows"]}
    wanted = [values.get(f"{what}: {column}") for column in COLUMNS]
    shown = [cell.strip() for cell in found[1].split("|")]
    assert shown == ["" if value is None else f"{value:.2f}" for value in wanted]
    assert f"`{content['provenance']['commit'][:7]}`" in page


def test_the_pages_on_word_senses_quote_the_stored_step() -> None:
    content = stored("wsd_step_h200")
    times = [row["ms"] for row in content["rows"][:4]]
    ratios = content["ratios"]
    page = (ROOT / "docs" / "benchmarks" / "wsd.md").read_text("utf-8")
    table = page.partition("| | ms a step |")[2].partition("\n\n")[0]
    shown = [float(number) for number in re.findall(r"\| (\d+\.\d+) \| [\d.]+ min", table)]
    assert shown == [round(times[0], 1), *(round(time, 2) for time in times[1:])]
    assert f"{ratios['speed-up']:.1f} times as fast as the eager loop" in page
    assert f"{ratios['evaluation']:.0%} of a bare forward pass" in page
    readme = (PERF / "README.md").read_text("utf-8")
    assert f"took {times[0]:.1f} ms in this measurement" in readme
    assert f"pass (commit `6a062de`) | {ratios['evaluation']:.2f} |" in readme


def test_the_page_on_shared_cores_quotes_the_stored_rounds() -> None:
    content = stored("shared_cores_cpu")
    page = (PERF / "README.md").read_text("utf-8").partition("## Beside another program")[2]
    assert f"`{content['provenance']['commit'][:7]}`" in page
    lines = re.findall(
        r"^\| [^|]+ \| ([\d.]+) s \| ([\d.]+) s \((.*) s\) \| ([\d.]+) \|$", page, re.M
    )
    for (one, two, rounds, sharing), row in zip(lines, content["rows"], strict=True):
        each = row["each round, two at once s"]
        assert float(one) == round(row["one alone s"], 2)
        for shown, value in [(two, row["two at once s"]), (sharing, row["sharing"])]:
            assert float(shown) == round(value, len(shown.partition(".")[2]))
        for shown, value in zip(rounds.split(" to "), (min(each), max(each)), strict=True):
            assert float(shown) == round(value, len(shown.partition(".")[2]))
