"""The generated world: GQA's form, true answers, balance, a long tail, the same bytes each time."""

import collections
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longtail.benchmarks.vqa.gqa.prepare import prepare
from longtail.benchmarks.vqa.gqa.questions import Question, question_files, read_questions
from longtail.benchmarks.vqa.gqa.scenes import Scene, read_scenes, scene_files
from longtail.benchmarks.vqa.gqa.stream import Problems
from longtail.benchmarks.vqa.options import DataOptions
from longtail.benchmarks.vqa.world import words as scene_words
from longtail.benchmarks.vqa.world.balance import balanced
from longtail.benchmarks.vqa.world.features import Detector
from longtail.benchmarks.vqa.world.generator import MINIATURE, ensure_world, world_of, write_world
from longtail.benchmarks.vqa.world.scenes import World, kinds, views

WORLD = replace(MINIATURE, questions=1500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("world")
    write_world(WORLD, target)
    return target


@pytest.fixture(scope="module")
def asked(folder: Path) -> list[Question]:
    paths = [*question_files(folder, "train"), *question_files(folder, "val")]
    return list(read_questions(paths, Problems(strict=True)))


@pytest.fixture(scope="module")
def graphs(folder: Path) -> dict[str, Scene]:
    found = read_scenes(scene_files(folder), Problems(strict=True))
    return {scene.image: scene for scene in found}


def test_more_than_a_thousand_types_with_names_of_their_own() -> None:
    types = kinds(World())
    assert len({kind.name for kind in types}) == len(types) > 1000
    attributes = {*scene_words.COLOURS, *scene_words.SIZES}
    for values in (*scene_words.MATERIALS.values(), *scene_words.STATES.values()):
        attributes |= set(values)
    assert not attributes & {kind.name for kind in types}, "an answer must not name an object"


def test_files_have_gqas_fields(folder: Path) -> None:
    record = next(iter(json.loads((folder / "val_balanced_questions.json").read_text()).values()))
    assert record.keys() == {
        *("semantic", "entailed", "equivalent", "question", "imageId", "isBalanced", "groups"),
        *("answer", "semanticStr", "annotations", "types", "fullAnswer"),
    }


def test_number_and_families_of_questions(asked: list[Question]) -> None:
    assert len(asked) == WORLD.questions
    assert {question.types[0] for question in asked} == {
        *("query", "verify", "choose", "compare", "logical")
    }
    detailed = {question.types[2] for question in asked}
    assert {"directOf", "categoryRelS", "relS", "relO", "relVerify", "exist", "existOr"} <= detailed


def run(question: Question, scene: Scene) -> str | None:
    """The answer by the program and the scene graph; None for programs not followed here."""
    names = {entry.name for entry in scene.objects.values()}
    operation, argument = question.program[-1]
    if len(question.program) == 2 and question.program[0][0] == "select":
        id_ = question.program[0][1].rpartition("(")[2].rstrip(")")
        if operation == "exist":
            return "yes" if question.program[0][1].rpartition(" (")[0] in names else "no"
        if operation.startswith("verify ") and operation != "verify rel":
            return "yes" if argument in scene.objects[id_].attributes else "no"
        if operation.startswith("choose ") and operation != "choose rel":
            options = argument.split("|")
            return next(value for value in options if value in scene.objects[id_].attributes)
        if operation == "query":
            values = scene.objects[id_].attributes
            return question.answer if question.answer in values else f"not {question.answer}"
    if operation == "query" and argument == "name":
        wanted = question.program[1][1]
        return scene.objects[wanted.rpartition("(")[2].rstrip(")")].name
    return None


def test_answers_follow_from_the_scene_graphs(asked, graphs) -> None:
    checked = 0
    for question in asked:
        found = run(question, graphs[question.image])
        if found is not None:
            checked += 1
            assert found == question.answer, question
    assert checked > 0.5 * len(asked)


def test_spatial_relations_agree_with_the_boxes(graphs) -> None:
    for scene in graphs.values():
        for entry in scene.objects.values():
            for name, other in entry.relations:
                a, b = entry.box, scene.objects[other].box
                if name == "to the left of":
                    assert a[0] + a[2] / 2 < b[0] + b[2] / 2
                elif name == "above":
                    assert a[1] + a[3] / 2 < b[1] + b[3] / 2


def test_annotated_words_are_the_objects_names(folder: Path, graphs) -> None:
    content = json.loads((folder / "train_balanced_questions.json").read_text())
    for record in content.values():
        said = record["question"].rstrip("?").split()
        for key, id_ in record["annotations"]["question"].items():
            start, _, stop = key.partition(":")
            words = " ".join(said[int(start) : int(stop or int(start) + 1)])
            assert words == graphs[record["imageId"]].objects[id_].name


def test_yes_and_no_are_equally_frequent_in_each_family(asked: list[Question]) -> None:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for question in asked:
        if question.answer in ("yes", "no"):
            counts[question.types[1]][question.answer] += 1
    for found in counts.values():
        assert abs(found["yes"] - found["no"]) < 0.2 * found.total() + 4


def test_balancing_caps_the_frequent_answers(asked: list[Question]) -> None:
    class Fake:
        def __init__(self, answer: str) -> None:
            self.types, self.group, self.local, self.answer = ("", "", "f"), "g", "l", answer

    pool = [Fake("red")] * 100 + [Fake("blue")] * 10 + [Fake("green")] * 5
    kept = balanced(pool, 1.5, 2, random.Random(0))  # pyright: ignore[reportArgumentType]
    counts = collections.Counter(pool[n].answer for n in kept)
    assert counts["green"] == 5
    assert counts["blue"] == 7
    assert counts["red"] == 18


def test_same_settings_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_world(WORLD, tmp_path)
    for path in sorted(folder.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    write_world(replace(WORLD, seed=1), tmp_path)
    other = (tmp_path / "train_balanced_questions.json").read_bytes()
    assert other != (folder / "train_balanced_questions.json").read_bytes()


def test_frequencies_have_a_long_tail() -> None:
    world = World()
    types = kinds(world)
    counts = np.zeros(len(types))
    for view in views(world, types, 3000):
        counts[[thing.kind.number for thing in view.things]] += 1
    assert counts[:10].mean() > 4 * counts[200:300].mean() > 12 * counts[-200:].mean()


def test_features_show_types_and_attributes_and_tags_show_little() -> None:
    world = replace(WORLD, width=64, noise=0.5, occlusion=0.0, tag_noise=0.0, detector=10)
    types = kinds(world)
    detector = Detector(world, types)
    seen = list(detector.see(list(views(world, types, 400)), 0))
    things = [thing for view, _, _ in seen for thing in view.things]
    x = np.concatenate([part for _, part, _ in seen])
    tags = [tag for _, _, part in seen for tag in part]
    centred = detector.of_type - detector.of_type.mean(0)
    guess = (x @ centred.T / detector.scale - (centred**2).sum(1) / 2 / detector.scale**2).argmax(1)
    right = np.mean(guess == np.array([thing.kind.number for thing in things]))
    assert right > 0.8, "prototypes can be told apart"
    named = [tag == thing.name for tag, thing in zip(tags, things, strict=True)]
    known = [thing.kind.number < 10 for thing in things]
    assert named == known, "the detector calls rare types by their category"

    def share(**changes: float) -> float:
        other = Detector(replace(world, **changes), types)  # pyright: ignore[reportArgumentType]
        again = [tag for _, _, part in other.see([v for v, _, _ in seen], 0) for tag in part]
        return float(np.mean([a != b for a, b in zip(tags, again, strict=True)]))

    assert share(tag_noise=0.5) > 0.05


def test_difficulty_changes_the_features_only(tmp_path: Path, folder: Path) -> None:
    write_world(replace(WORLD, noise=3.0, occlusion=0.9), tmp_path)
    for name in ("train_balanced_questions.json", "val_sceneGraphs.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert (tmp_path / "features.tsv").read_bytes() != (folder / "features.tsv").read_bytes()


def test_other_scenes_of_the_same_things(tmp_path: Path) -> None:
    other = replace(WORLD, seed=1, types_seed=0)
    assert kinds(other) == kinds(WORLD) != kinds(replace(WORLD, seed=1))
    types = kinds(WORLD)
    here, there = Detector(WORLD, types), Detector(other, types)
    assert np.array_equal(here.of_type, there.of_type)
    assert np.array_equal(here.of_value, there.of_value)
    mine, theirs = (list(views(world, types, 50)) for world in (WORLD, other))
    boxes = [{thing.box for view in part for thing in view.things} for part in (mine, theirs)]
    assert len(boxes[0] & boxes[1]) < 5, "the scenes are others"
    x, y = (next(d.see(mine, 0))[1] for d in (here, there))
    assert not np.allclose(x, y), "and so is the noise"


def test_a_world_has_one_name_whatever_names_its_types(tmp_path: Path) -> None:
    same = DataOptions(world_seed=3, types_seed=3)
    assert world_of(same) == world_of(DataOptions(world_seed=3))
    small = replace(WORLD, questions=100)
    mark = json.loads((ensure_world(small, tmp_path / "a") / "world.json").read_text())
    assert "types_seed" not in mark, "worlds made before there was such a seed are found again"
    with pytest.raises(ValueError, match="another generated world"):
        ensure_world(replace(small, types_seed=1), tmp_path / "a")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    small = replace(WORLD, questions=100)
    target = ensure_world(small, tmp_path / "world")
    assert ensure_world(small, target) == target
    with pytest.raises(ValueError, match="another generated world"):
        ensure_world(replace(small, seed=9), target)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not empty"):
        ensure_world(small, tmp_path / "mine")


def test_the_miniature_goes_through_the_same_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    problems = Problems(strict=True)
    found = prepare(DataOptions(source="miniature", strict=True), problems)
    assert len(found.task_names) >= 35
    sizes = np.diff(found.train_offsets)
    assert (sizes[:-1] >= sizes[1:]).all()
    assert found.regions.width == MINIATURE.width
    assert set(found.images[found.train_rows]).isdisjoint(found.images[found.test_rows])


@pytest.mark.slow
def test_the_whole_world_has_the_papers_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    found = prepare(DataOptions())
    sizes = np.diff(found.train_offsets)
    assert len(sizes) == 1000
    assert sizes.mean() == pytest.approx(137.86, rel=0.03)
    assert sizes.max() == pytest.approx(2396, rel=0.15)
    assert len(found.answer_names) > 1000
