"""Scores on their way into the score matrices.

An evaluation on a GPU may return tensors that are still being computed. Waiting for each of
thousands of small tasks would cost as much as training them, so such scores wait here until
somebody wants to see a matrix; then they are entered, and announced, in the order they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from longtail.metrics import ScoreMatrix

Listener = Callable[[int, range, dict[str, np.ndarray]], None]


class Recorder:
    """The score matrices of a run, by name; `main` names the one that counts.

    `listener(after, tasks, scores)` is told of every entry, by the name of its matrix.
    """

    def __init__(self, matrices: dict[str, ScoreMatrix], main: str) -> None:
        self._matrices, self.main = matrices, main
        self.listener: Listener | None = None
        self._waiting: deque[tuple[int, range, dict[str, Any]]] = deque()
        self._busy = False

    @property
    def matrices(self) -> dict[str, ScoreMatrix]:
        self.settle()
        return self._matrices

    def add(self, after: int, tasks: range, scores: Any) -> None:
        """Scores [*lead, len(tasks)] after task `after`, or a dict of such by name."""
        named = scores if isinstance(scores, dict) else {self.main: scores}
        self._waiting.append((after, tasks, named))
        if len(tasks) == after + 1 or not any(isinstance(x, Tensor) for x in named.values()):
            self.settle()

    def settle(self) -> None:
        """Enter what is waiting."""
        if self._busy:  # a listener looks at the matrix, which has what it was told of
            return
        self._busy = True
        try:
            while self._waiting:
                after, tasks, named = self._waiting.popleft()
                found = {name: _array(scores) for name, scores in named.items()}
                for name, values in found.items():
                    self._matrices[name].record(after, (tasks, values))
                if self.listener is not None:
                    self.listener(after, tasks, found)
        finally:
            self._busy = False

    def forget(self) -> None:
        """Drop what is waiting: the state it belongs to is being replaced."""
        self._waiting.clear()


def _array(scores: Any) -> np.ndarray:
    """Tasks far apart in memory, replicas side by side, as the matrix has them: a device turns
    millions of scores faster than NumPy.
    """
    if not isinstance(scores, Tensor):
        return np.asarray(scores)
    return np.moveaxis(scores.double().movedim(-1, 0).contiguous().cpu().numpy(), 0, -1)
