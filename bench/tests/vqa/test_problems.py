"""What is wrong with data is counted and listed, or refused."""

import pytest

from longtail_bench.vqa.problems import Problems


def test_problems_count_or_refuse() -> None:
    problems = Problems()
    for n in range(9):
        problems.note("bad", f"line {n}")
    assert problems.lines() == ["bad: 9 (line 0, line 1, line 2, line 3, line 4, ...)"]
    assert problems.examples == {"bad": [f"line {n}" for n in range(9)]}
    with pytest.raises(ValueError, match="line 7: bad"):
        Problems(strict=True).note("bad", "line 7")
