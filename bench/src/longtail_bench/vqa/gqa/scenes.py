"""GQA's scene graphs, of which the names of the objects are wanted.

{"2407890": {"objects": {"271881": {"name": "chair", ...}, ...}, ...}}
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from longtail_bench.vqa.gqa.members import members
from longtail_bench.vqa.problems import DUPLICATE, Problems

NO_NAME = "object without a name, left out"


def scene_files(folder: Path) -> list[Path]:
    """`*_sceneGraphs.json` in the folder or in its `sceneGraphs`, train first."""
    places = (folder, folder / "sceneGraphs")
    paths = {path for place in places for path in place.glob("*sceneGraphs*.json")}
    if not paths:
        raise ValueError(f"{folder} has no *_sceneGraphs.json")
    return sorted(paths, key=lambda path: (not path.name.startswith("train"), path.name))


def count_names(paths: Iterable[Path], problems: Problems) -> Counter[str]:
    """How often each object's name stands in the scene graphs."""
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for path in paths:
        for image, scene in members(path):
            where = f"{path.name}: image {image}"
            if image in seen:
                problems.note(DUPLICATE, where)
                continue
            seen.add(image)
            objects = scene.get("objects")
            entries = objects.items() if isinstance(objects, dict) else ()
            for id_, entry in entries:
                name = entry.get("name") if isinstance(entry, dict) else None
                if isinstance(name, str) and name.strip():
                    counts[name.strip()] += 1
                else:
                    problems.note(NO_NAME, f"{where}, object {id_}")
    return counts
