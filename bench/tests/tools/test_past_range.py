"""How the past of a run is spread, on the smallest benchmark."""

import json
from pathlib import Path

import pytest

from helpers import scripts


@pytest.mark.parametrize("past_dtype", ["float32", "uint8"])
def test_the_spread_is_of_logarithms_in_order(tmp_path: Path, past_dtype: str) -> None:
    tool = scripts.load("bench/tools/past_range.py")
    out = tmp_path / "range.json"
    sets = ["--set", "data.tasks=5", "--set", f"moments.past_dtype={past_dtype}"]
    assert tool.main(["toy", *sets, "--device", "cpu", "--out", str(out)]) == 0
    spread = json.loads(out.read_text())["spread"]
    quantiles = list(spread["log2_quantiles"].values())
    ends = [spread["log2_smallest"], *quantiles, spread["log2_largest"]]
    assert ends == sorted(ends)
    assert -60 < spread["log2_quantiles"]["0.5"] < 10
    assert spread["steps"] > 0
