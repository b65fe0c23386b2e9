"""The generated world: true answers, balance, a long tail, the same numbers each time."""

import collections
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.prepared import ImageRegions
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.world import words as scene_words
from longtail_bench.vqa.world.balance import balanced
from longtail_bench.vqa.world.draws import Asked
from longtail_bench.vqa.world.features import Detector
from longtail_bench.vqa.world.generator import MINIATURE, GeneratedWorld, world_of
from longtail_bench.vqa.world.questions import QUERY
from longtail_bench.vqa.world.scenes import Thing, View, World, kinds, views

WORLD = replace(MINIATURE, questions=1500)


@pytest.fixture(scope="module")
def made() -> GeneratedWorld:
    return GeneratedWorld(WORLD)


@pytest.fixture(scope="module")
def asked(made: GeneratedWorld) -> list[Asked]:
    return [*made.questions[0], *made.questions[1]]


def seen(world: World, most: int = 0) -> list[ImageRegions]:
    source = GeneratedWorld(world)
    return list(source.regions({view.image for view in source.scenes}, Problems(), most))


def test_more_than_a_thousand_types_with_names_of_their_own() -> None:
    types = kinds(World())
    assert len({kind.name for kind in types}) == len(types) > 1000
    attributes = {*scene_words.COLOURS, *scene_words.SIZES}
    for values in (*scene_words.MATERIALS.values(), *scene_words.STATES.values()):
        attributes |= set(values)
    assert not attributes & {kind.name for kind in types}, "an answer must not name an object"


def test_number_and_families_of_questions(asked: list[Asked]) -> None:
    assert len(asked) == WORLD.questions
    assert {question.kind for question in asked} == {
        *("directOf", "categoryRelS", "relO", "relS", "chooseAttr", "relChooser", "verifyAttr"),
        *("relVerify", "exist", "verifyAttrs", "existAnd", "existOr", "twoSame", "twoDifferent"),
    }


RELATION = "|".join(scene_words.OPPOSITE)


def thing(view: View, phrase: str) -> Thing:
    """What "the lamp" or "the lamp above the bed" is."""
    name = re.split(rf" (?:{RELATION}) the ", phrase)[0]
    (found,) = [thing for thing in view.things if thing.name == name]
    return found


def related(view: View, one: str, relation: str, other: str) -> bool:
    return (relation, thing(view, other)) in thing(view, one).relations


def has(view: View, phrase: str, said: str) -> bool:
    """Whether a thing is "red" or "made of wood"."""
    return said.removeprefix("made of ") in thing(view, phrase).attributes.values()


def there(view: View, name: str) -> bool:
    return name in {thing.name for thing in view.things}


def truth(kind: str, text: str, answer: str, view: View) -> bool | str:
    """Yes or no, or the answer that the scene gives; True where it has the one that was given."""
    value = r"(?:made of )?\w+"
    patterns = {
        "verifyAttr": rf"Is the (.+?) ({value})\?",
        "relVerify": rf"Is the (.+) ({RELATION}|holding|wearing|riding) the (.+)\?",
        "exist": r"(?:Is there|Do you see) an? (.+?)(?: in the picture)?\?",
        "verifyAttrs": rf"Is the (.+?) ({value}) (and|or) ({value})\?",
        "existAnd": r"Are there both an? (.+) and an? (.+) in the picture\?",
        "existOr": r"Is there either an? (.+) or an? (.+) in the picture\?",
        "twoSame": r"Are the (.+) and the (.+) the same (\w+)\?",
        "twoDifferent": r"Are the (.+) and the (.+) different in (\w+)\?",
        "chooseAttr": rf"Is the (.+?) ({value}) or (\w+)\?",
        "relChooser": r"Is the (.+) to the left or to the right of the (.+)\?",
        "categoryRelS": rf"What (.+) is ({RELATION}) the (.+)\?",
        "relO": r"What is the (.+) (\w+)\?",
        "relS": r"Who is (\w+) the (.+)\?",
    }
    if kind == "directOf":
        for attribute, templates in QUERY.items():
            for template in templates:
                match = re.fullmatch(re.escape(template).replace(r"\{0\}", "(.+)"), text)
                if match:
                    return thing(view, match[1]).attributes[attribute]
    match = re.fullmatch(patterns[kind], text)
    assert match, text
    parts = match.groups()
    if kind == "verifyAttr":
        return has(view, *parts)
    if kind == "relVerify":
        return related(view, *parts)
    if kind == "exist":
        return there(view, *parts)
    if kind == "verifyAttrs":
        values = has(view, parts[0], parts[1]), has(view, parts[0], parts[3])
        return all(values) if parts[2] == "and" else any(values)
    if kind in ("existAnd", "existOr"):
        names = [there(view, name) for name in parts]
        return all(names) if kind == "existAnd" else any(names)
    if kind in ("twoSame", "twoDifferent"):
        one, other = (thing(view, name).attributes[parts[2]] for name in parts[:2])
        return (one == other) is (kind == "twoSame")
    if kind == "chooseAttr":
        (said,) = [value for value in parts[1:] if has(view, parts[0], value)]
        return said.removeprefix("made of ")
    if kind == "relChooser":
        return "left" if related(view, parts[0], "to the left of", parts[1]) else "right"
    if kind == "categoryRelS":
        found = [t.name for t in view.things if t.category == parts[0]]
        (name,) = [name for name in found if related(view, name, parts[1], parts[2])]
        return name
    if kind == "relO":
        return related(view, parts[0], parts[1], answer)
    return related(view, answer, *parts)


