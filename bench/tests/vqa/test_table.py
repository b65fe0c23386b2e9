"""A batch of questions with their regions is the same from memory and from storage."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench_helpers.vqa_content import random_content
from longtail_bench.vqa.prepared import PreparedVQA, Regions
from longtail_bench.vqa.table import Placement, QuestionTable

LIMIT = 6


@pytest.fixture(scope="module")
def content() -> PreparedVQA:
    return random_content(tasks=4, questions=60, images=12, width=5)


def table(content: PreparedVQA, placement: Placement, regions: Regions | None = None):
    ids = np.arange(60 * 8).reshape(60, 8)
    cuts = np.arange(60) % 5
    regions = content.regions if regions is None else regions
    return QuestionTable.of(
        ids, cuts, content.answers, content.images, regions, LIMIT, placement
    ).to("cpu")


@pytest.mark.parametrize("placement", ["memory", "storage"])
def test_a_row_has_the_regions_of_its_image(content: PreparedVQA, placement: Placement) -> None:
    inputs, targets = table(content, placement)[torch.tensor([7, 3])]
    assert inputs["ids"].tolist()[1] == list(range(24, 32))
    assert inputs["cut"].tolist() == [2, 3]
    assert targets.tolist() == content.answers[[7, 3]].tolist()
    for place, row in enumerate((7, 3)):
        start, stop = content.regions.offsets[content.images[row] :][:2]
        count = min(int(stop - start), LIMIT)
        assert int(inputs["count"][place]) == count
        got = inputs["regions"][place].float().numpy()
        here = slice(start, start + count)
        assert np.array_equal(got[:count, :5], content.regions.features[here].astype(np.float32))
        boxes = content.regions.boxes[here]
        assert np.allclose(got[:count, 5:9], boxes, atol=1e-3)
        assert np.allclose(got[:count, 9:], boxes[:, 2:] - boxes[:, :2], atol=1e-3)
        assert not got[count:].any()


def test_memory_and_memory_mapped_storage_agree(content: PreparedVQA, tmp_path: Path) -> None:
    content.save(tmp_path / "content")
    mapped = PreparedVQA.load(tmp_path / "content").regions
    assert isinstance(mapped.features, np.memmap)
    memory, storage = table(content, "memory"), table(content, "storage", mapped)
    assert (memory.capturable, storage.capturable) == (True, False)
    assert (memory.host_index, storage.host_index) == (False, True)
    for index in (torch.arange(60), torch.tensor([[1, 2, 3], [59, 0, 2]])):
        (a, y), (b, z) = memory[index], storage[index]
        assert torch.equal(y, z)
        assert y.dtype == torch.int64
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert a["regions"].shape == (*index.shape, LIMIT, 11)


class Awaiting:
    """Features that no thread gets before so many have asked for some."""

    def __init__(self, features: np.ndarray, threads: int) -> None:
        self.features, self.shape = features, features.shape
        self.barrier, self.thread = threading.Barrier(threads), threading.local()

    def __getitem__(self, rows: slice) -> np.ndarray:
        if not hasattr(self.thread, "met"):
            self.thread.met = self.barrier.wait(timeout=60)  # an error where others do not come
        return self.features[rows]


def test_many_images_are_read_by_several_threads(content: PreparedVQA) -> None:
    from longtail_bench.vqa import table as vqa_table

    features: Any = Awaiting(content.regions.features, vqa_table.THREADS)
    awaiting = table(content, "storage", replace(content.regions, features=features)).stored
    images = np.random.default_rng(0).integers(0, 12, (1 << 20) // (LIMIT * 11) + 1)
    got = awaiting.read(images)
    assert got.numel() >= 1 << 20
    padded = vqa_table.PaddedRegions(table(content, "storage").stored, "cpu")
    assert torch.equal(got, padded(torch.from_numpy(images)))


def test_ranges_and_views(content: PreparedVQA) -> None:
    whole = table(content, "auto")
    part = whole.narrow(10, 20)
    assert len(part) == 10
    assert torch.equal(part[torch.tensor([2])][1], whole[12:13][1])
