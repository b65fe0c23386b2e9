"""GQA's scene graphs: the objects of each image with their names, boxes, attributes, relations.

{"2407890": {"width": 640, "height": 480, "location": "living room",
             "objects": {"271881": {"name": "chair", "x": 220, "y": 310, "w": 50, "h": 80,
                                    "attributes": ["brown", "wooden"],
                                    "relations": [{"name": "on", "object": "275312"}]}}}}
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.benchmarks.vqa.gqa.stream import DUPLICATE, Problems, listed, members

OUTSIDE = "box outside the image, clipped to it"
NO_BOX = "object without a box, left out"
NO_NAME = "object without a name, left out"
NO_SIZE = "scene without width or height, left out"
FAR = 1e9  # pixels; beyond: no number, as NaN and infinity are none
DANGLING = "relation to an object that is not there, left out"


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One object; `box` is x, y, width, height in pixels, `relations` are (name, object id)."""

    name: str
    box: tuple[float, float, float, float]
    attributes: tuple[str, ...]
    relations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    image: str
    width: int
    height: int
    objects: dict[str, SceneObject]
    location: str = ""
    weather: str = ""


def scene_files(folder: Path) -> list[Path]:
    """`*_sceneGraphs.json` in the folder or in its `sceneGraphs`, train first."""
    places = (folder, folder / "sceneGraphs")
    found = {path for place in places for path in place.glob("*sceneGraphs*.json")}
    return sorted(found, key=lambda path: (not path.name.startswith("train"), path.name))


def read_scenes(paths: Iterable[Path], problems: Problems) -> Iterator[Scene]:
    """The scenes one by one; what cannot be used of them is noted and left out."""
    seen: set[str] = set()
    for path in paths:
        for image, record in members(path):
            where = f"{path.name}: image {image}"
            if image in seen:
                problems.note(DUPLICATE, where)
                continue
            seen.add(image)
            size = _number(record.get("width")), _number(record.get("height"))
            if not (size[0] and size[1] and size[0] > 0 and size[1] > 0):
                problems.note(NO_SIZE, where)
                continue
            yield _scene(image, record, size[0], size[1], where, problems)


def _scene(
    image: str, record: dict[str, Any], width: float, height: float, where: str, problems: Problems
) -> Scene:
    found = record.get("objects")
    found = found if isinstance(found, dict) else {}
    objects: dict[str, SceneObject] = {}
    for id_, entry in found.items():
        here = f"{where}, object {id_}"
        entry = entry if isinstance(entry, dict) else {}
        name = entry.get("name")
        box = [_number(entry.get(side)) for side in "xywh"]
        if not isinstance(name, str) or not name.strip():
            problems.note(NO_NAME, here)
            continue
        x, y, w, h = (side or 0.0 for side in box)
        if None in box or w < 0 or h < 0:
            problems.note(NO_BOX, here)
            continue
        if x < 0 or y < 0 or x + w > width or y + h > height:
            problems.note(OUTSIDE, here)
            x, w = _clip(x, w, width)
            y, h = _clip(y, h, height)
        relations = []
        for relation in listed(entry.get("relations")):
            target = str(relation.get("object")) if isinstance(relation, dict) else ""
            if target in found:
                relations.append((str(relation.get("name", "")), target))
            else:
                problems.note(DANGLING, f"{here}, relation to {target or relation!r}")
        attributes = tuple(map(str, listed(entry.get("attributes"))))
        objects[id_] = SceneObject(name.strip(), (x, y, w, h), attributes, tuple(relations))
    return Scene(
        image,
        int(width),
        int(height),
        objects,
        str(record.get("location") or ""),
        str(record.get("weather") or ""),
    )


def _clip(start: float, length: float, limit: float) -> tuple[float, float]:
    low, high = (min(max(side, 0.0), limit) for side in (start, start + length))
    return low, high - low


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and abs(value) < FAR else None


def name_counts(scenes: Iterable[Scene]) -> Counter[str]:
    """How often each object name stands in the scene graphs."""
    counts: Counter[str] = Counter()
    for scene in scenes:
        counts.update(entry.name for entry in scene.objects.values())
    return counts