def test_answers_are_true(made: GeneratedWorld, asked: list[Asked]) -> None:
    scenes = {view.image: view for view in made.scenes}
    for question in asked:
        found = truth(question.kind, question.text, question.answer, scenes[question.image])
        if question.answer in ("yes", "no"):
            assert found is (question.answer == "yes"), question
        else:
            assert found in (True, question.answer), question


def test_spatial_relations_agree_with_the_boxes(made: GeneratedWorld) -> None:
    for view in made.scenes:
        for one in view.things:
            for name, other in one.relations:
                if name == "to the left of":
                    assert one.centre[0] < other.centre[0]
                elif name == "above":
                    assert one.centre[1] < other.centre[1]


def test_yes_and_no_are_equally_frequent_in_each_family(asked: list[Asked]) -> None:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for question in asked:
        if question.answer in ("yes", "no"):
            counts[question.kind][question.answer] += 1
    for found in counts.values():
        assert abs(found["yes"] - found["no"]) < 0.2 * found.total() + 4


def test_balancing_caps_the_frequent_answers() -> None:
    def drawn(answer: str) -> Asked:
        return Asked("1", "", answer, "f", "g", "l")

    pool = [drawn("red")] * 100 + [drawn("blue")] * 10 + [drawn("green")] * 5
    kept = balanced(pool, 1.5, 2, random.Random(0))
    counts = collections.Counter(pool[n].answer for n in kept)
    assert counts["green"] == 5
    assert counts["blue"] == 7
    assert counts["red"] == 18


def test_same_settings_same_numbers(made: GeneratedWorld) -> None:
    again = GeneratedWorld(WORLD)
    assert again.questions == made.questions
    assert again.names(Problems()) == made.names(Problems())
    for one, other in zip(seen(WORLD), seen(WORLD), strict=True):
        assert np.array_equal(one.features, other.features)
        assert np.array_equal(one.boxes, other.boxes)
        assert one.tags == other.tags
    assert GeneratedWorld(replace(WORLD, seed=1)).questions != made.questions


def test_names_come_by_frequency(made: GeneratedWorld) -> None:
    names = made.names(Problems())
    counts = collections.Counter(thing.name for view in made.scenes for thing in view.things)
    sizes = [counts[name] for name in names]
    assert sizes == sorted(counts.values(), reverse=True)


def test_wanted_images_are_seen_and_no_more_regions_than_asked_for(made: GeneratedWorld) -> None:
    wanted = {"g3", "g1"}
    found = list(made.regions(wanted, Problems(), 2))
    assert [one.image for one in found] == ["g1", "g3"]
    for one in found:
        assert one.features.shape == (2, WORLD.width)
        assert one.boxes.shape == (2, 4)
        assert one.tags is not None
        assert len(one.tags) == 2
        assert (one.boxes >= 0).all()
        assert (one.boxes[:, :2] < one.boxes[:, 2:]).all()
        assert (one.boxes <= 1).all()


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


def test_difficulty_changes_the_features_only(made: GeneratedWorld) -> None:
    hard = replace(WORLD, noise=3.0, occlusion=0.9)
    assert GeneratedWorld(hard).questions == made.questions
    one, other = seen(WORLD)[0], seen(hard)[0]
    assert np.array_equal(one.boxes, other.boxes)
    assert not np.allclose(one.features, other.features)


def test_other_scenes_of_the_same_things() -> None:
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


def test_the_same_world_is_prepared_once_whatever_names_its_types() -> None:
    same = DataOptions(world_seed=3, types_seed=3)
    assert world_of(same) == world_of(DataOptions(world_seed=3))
    assert world_of(DataOptions(world_seed=3, types_seed=1)) != world_of(same)
