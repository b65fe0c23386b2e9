"""Fixed-size buffers of examples for the methods that replay.

Storage is allocated once, at the first row; an insertion and a draw cost what their rows cost,
however many tasks went by. A row is a tuple of parts, ``(inputs, targets)`` or ``(inputs, targets,
outputs)``, of tensors, :class:`Ragged` or tuples and dicts of these.

The buffers hold no generator: every choice is a function of the seed and of how many rows and
draws came before. With a tensor of seeds ``[S]`` there are S buffers in one, each with the
choices of its own seed; parts then have leading dimensions ``[S]``, or ``[P, S]`` where they
differ between P policies as well (``leads`` tells how many, one number a part).

What to keep is decided on the CPU, where the random numbers of a batch cost microseconds; the
rows themselves stay on the device they came on, which gets the row numbers without a wait.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.methods.storage import Storage, tensors_of
from longtail.support.random import Seed, integers, permutation, uniform
from longtail.tasks.examples import Device, Examples


class ReservoirBuffer(Storage):
    """A uniform sample of all rows seen (Vitter's Algorithm R), inserted a batch at a time.

    Row number t (from zero) goes to slot t while there is room, then to slot ``j ~ U{0..t}`` if
    ``j < capacity`` and is dropped otherwise. A batch is inserted at once with the result of doing
    so row by row: where two rows want one slot, the later has it.
    """

    def __init__(self, capacity: int, seed: Seed, leads: Sequence[int] | None = None) -> None:
        super().__init__(capacity, seed, leads)
        self.count = 0
        self._last = np.zeros((self.replicas or 1) * capacity, dtype=np.int64)

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, *rows: Any) -> None:
        """Offer a batch: ``add(inputs, targets)`` or ``add(inputs, targets, outputs)``."""
        n = next(tensors_of(rows)).shape[0 if self.replicas is None else 1]
        number = np.arange(self.count, self.count + n)
        slots = number
        if self.count + n > self.capacity:
            chance = uniform(n, self.seed, "keep", start=self.count).numpy()
            slots = (chance * (number + 1)).astype(np.int64)
            if self.count < self.capacity:
                slots = np.where(number < self.capacity, number, slots)
        elif self.replicas is not None:
            slots = np.broadcast_to(slots, (self.replicas, n))
        self.count += n
        sources = np.flatnonzero(slots < self.capacity)
        if not len(sources):
            return
        flat = (slots if self.replicas is None else self._base + slots).ravel()[sources]
        self._last[flat] = sources  # NumPy assigns in order: what remains is the last
        keep = self._last[flat] == sources
        self._write(rows, sources[keep], flat[keep])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any], device: Device | None = None) -> None:
        super().load_state_dict(state, device)
        self.count = state["count"]


class TaskBuffer(Storage):
    """Equal space per task: ``capacity // tasks`` random examples of each, the memory of A-GEM.

    A new task makes the others' share smaller; they drop random examples. Once tasks outnumber
    slots each slot holds one example of one task, and the tasks present are a uniform sample of
    all (Algorithm R over tasks).
    """

    def __init__(self, capacity: int, seed: Seed) -> None:
        super().__init__(capacity, seed)
        self.tasks = 0
        self._rank = np.zeros(capacity, dtype=np.int64)  # of an example in its task: low ones stay
        self._order = np.arange(capacity)  # the slots in use, then the free ones
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add_task(self, examples: Examples | None) -> None:
        """Keep a random part of a task's examples; call it once per task, at its end."""
        if examples is None or len(examples) == 0:
            return
        task, n = self.tasks, len(examples)
        self.tasks += 1
        chosen = permutation(n, self.seed, "examples", task)
        if task >= self.capacity:
            self._replace_a_task(examples, task, chosen)
            return
        quota = self.capacity // self.tasks
        if quota < self.capacity // max(1, task):
            self._shrink(quota)
        size = min(n, quota)
        slots = self._order[self._size : self._size + size]
        self._rank[slots] = np.arange(size)
        self._size += size
        flat = slots if self.replicas is None else (self._base + slots).ravel()
        self._write(examples[chosen[..., :size]], np.arange(flat.size), flat)

    def _shrink(self, quota: int) -> None:
        used, free = self._order[: self._size], self._order[self._size :]
        stays = self._rank[used] < quota
        self._order = np.concatenate((used[stays], used[~stays], free))
        self._size = int(stays.sum())

    def _replace_a_task(self, examples: Examples, task: int, chosen: Tensor) -> None:
        slots = integers(task + 1, 1, self.seed, "tasks", task).numpy()
        sources = np.flatnonzero(slots < self.capacity)
        if len(sources):
            flat = slots if self.replicas is None else (self._base + slots).ravel()
            self._write(examples[chosen[..., :1]], sources, flat[sources])

    def _choose(self, k: int) -> np.ndarray:
        return self._order[super()._choose(k)]

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "tasks": self.tasks,
            "size": self._size,
            "rank": torch.from_numpy(self._rank.copy()),
            "order": torch.from_numpy(self._order.copy()),
        }

    def load_state_dict(self, state: dict[str, Any], device: Device | None = None) -> None:
        super().load_state_dict(state, device)
        self.tasks, self._size = state["tasks"], state["size"]
        self._rank = state["rank"].cpu().numpy().copy()
        self._order = state["order"].cpu().numpy().copy()
