"""From files in GQA's form to tasks, rows and regions, and `longtail data vqa`."""

import argparse
import errno
import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers.vqa_content import random_content

from longtail.benchmarks.vqa.gqa import data as gqa_data
from longtail.benchmarks.vqa.gqa import prepare as gqa_sources
from longtail.benchmarks.vqa.gqa.questions import Question
from longtail.benchmarks.vqa.gqa.stream import Problems
from longtail.benchmarks.vqa.gqa.tasks import Mentions, segments, select_tasks
from longtail.benchmarks.vqa.options import DataOptions
from longtail.benchmarks.vqa.prepared import PreparedVQA, whole_folder

NAMES = ("table", "coffee table", "cup", "lamp")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def question(text: str, program: tuple[tuple[str, str], ...] = (), objects=()) -> Question:
    return Question("1", "7", text, "yes", "", ("", "", ""), tuple(objects), program)


def test_mentions_by_text_program_and_annotation() -> None:
    asked = question("Is the Coffee table near it?", (("select", "lamp (4)"),), ("9",))
    names = {("7", "9"): "cup"}
    assert Mentions(NAMES)(asked) == [0, 1], "whole words, and the shorter name within the longer"
    assert Mentions(NAMES)(question("Is it a tablecloth?")) == []
    assert Mentions(NAMES, "program")(asked) == [3]
    get = lambda image, id_: names.get((image, id_))  # noqa: E731
    assert Mentions(NAMES, "annotation", get)(asked) == [2]
    assert Mentions(NAMES, "any", get)(asked) == [0, 1, 2, 3]


def test_tasks_are_ordered_by_frequency_within_limits() -> None:
    train, test = np.array([90, 5, 30, 30, 0, 8]), np.array([9, 1, 1, 1, 1, 0])
    assert select_tasks(train, test, tasks=9).tolist() == [0, 2, 3, 1]
    assert select_tasks(train, test, tasks=2, largest=50).tolist() == [2, 3]
    assert select_tasks(train, test, tasks=9, smallest=10, exclude=[2]).tolist() == [0, 3]


def test_rows_of_overlapping_tasks() -> None:
    offsets, rows = segments([[0, 2], [], [2], [1, 2]], np.array([2, 0]))
    assert offsets.tolist() == [0, 3, 4]
    assert rows.tolist() == [0, 2, 3, 0]


def write_files(folder: Path, features: tuple[str, ...] = ("1", "2", "3", "4")) -> None:
    folder.mkdir(exist_ok=True)
    names = ("man", "table", "lamp")
    objects = {
        str(i): {"name": name, "x": 0, "y": 0, "w": 5, "h": 5} for i, name in enumerate(names)
    }
    texts = ["Is the man here?"] * 3 + ["Is the table near the lamp?", "Is the table here?"]
    for split, images in (("train", "12"), ("val", "34")):
        graphs = {image: {"width": 9, "height": 9, "objects": objects} for image in images}
        (folder / f"{split}_sceneGraphs.json").write_text(json.dumps(graphs))
        asked = {
            f"{split[0]}{image}{n}": {"imageId": image, "question": text, "answer": answer}
            for image in images
            for n, text in enumerate(texts)
            for answer in ("yes" if n % 2 else "no",)
        }
        (folder / f"{split}_balanced_questions.json").write_text(json.dumps(asked))
    for image in features:
        boxes = np.array([[0, 0, 5, 5]])
        np.savez(folder / f"{image}.npz", features=np.ones((1, 4)), boxes=boxes, width=9, height=9)


def options(folder: Path, **changes) -> DataOptions:
    return DataOptions(source="gqa", folder=str(folder), **changes)


def test_files_become_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_files(folder)
    found = gqa_sources.prepare(options(folder, strict=True))
    assert list(found.task_names) == ["man", "table", "lamp"]
    assert np.diff(found.train_offsets).tolist() == [6, 4, 2]
    assert np.diff(found.test_offsets).tolist() == [6, 4, 2]
    assert list(found.answer_names) == ["no", "yes"]
    shared = set(found.train(1)) & set(found.train(2))
    assert {found.questions[n] for n in shared} == {"Is the table near the lamp?"}
    trained = {found.regions.images[k] for k in found.images[found.train_rows]}
    assert trained == {"1", "2"}
    again = gqa_sources.prepare(options(folder))
    assert list(again.ids) == list(found.ids)


