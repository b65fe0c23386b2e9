"""Settings of the data that make no sense are refused by name."""

import math

import pytest

from longtail_bench.vqa.options import DataOptions


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": 0},
        {"occlusion": 1.5},
        {"noise": -1.0},
        {"noise": math.nan},
    ],
)
def test_invalid_options_are_named(change) -> None:
    with pytest.raises(ValueError, match=f"Invalid {next(iter(change))}"):
        DataOptions(**change)
