"""Scores that wait: entered and announced in the order they came, or dropped."""

import numpy as np
import torch

from longtail.metrics import ScoreMatrix
from longtail.training.recorder import Recorder


def recorder() -> tuple[Recorder, list[tuple[int, list[int], list[float]]]]:
    told: list = []
    made = Recorder({"accuracy": ScoreMatrix([1, 1, 1])}, "accuracy")

    def listen(after, tasks, scores):
        told.append((after, [*tasks], scores["accuracy"].tolist()))

    made.listener = listen
    return made, told


def test_tensors_of_single_tasks_wait_until_somebody_looks() -> None:
    made, told = recorder()
    made.add(0, range(1), torch.tensor([0.5]))  # all tasks so far: looked at in any case
    made.add(1, range(1, 2), torch.tensor([0.25]))
    assert told == [(0, [0], [0.5])]
    assert made.matrices["accuracy"].own[1] == 0.25
    assert told[1:] == [(1, [1], [0.25])]


def test_all_tasks_take_along_what_waits_and_arrays_do_not_wait() -> None:
    made, told = recorder()
    made.add(1, range(1, 2), torch.tensor([0.25]))
    made.add(2, range(3), torch.tensor([0.1, 0.2, 0.3]))
    assert [after for after, *_ in told] == [1, 2]
    made, told = recorder()
    made.add(1, range(1, 2), np.array([0.25]))
    assert told == [(1, [1], [0.25])]


def test_what_is_forgotten_is_never_entered() -> None:
    made, told = recorder()
    made.add(1, range(1, 2), torch.tensor([0.25]))
    made.forget()
    assert np.isnan(made.matrices["accuracy"].own[1])
    assert told == []


def test_a_listener_may_look_at_the_matrix() -> None:
    made, _ = recorder()
    seen = []
    made.listener = lambda after, tasks, scores: seen.append(made.matrices["accuracy"].own[after])
    made.add(1, range(1, 2), torch.tensor([0.25]))
    made.settle()
    assert seen == [0.25]
