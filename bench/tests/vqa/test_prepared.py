"""Prepared content comes back as it was, and damage is named."""

from pathlib import Path

import numpy as np
import pytest

from bench_helpers.vqa_content import random_content
from longtail_bench import prepared
from longtail_bench.vqa.prepared import FORM, PreparedVQA


def test_content_survives_a_round_trip(tmp_path: Path) -> None:
    made = random_content()
    made.save(tmp_path / "content")
    found = PreparedVQA.load(tmp_path / "content")
    assert found.questions == made.questions
    assert found.regions.tag_names == made.regions.tag_names
    np.testing.assert_array_equal(found.train(3), made.train(3))
    np.testing.assert_array_equal(found.regions.features, made.regions.features)
    assert isinstance(found.regions.features, np.memmap)


def test_a_folder_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "content"
    prepared.save(FORM, folder, {"questions": ["Who?"]})
    with pytest.raises(ValueError, match=f"{folder} is damaged: 'image_names'"):
        PreparedVQA.load(folder)
