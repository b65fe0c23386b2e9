"""The readers on real slices of GQA, where LONGTAIL_GQA_SLICES names their folder."""

import collections
import json
import os
from pathlib import Path

import pytest

from longtail_bench.vqa.gqa.members import members
from longtail_bench.vqa.gqa.questions import read_questions
from longtail_bench.vqa.gqa.scenes import count_names
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.tasks import Mentions

FOLDER = Path(os.environ.get("LONGTAIL_GQA_SLICES", ""))
FILES = {
    "ood_testdev_head.json": 1733,
    "ood_testdev_tail.json": 1063,
    "val_bal_tail_-0.7.json": 1358,
}
pytestmark = pytest.mark.skipif(
    not os.environ.get("LONGTAIL_GQA_SLICES"), reason="LONGTAIL_GQA_SLICES is not set"
)


def questions():
    for name, count in FILES.items():
        found = list(read_questions([FOLDER / name], Problems(strict=True)))
        assert len(found) == count
        yield from found


@pytest.mark.parametrize("name", [*FILES, "GraphVQA_debug_sceneGraphs.json"])
def test_streaming_reads_what_json_reads(name: str) -> None:
    whole = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    assert dict(members(FOLDER / name)) == whole


def test_scene_graphs() -> None:
    path = FOLDER / "GraphVQA_debug_sceneGraphs.json"
    counts = count_names([path], Problems(strict=True))
    assert counts.total() == 21 + 12 + 20 + 6
    assert counts["window"] == 3


def test_the_rule_that_comes_closest_to_the_papers_sizes() -> None:
    """From 'appliance' down, tasks by the question's words hold 57.5 times its questions."""
    lines = (FOLDER / "GraphVQA_name_gqa.txt").read_text(encoding="utf-8").splitlines()
    names = [line.strip() for line in lines if line.strip() and line != "<unk>"]
    mentions = Mentions(names)
    counts: collections.Counter[str] = collections.Counter()
    for question in questions():
        counts.update(names[n] for n in mentions(question.text))
    assert counts["appliance"] == 28
    below = [count for count in counts.values() if count <= counts["appliance"]]
    assert sum(sorted(below)[-1000:]) / counts["appliance"] == pytest.approx(
        137_860 / 2396, rel=0.1
    )
    rarest = sum(counts[name] for name in names[-1000:])
    assert rarest / counts["appliance"] < 10, "the 1,000 rarest names do not fit"
