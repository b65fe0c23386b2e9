"""Prepared content of the visual question answering benchmark, made of random numbers."""

import numpy as np

from longtail.benchmarks.vqa.prepared import PreparedVQA, Regions


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
        np.full((images, 2), 500, np.int32),
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
        ids=[str(i) for i in range(questions)],
        questions=[f"Is the {objects[a]} near the {objects[b]}?" for a, b in pairs],
        answers=rng.integers(0, len(answers), questions),
        images=rng.integers(0, images, questions),
        answer_names=answers,
        task_names=objects,
        groups=[""] * questions,
        regions=regions,
        facts={"source": "random"},
        **parts,
    )
