"""Write a generated world as files in GQA's form, for the same readers as the real ones.

    train_sceneGraphs.json  train_balanced_questions.json  features.tsv      (Oscar / VinVL)
    val_sceneGraphs.json    val_balanced_questions.json    predictions.tsv

The files depend on the settings of the world alone: same settings, same bytes.
"""

import base64
import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from longtail.benchmarks.vqa.options import DataOptions
from longtail.benchmarks.vqa.prepared import geometry, whole_folder
from longtail.benchmarks.vqa.world import questions as ask
from longtail.benchmarks.vqa.world import yes_no as verify
from longtail.benchmarks.vqa.world.balance import balanced
from longtail.benchmarks.vqa.world.draws import Asked, Draw
from longtail.benchmarks.vqa.world.features import BLOCK, Detector, shares
from longtail.benchmarks.vqa.world.scenes import HEIGHT, WIDTH, View, World, frequency, kinds, views
from longtail.support.downloads import cache_folder
from longtail.support.files import parse_json, write_json

FAMILIES: tuple[tuple[int, Callable[[Draw, View], Asked | None]], ...] = (
    (26, ask.query_attribute),  # shares about as in GQA's balanced questions
    (14, ask.query_relation),
    (12, ask.query_action),
    (9, ask.choose_attribute),
    (5, ask.choose_relation),
    (10, verify.verify_attribute),
    (8, verify.verify_relation),
    (10, verify.exists),
    (6, verify.logical_attributes),
    (5, verify.logical_exists),
    (5, verify.compare),
)
RATIO = 1.5
SURPLUS = 1.6
"""Questions drawn for one that stays; the rest goes in balancing."""

MINIATURE = World(questions=2400, types=40, width=32, exponent=1.0, shift=4.0, detector=20)
MARK = "world.json"


def world_of(options: DataOptions) -> World:
    """The world that a benchmark's settings ask for."""
    base = asdict(MINIATURE if options.source == "miniature" else World())
    base |= {"seed": options.world_seed, "noise": options.noise}
    if options.types_seed != options.world_seed:  # the same world has one name
        base["types_seed"] = options.types_seed
    base |= {"occlusion": options.occlusion, "tag_noise": options.tag_noise}
    if options.source == "generated":
        base |= {"questions": options.world_questions, "detector": options.detector}
    return World(**base)


def ensure_world(world: World, folder: Path | None = None) -> Path:
    """The folder of a world's files, written if they are not there."""
    given = {name: value for name, value in asdict(world).items() if value is not None}
    text = json.dumps({"version": 2, **given}, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    target = folder.expanduser() if folder else cache_folder("vqa") / f"world-{key}"
    mark = target / MARK
    if mark.is_file():
        if parse_json(mark, dict) != json.loads(text):
            raise ValueError(f"{target} holds another generated world; choose another folder")
        return target
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} is not empty and holds no generated world")
    with whole_folder(target) as work:
        write_world(world, work)
        write_json(work / MARK, json.loads(text))
    return target


def write_world(world: World, folder: Path) -> None:
    types = kinds(world)
    count = max(2, round(world.questions / world.per_image))
    train = count - max(1, round(world.test_share * count))
    scenes = list(views(world, types, count))
    parts = (("train", scenes[:train]), ("val", scenes[train:]))
    draw = Draw(types, [frequency(world, kind.number) for kind in types], world.seed)
    for number, (split, part) in enumerate(parts):
        wanted = round(world.questions * len(part) / count)
        with open(folder / f"{split}_sceneGraphs.json", "w", encoding="utf-8") as file:
            _write_members(file, ((view.image, _graph(view)) for view in part))
        asked = _asked(draw, part, wanted)
        start = 10_000_000 * (number + 1)
        with open(folder / f"{split}_balanced_questions.json", "w", encoding="utf-8") as file:
            _write_members(
                file, ((str(start + n), _question(a, start + n)) for n, a in enumerate(asked))
            )
    _write_features(Detector(world, types), scenes, folder)


