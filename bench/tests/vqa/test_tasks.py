"""Which questions make a task, and which objects are tasks."""

import numpy as np

from longtail_bench.vqa.tasks import Mentions, segments, select_tasks


def test_names_are_found_as_whole_words() -> None:
    mentions = Mentions(("table", "coffee table", "cup", "lamp"))
    assert mentions("Is the Coffee table near it?") == [0, 1], "the shorter within the longer"
    assert mentions("Is it a tablecloth?") == []


def test_tasks_are_ordered_by_frequency_within_limits() -> None:
    train, test = np.array([90, 5, 30, 30, 0, 8]), np.array([9, 1, 1, 1, 1, 0])
    assert select_tasks(train, test, tasks=9).tolist() == [0, 2, 3, 1]
    assert select_tasks(train, test, tasks=2, largest=50).tolist() == [2, 3]
    assert select_tasks(train, test, tasks=9, smallest=10, exclude=[2]).tolist() == [0, 3]


def test_rows_of_overlapping_tasks() -> None:
    offsets, rows = segments([[0, 2], [], [2], [1, 2]], np.array([2, 0]))
    assert offsets.tolist() == [0, 3, 4]
    assert rows.tolist() == [0, 2, 3, 0]
