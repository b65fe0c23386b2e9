"""What summary.json of a WSD-CL run says beside the four metrics."""

import numpy as np
import pytest

from longtail.metrics import ScoreMatrix
from longtail_bench.wsd.baselines import describe
from longtail_bench.wsd.miniature import miniature
from longtail_bench.wsd.tasks import word_tasks

PREPARED = miniature()
WORDS = word_tasks(PREPARED, seed=0)  # 52 tasks, so the last quarter begins with the 39th
MANY = WORDS.senses > 1


def matrix_of(points: dict[int, np.ndarray]) -> ScoreMatrix:
    matrix = ScoreMatrix(WORDS.test_sizes, trained=WORDS.train_sizes > 0)
    lead = next(iter(points.values())).shape[:-1]
    for tasks in range(1, len(WORDS) + 1):
        if tasks in points:
            matrix.record(tasks - 1, (np.arange(tasks), points[tasks][..., :tasks]))
        else:
            matrix.record(tasks - 1, (np.array([tasks - 1]), np.zeros((*lead, 1))))
    return matrix


def scores(seed: int) -> np.ndarray:
    """Of every task; one with a single sense cannot be missed."""
    return np.where(MANY, np.random.default_rng(seed).random(len(WORDS)), 1.0)


def weighted(values: np.ndarray, tasks: int, chosen: np.ndarray) -> float:
    sizes = WORDS.test_sizes[:tasks] * chosen[:tasks]
    return float((values[:tasks] * sizes).sum() / sizes.sum())


def test_late_points_are_those_of_the_last_quarter() -> None:
    assert len(WORDS) == 52
    points = {tasks: scores(tasks) for tasks in (1, 10, 38, 39, 52)}
    found = describe(matrix_of(points), WORDS)
    late, every = (39, 52), np.ones(len(WORDS), bool)
    assert found["late"]["points"] == 2
    rp = np.mean([weighted(points[tasks], tasks, every) for tasks in late])
    alone = np.mean([weighted(points[tasks], tasks, MANY) for tasks in late])
    assert found["late"]["RP"] == pytest.approx(rp)
    assert found["late"]["polysemous_RP"] == pytest.approx(alone)
    assert alone < rp  # there are tasks with one sense among them


def test_polysemous_tasks_are_scored_alone_and_by_size() -> None:
    final = scores(3)
    found = describe(matrix_of({52: final}), WORDS)
    assert found["targets_cut"] == 0
    alone = found["polysemous"]
    assert alone["tasks"] == MANY.sum() < 52
    assert alone["RP"] == pytest.approx(weighted(final, 52, MANY))
    unseen = MANY & (WORDS.train_sizes == 0)
    assert alone["zero_shot"]["RP"] == pytest.approx(weighted(final, 52, unseen))


def test_replicas_have_numbers_of_their_own() -> None:
    points = {tasks: np.stack([scores(tasks), scores(7)]) for tasks in (39, 52)}
    found = describe(matrix_of(points), WORDS)
    assert found["late"]["polysemous_RP"].shape == (2,)
    wanted = np.mean([weighted(points[tasks][1], tasks, MANY) for tasks in (39, 52)])
    assert found["late"]["polysemous_RP"][1] == pytest.approx(wanted)
