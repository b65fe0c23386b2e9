"""GQA's question files and scene graphs, and what may be wrong with them."""

import json
from pathlib import Path

import pytest

from longtail.benchmarks.vqa.gqa import questions, scenes
from longtail.benchmarks.vqa.gqa.stream import DUPLICATE, Problems

QUESTION = {
    "imageId": "7",
    "question": "What is in front of the white wall?",
    "answer": "couch",
    "groups": {"global": "furniture", "local": "15-wall_in front of,s"},
    "types": {"structural": "query", "semantic": "rel", "detailed": "relS"},
    "annotations": {"question": {"6:8": "16"}, "answer": {"0": "17"}},
    "semantic": [
        {"operation": "select", "argument": "wall (16)", "dependencies": []},
        {"operation": "filter color", "argument": "white", "dependencies": [0]},
        {"operation": "relate", "argument": "furniture,in front of,s (17)", "dependencies": [1]},
        {"operation": "query", "argument": "name", "dependencies": [2]},
    ],
}
OBJECT = {"name": "couch", "x": 10, "y": 20, "w": 30, "h": 40, "attributes": ["red"]}


def read(path: Path, *entries: tuple[str, dict], strict: bool = False):
    text = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in entries)
    path.write_text("{" + text + "}")
    problems = Problems(strict)
    return list(questions.read_questions([path], problems)), problems


def read_scenes(path: Path, content: dict) -> tuple[list[scenes.Scene], Problems]:
    path.write_text(json.dumps(content))
    problems = Problems()
    return list(scenes.read_scenes([path], problems)), problems


def test_a_question(tmp_path: Path) -> None:
    (question,), problems = read(tmp_path / "q.json", ("0201", QUESTION))
    assert (question.id, question.image, question.answer) == ("0201", "7", "couch")
    assert question.group == "furniture"
    assert question.types == ("query", "rel", "relS")
    assert question.objects == ("16", "17")
    assert question.program_names() == {"wall", "furniture"}
    assert not problems.counts


def test_four_fields_are_enough(tmp_path: Path) -> None:
    short = {key: QUESTION[key] for key in ("imageId", "question", "answer")}
    (question,), _ = read(tmp_path / "q.json", ("1", short))
    assert question.program == ()
    assert question.group == ""
    odd = {"semantic": 5, "annotations": [1], "types": "x", "groups": 3}
    (again,), _ = read(tmp_path / "q.json", ("1", {**short, **odd}))
    assert again == question


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
    assert questions.question_files(tmp_path, "train") == []
    folder = tmp_path / "questions1.2" / "train_all_questions"
    folder.mkdir(parents=True)
    for n in (0, 2, 10):
        (folder / f"train_all_questions_{n}.json").write_text("{}")
    found = questions.question_files(tmp_path, "train", "all")
    assert [path.stem[-2:] for path in found] == ["_0", "_2", "10"]
    (tmp_path / "val_balanced_questions.json").write_text("{}")
    assert questions.question_files(tmp_path, "val") == [tmp_path / "val_balanced_questions.json"]


def test_a_scene(tmp_path: Path) -> None:
    graph = {"width": 100, "height": 80, "location": "street", "objects": {"1": OBJECT}}
    (scene,), problems = read_scenes(tmp_path / "s.json", {"7": graph})
    assert (scene.image, scene.width, scene.height, scene.location) == ("7", 100, 80, "street")
    assert scene.objects["1"].box == (10, 20, 30, 40)
    assert scene.objects["1"].attributes == ("red",)
    assert not problems.counts


def test_what_is_wrong_in_a_scene_is_named(tmp_path: Path) -> None:
    objects = {
        "1": {**OBJECT, "x": -5, "y": 70},
        "2": {**OBJECT, "name": None},
        "3": {**OBJECT, "w": None},
        "4": {
            **OBJECT,
            "relations": [{"name": "on", "object": "1"}, {"name": "on", "object": "99"}],
        },
        "5": {**OBJECT, "w": -30},
        "6": {**OBJECT, "x": float("inf")},
        "7": {**OBJECT, "h": 10**400},
        "8": {**OBJECT, "relations": 5, "attributes": 7},
    }
    content = {"7": {"width": 100, "height": 80, "objects": objects}, "8": {"objects": {}}}
    (scene,), problems = read_scenes(tmp_path / "s.json", content)
    assert scene.objects.keys() == {"1", "4", "8"}
    assert scene.objects["8"].relations == scene.objects["8"].attributes == ()
    assert scene.objects["1"].box == (0, 70, 25, 10)
    assert scene.objects["4"].relations == (("on", "1"),)
    once = (scenes.OUTSIDE, scenes.NO_NAME, scenes.DANGLING, scenes.NO_SIZE)
    assert problems.counts == {**dict.fromkeys(once, 1), scenes.NO_BOX: 4}
    assert problems.examples[scenes.OUTSIDE] == ["s.json: image 7, object 1"]