def _asked(draw: Draw, part: list[View], wanted: int) -> list[Asked]:
    """`wanted` questions, balanced; more are drawn until there are enough."""
    families = [family for share, family in FAMILIES for _ in range(share)]
    found: list[Asked] = []
    kept: list[int] = []
    texts: set[tuple[str, str]] = set()
    for _ in range(8):
        for n in range(int(SURPLUS * wanted)):
            view = part[n % len(part)]
            asked = draw.pick(families)(draw, view)
            if asked is not None and (view.image, asked.text) not in texts:
                texts.add((view.image, asked.text))
                found.append(asked)
        kept = balanced(found, RATIO, 2, random.Random(f"{len(found)} balance"))
        if len(kept) >= wanted:
            break
    keep = sorted(kept, key=lambda n: draw.rng.random())[:wanted]
    return [found[n] for n in sorted(keep)]


def _write_members(file: IO[str], members: Iterable[tuple[str, Any]]) -> None:
    encode = json.JSONEncoder(separators=(", ", ": ")).encode
    separator = "{"
    for key, value in members:
        file.write(f'{separator}"{key}": {encode(value)}')
        separator = ", "
    file.write("}" if separator == ", " else "{}")


def _graph(view: View) -> dict[str, Any]:
    objects = {}
    for thing in view.things:
        x, y, w, h = thing.box
        objects[thing.id] = {
            "name": thing.name,
            "x": x,
            "y": y,
            "w": w,
            "h": h,
            "attributes": list(thing.attributes.values()),
            "relations": [{"name": name, "object": other.id} for name, other in thing.relations],
        }
    return {"width": WIDTH, "height": HEIGHT, "location": view.place, "objects": objects}


def _question(asked: Asked, id_: int) -> dict[str, Any]:
    steps = [
        {"operation": operation, "dependencies": needs, "argument": argument}
        for operation, argument, needs in asked.program
    ]
    text = "->".join(
        f"{operation}: {argument} {needs if needs else ''}".strip()
        for operation, argument, needs in asked.program
    )
    structural, semantic, detailed = asked.types
    return {
        "semantic": steps,
        "entailed": [],
        "equivalent": [str(id_)],
        "question": asked.text,
        "imageId": asked.image,
        "isBalanced": True,
        "groups": {"global": asked.group or None, "local": asked.local},
        "answer": asked.answer,
        "semanticStr": text,
        "annotations": {"answer": {}, "question": _places(asked), "fullAnswer": {}},
        "types": {"detailed": detailed, "semantic": semantic, "structural": structural},
        "fullAnswer": asked.full,
    }


def _places(asked: Asked) -> dict[str, str]:
    """Which words of the question stand for which object: "3", or "3:5" for two words."""
    said = asked.text.rstrip("?").split()
    found: dict[str, str] = {}
    for thing in asked.mentions:
        name = thing.name.split()
        for start in range(len(said) - len(name) + 1):
            key = str(start) if len(name) == 1 else f"{start}:{start + len(name)}"
            if said[start : start + len(name)] == name and key not in found:
                found[key] = thing.id
                break
    return found


def _write_features(detector: Detector, scenes: list[View], folder: Path) -> None:
    with (
        open(folder / "features.tsv", "w", encoding="utf-8") as features,
        open(folder / "predictions.tsv", "w", encoding="utf-8") as labels,
    ):
        for block, start in enumerate(range(0, len(scenes), BLOCK)):
            for view, x, tags in detector.see(scenes[start : start + BLOCK], block):
                boxes = shares(view)
                both = np.concatenate([x, geometry(boxes)], axis=1).astype("<f4")
                code = base64.b64encode(both.tobytes()).decode()
                features.write(
                    f'{view.image}\t{{"num_boxes": {len(both)}, "features": "{code}"}}\n'
                )
                corners = boxes * np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float32)
                objects = [
                    {"class": tag, "rect": [round(side, 1) for side in rect]}
                    for tag, rect in zip(tags, corners.tolist(), strict=True)
                ]
                label = {"image_w": WIDTH, "image_h": HEIGHT, "objects": objects}
                labels.write(f"{view.image}\t{json.dumps(label)}\n")