def test_exclusions_and_limits_are_settings(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_files(folder)
    names = lambda **changes: list(  # noqa: E731
        gqa_sources.prepare(options(folder, **changes)).task_names
    )
    assert names(exclude="man") == ["table", "lamp"]
    assert names(largest_task=5) == ["table", "lamp"]
    assert names(tasks=1) == ["man"]
    with pytest.raises(ValueError, match="Invalid exclude: 'unicorn'"):
        names(exclude="unicorn")
    with pytest.raises(ValueError, match="no object of"):
        names(smallest_task=100)


def test_questions_without_features_are_counted_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_files(folder, features=("1", "3", "4"))
    problems = Problems()
    found = gqa_sources.prepare(options(folder), problems)
    assert problems.counts[gqa_sources.NO_FEATURES] == 5
    assert np.diff(found.train_offsets).tolist() == [3, 2, 1]
    assert "image 2" in problems.examples[gqa_sources.NO_FEATURES][0]
    with pytest.raises(ValueError, match="image 2: image without features"):
        gqa_sources.prepare(options(folder, strict=True))


def test_where_all_features_are_left_out_it_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_files(folder)
    with pytest.raises(ValueError, match=r"no task is left.*another width.*4, expected 99"):
        gqa_sources.prepare(options(folder, feature_width=99))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        gqa_sources.prepare(options(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no train_balanced_questions"):
        gqa_sources.prepare(options(tmp_path / "empty"))


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": 0},
        {"occlusion": 1.5},
        {"noise": -1.0},
        {"noise": math.nan},
        {"mention": "smell"},
        {"test_split": "train"},
    ],
)
def test_invalid_options_are_named(change) -> None:
    with pytest.raises(ValueError, match=f"Invalid {next(iter(change))}"):
        DataOptions(**change)


def command(**given) -> argparse.Namespace:
    return argparse.Namespace(
        **{"dir": None, "check": False, "quiet": False, "json": False, "strict": False, **given}
    )


def test_check_prints_statistics_beside_the_papers(tmp_path: Path, capsys) -> None:
    write_files(tmp_path / "files", features=("1", "2", "3"))
    assert gqa_data.data_command(command(dir=str(tmp_path / "files"), check=True)) == 0
    printed = capsys.readouterr().out
    assert "man, 6  appliance, 2,396" in printed
    assert "137.86" in printed
    assert "left out: 5" in printed
    assert gqa_data.data_command(command(dir=str(tmp_path / "files"), check=True, json=True)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["largest"], found["answers"]) == (3, 6, 2)
    listed = found["listed"][gqa_sources.NO_FEATURES]
    assert len(listed) == found["problems"][gqa_sources.NO_FEATURES] == 5
    assert all("image 4" in where for where in listed)
    with pytest.raises(ValueError, match="without features"):
        gqa_data.data_command(command(dir=str(tmp_path / "files"), check=True, strict=True))


def test_check_works_on_questions_alone(tmp_path: Path, capsys) -> None:
    write_files(tmp_path / "files", features=())
    assert gqa_data.data_command(command(dir=str(tmp_path / "files"), check=True)) == 0
    assert "questions only" in capsys.readouterr().out


def test_without_files_it_says_where_to_get_them(capsys) -> None:
    assert gqa_data.data_command(command()) == 0
    printed = capsys.readouterr().out
    assert "questions1.2.zip" in printed
    assert "gqa_objects_info.json" in printed


def test_random_content_survives_a_round_trip(tmp_path: Path) -> None:
    made = random_content()
    made.save(tmp_path / "questions")
    made.regions.save(tmp_path / "regions")
    regions = type(made.regions).load(tmp_path / "regions")
    found = PreparedVQA.load(tmp_path / "questions", regions)
    assert list(found.questions) == list(made.questions)
    np.testing.assert_array_equal(found.train(3), made.train(3))
    np.testing.assert_array_equal(found.regions.features, made.regions.features)


def test_a_full_disk_leaves_nothing_and_is_said_where(tmp_path: Path) -> None:
    def fill() -> None:
        with whole_folder(tmp_path / "to") as work:
            (work / "half").write_text("written")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as full:
        fill()
    assert full.value.filename == str(tmp_path / "to")
    assert not list(tmp_path.glob("*to*"))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("names.json", b"{", "names.json: Expecting property name"),
        ("names.json", b"{}", "'ids'"),
        ("answers.npy", b"", "No data left"),
        ("answers.npy", None, "answers.npy'"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path: Path, name: str, content, why: str) -> None:
    made = random_content()
    made.save(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path} is damaged: .*{why}"):
        PreparedVQA.load(tmp_path, made.regions)
