"""From files in GQA's form, and from a generated world, to tasks, rows and regions."""

from pathlib import Path

import numpy as np
import pytest

from bench_helpers.vqa_content import write_gqa
from longtail_bench.vqa import sources
from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.world.generator import MINIATURE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def options(folder: Path, **changes) -> DataOptions:
    return DataOptions(source="gqa", folder=str(folder), **changes)


def test_files_become_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_gqa(folder)
    found = sources.prepare(options(folder, strict=True))
    assert list(found.task_names) == ["man", "table", "lamp"]
    assert np.diff(found.train_offsets).tolist() == [6, 4, 2]
    assert np.diff(found.test_offsets).tolist() == [6, 4, 2]
    assert list(found.answer_names) == ["no", "yes"]
    shared = set(found.train(1)) & set(found.train(2))
    assert {found.questions[n] for n in shared} == {"Is the table near the lamp?"}
    trained = {found.regions.image_names[k] for k in found.images[found.train_rows]}
    assert trained == {"1", "2"}
    assert isinstance(found.regions.features, np.memmap)
    assert found.regions.features.dtype == np.float16


def test_exclusions_and_limits_are_settings(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_gqa(folder)
    names = lambda **changes: list(  # noqa: E731
        sources.prepare(options(folder, **changes)).task_names
    )
    assert names(exclude="man") == ["table", "lamp"]
    assert names(largest_task=5) == ["table", "lamp"]
    assert names(tasks=1) == ["man"]
    with pytest.raises(ValueError, match="Invalid exclude: 'unicorn'"):
        names(exclude="unicorn")
    with pytest.raises(ValueError, match="no object is mentioned by 100 to"):
        names(smallest_task=100)


def test_questions_without_features_are_counted_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_gqa(folder, features=("1", "3", "4"))
    problems = Problems()
    found = sources.prepare(options(folder), problems)
    assert problems.counts[sources.NO_FEATURES] == 5
    assert np.diff(found.train_offsets).tolist() == [3, 2, 1]
    assert "image 2" in problems.examples[sources.NO_FEATURES][0]
    with pytest.raises(ValueError, match="image 2: image without features"):
        sources.prepare(options(folder, strict=True))
    again = Problems()
    sources.prepare(options(folder), again)
    assert again.counts == problems.counts, "what was wrong is remembered with the cache"


def test_where_all_features_are_left_out_it_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_gqa(folder)
    for image in "1234":
        np.savez(folder / f"{image}.npz", features=np.full((1, 4), np.nan))
    with pytest.raises(ValueError, match=r"no task is left.*not finite, left out: 4"):
        sources.prepare(options(folder))


def test_the_same_is_prepared_once_and_changed_files_anew(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_gqa(folder)
    first = sources.prepare(options(folder)).regions.features
    assert sources.prepare(options(folder)).regions.features.filename == first.filename
    np.savez(folder / "1.npz", features=np.zeros((1, 4)), boxes=np.ones((1, 4)))
    changed = sources.prepare(options(folder)).regions.features
    assert changed.filename != first.filename
    assert not changed[0].any()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        sources.prepare(options(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no train_balanced_questions"):
        sources.prepare(options(tmp_path / "empty"))
    write_gqa(tmp_path / "unseen", features=())
    with pytest.raises(ValueError, match="unseen holds no region features"):
        sources.prepare(options(tmp_path / "unseen"))


def test_the_miniature_is_prepared_like_files() -> None:
    problems = Problems(strict=True)
    found = sources.prepare(DataOptions(miniature=True, strict=True), problems)
    assert len(found.task_names) >= 35
    sizes = np.diff(found.train_offsets)
    assert (sizes[:-1] >= sizes[1:]).all()
    assert found.regions.width == MINIATURE.width
    assert set(found.images[found.train_rows]).isdisjoint(found.images[found.test_rows])


@pytest.mark.slow
def test_the_whole_world_has_the_papers_sizes() -> None:
    found = sources.prepare(DataOptions())
    sizes = np.diff(found.train_offsets)
    assert len(sizes) == 1000
    assert sizes.mean() == pytest.approx(137.86, rel=0.03)
    assert sizes.max() == pytest.approx(2396, rel=0.15)
    assert len(found.answer_names) > 1000
