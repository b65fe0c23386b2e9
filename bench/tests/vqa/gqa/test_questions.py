"""GQA's question files and scene graphs, and what may be wrong with them."""

import json
from pathlib import Path

import pytest

from longtail_bench.vqa.gqa import questions, scenes
from longtail_bench.vqa.problems import DUPLICATE, Problems

QUESTION = {
    "imageId": "7",
    "question": "What is in front of the white wall?",
    "answer": "couch",
    "groups": {"global": "furniture", "local": "15-wall_in front of,s"},
}


def read(path: Path, *entries: tuple[str, dict], strict: bool = False):
    text = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in entries)
    path.write_text("{" + text + "}")
    problems = Problems(strict)
    return list(questions.read_questions([path], problems)), problems


def test_a_question(tmp_path: Path) -> None:
    (question,), problems = read(tmp_path / "q.json", ("0201", QUESTION))
    assert (question.id, question.image, question.answer) == ("0201", "7", "couch")
    assert question.text == "What is in front of the white wall?"
    assert not problems.counts


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"answer": None}, questions.NO_ANSWER),
        ({"answer": " "}, questions.NO_ANSWER),
        ({"answer": ["red"]}, questions.NO_ANSWER),
        ({"imageId": None}, questions.NO_IMAGE),
        ({"question": ""}, questions.NO_TEXT),
    ],
)
def test_unusable_questions_are_counted_or_refused(tmp_path: Path, change, kind) -> None:
    entries = ("1", QUESTION), ("2", {**QUESTION, **change})
    found, problems = read(tmp_path / "q.json", *entries)
    assert [question.id for question in found] == ["1"]
    assert problems.counts == {kind: 1}
    assert problems.examples[kind] == ["q.json: question 2"]
    with pytest.raises(ValueError, match=r"q\.json: question 2"):
        read(tmp_path / "q.json", *entries, strict=True)


def test_duplicate_ids_are_named_across_files(tmp_path: Path) -> None:
    for n in (0, 1):
        (tmp_path / f"part_{n}.json").write_text(json.dumps({"5": QUESTION, f"0{n}": QUESTION}))
    problems = Problems()
    paths = [tmp_path / "part_0.json", tmp_path / "part_1.json"]
    found = list(questions.read_questions(paths, problems))
    assert [question.id for question in found] == ["5", "00", "01"]
    assert problems.examples[DUPLICATE] == ["part_1.json: question 5"]


def test_finds_one_file_or_chunks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no train_balanced_questions\.json"):
        questions.question_files(tmp_path, "train")
    folder = tmp_path / "questions1.2" / "train_all_questions"
    folder.mkdir(parents=True)
    for n in (0, 2, 10):
        (folder / f"train_all_questions_{n}.json").write_text("{}")
    found = questions.question_files(tmp_path, "train", "all")
    assert [path.stem[-2:] for path in found] == ["_0", "_2", "10"]
    (tmp_path / "val_balanced_questions.json").write_text("{}")
    assert questions.question_files(tmp_path, "val") == [tmp_path / "val_balanced_questions.json"]


def count(path: Path, content: dict) -> tuple[dict[str, int], Problems]:
    path.write_text(json.dumps(content))
    problems = Problems()
    return scenes.count_names([path], problems), problems


def test_objects_of_scenes_are_counted_by_name(tmp_path: Path) -> None:
    objects = {"1": {"name": "couch", "x": 10}, "2": {"name": " lamp "}, "3": {"name": "couch"}}
    content = {"7": {"width": 100, "objects": objects}, "8": {"objects": {"1": {"name": "lamp"}}}}
    counts, problems = count(tmp_path / "s.json", {**content, "9": {}, "10": {"objects": 5}})
    assert counts == {"couch": 2, "lamp": 2}
    assert not problems.counts


def test_what_is_wrong_in_a_scene_is_named(tmp_path: Path) -> None:
    objects = {"1": {"name": "couch"}, "2": {"name": None}, "3": 5, "4": {"name": " "}}
    counts, problems = count(tmp_path / "s.json", {"7": {"objects": objects}})
    assert counts == {"couch": 1}
    places = [f"s.json: image 7, object {n}" for n in (2, 3, 4)]
    assert problems.examples == {scenes.NO_NAME: places}
    (tmp_path / "twice.json").write_text('{"7": {}, "7": {"objects": {"1": {"name": "couch"}}}}')
    counts = scenes.count_names([tmp_path / "twice.json"], problems)
    assert not counts
    assert problems.examples[DUPLICATE] == ["twice.json: image 7"]


def test_missing_scene_graphs_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no \*_sceneGraphs\.json"):
        scenes.scene_files(tmp_path)
    for name in ("val_sceneGraphs.json", "train_sceneGraphs.json"):
        (tmp_path / name).write_text("{}")
    assert [path.name[:3] for path in scenes.scene_files(tmp_path)] == ["tra", "val"]
