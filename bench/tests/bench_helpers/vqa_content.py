"""Content of the visual question answering benchmark: made of random numbers, and small files."""

import json
from pathlib import Path

import numpy as np

from longtail_bench.vqa.prepared import PreparedVQA, Regions


def random_content(
    tasks: int = 12, questions: int = 600, images: int = 80, width: int = 16, seed: int = 0
) -> PreparedVQA:
    """Tiny random content of the right form, for tests of what consumes it; nothing to learn."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(4, 9, images)
    total = int(counts.sum())
    corners = np.sort(rng.random((total, 2, 2)), axis=1).reshape(total, 4).astype(np.float32)
    objects = [f"object{i}" for i in range(tasks)]
    answers = ["yes", "no", "red", "blue", "left", "right"]
    regions = Regions(
        [str(i) for i in range(images)],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        rng.standard_normal((total, width)).astype(np.float16),
        corners,
        rng.integers(0, tasks, total).astype(np.int32),
        objects,
    )
    pairs = rng.integers(0, tasks, (questions, 2)) ** 2 // tasks  # a long tail
    is_test = rng.random(questions) < 0.2
    members = [np.flatnonzero((pairs == i).any(1)) for i in range(tasks)]
    parts = {}
    for part, chosen in (("train", ~is_test), ("test", is_test)):
        rows = [member[chosen[member]] for member in members]
        parts[f"{part}_offsets"] = np.cumsum([0, *map(len, rows)])
        parts[f"{part}_rows"] = np.concatenate(rows)
    return PreparedVQA(
        questions=[f"Is the {objects[a]} near the {objects[b]}?" for a, b in pairs],
        answers=rng.integers(0, len(answers), questions),
        images=rng.integers(0, images, questions),
        answer_names=answers,
        task_names=objects,
        regions=regions,
        counts={},
        problems={},
        **parts,
    )


def write_gqa(folder: Path, features: tuple[str, ...] = ("1", "2", "3", "4")) -> None:
    """Files in GQA's form: four images, three objects, ten questions a split."""
    folder.mkdir(exist_ok=True)
    names = ("man", "table", "lamp")
    objects = {str(i): {"name": name} for i, name in enumerate(names)}
    texts = ["Is the man here?"] * 3 + ["Is the table near the lamp?", "Is the table here?"]
    for split, images in (("train", "12"), ("val", "34")):
        graphs = {image: {"objects": objects} for image in images}
        (folder / f"{split}_sceneGraphs.json").write_text(json.dumps(graphs))
        asked = {}
        for image in images:
            for n, text in enumerate(texts):
                question = {"imageId": image, "question": text, "answer": ("no", "yes")[n % 2]}
                asked[f"{split[0]}{image}{n}"] = question
        (folder / f"{split}_balanced_questions.json").write_text(json.dumps(asked))
    for image in features:
        boxes = np.array([[0, 0, 5, 5]])
        np.savez(folder / f"{image}.npz", features=np.ones((1, 4)), boxes=boxes, width=9, height=9)
