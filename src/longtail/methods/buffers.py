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

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.support.random import Seed, integers, permutation, sample, uniform
from longtail.tasks.examples import Device, Examples, Packable, Ragged, map_leaves

_STEP = 16  # ragged storage widens in steps, so that slowly growing rows do not copy it often


class Storage(ABC):
    """Rows in preallocated tensors, one a leaf: ``[*outer, replicas * capacity, ...]``.

    Attributes:
        version: counts how often these tensors were replaced (made, widened, loaded): whoever holds
            on to them, as a captured step does, has to look again when it changes.
    """

    def __init__(self, capacity: int, seed: Seed, leads: Sequence[int] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"Invalid capacity: {capacity}, should be at least 1")
        self.capacity, self.seed = capacity, seed.cpu() if isinstance(seed, Tensor) else seed
        self.replicas = len(seed) if isinstance(seed, Tensor) else None
        self.leads = leads
        self.draws = self.version = 0
        self._planned: Iterator[Tensor] | None = None
        self._room: int | None = None  # for the ragged rows of each of these draws
        self._sizes: np.ndarray | None = None  # of the ragged rows, by slot, where the host knows
        self._base = np.arange(self.replicas or 1)[:, None] * capacity
        self._structure: Any = None
        self._fields: list[Tensor] = []
        self._dims: list[int] = []  # where the slots of a field lie
        self._padded: list[bool] = []  # whether a field's rows may change their width
        self._device = torch.device("cpu")

    def _allocate(self, rows: tuple[Any, ...]) -> None:
        self._structure = _structure(rows)
        self._padded = _padded(self._structure)
        for part, tree in enumerate(rows):
            for tensor in tensors_of(tree):
                dim = 0 if self.replicas is None else self._lead(rows, part, tensor) - 1
                shape = list(tensor.shape)
                if self.replicas is not None and shape.pop(dim) != self.replicas:
                    raise ValueError(f"Rows {tuple(tensor.shape)} of {self.replicas} replicas")
                shape[dim] = (self.replicas or 1) * self.capacity
                self._fields.append(tensor.new_zeros(shape))
                self._dims.append(dim)
        self._device = self._fields[0].device
        self.version += 1

    def _lead(self, rows: tuple[Any, ...], part: int, tensor: Tensor) -> int:
        """How many leading dimensions a part has: told, or 2 where only [P, S, n] fits."""
        if self.leads is not None:
            return self.leads[part]
        stack = next(tensors_of(rows)).shape[:2]
        if part == 0 or tensor.shape[1:3] != stack:
            return 1
        if tensor.shape[:2] == stack:
            raise ValueError(f"Rows {tuple(tensor.shape)} are ambiguous: give `leads`")
        return 2

    def _write(self, rows: tuple[Any, ...], sources: np.ndarray, slots: np.ndarray) -> None:
        """Copy rows ``sources`` to ``slots``, all distinct; both count over replicas and rows."""
        if not self._fields:
            self._allocate(rows)
            if _sizes_of(rows) is not None:
                self._sizes = np.zeros((self.replicas or 1) * self.capacity, dtype=np.int64)
        if self._sizes is not None:
            known = _sizes_of(rows)
            if known is None:  # a sequence that mixes such rows with others: no more packing
                self._sizes = None
            else:
                self._sizes[slots] = known.ravel()[sources]
        source, slot = self._index(sources), self._index(slots)
        for i, (dim, new) in enumerate(zip(self._dims, tensors_of(rows), strict=True)):
            new = new.detach() if self.replicas is None else new.detach().flatten(dim, dim + 1)
            new, stored = new.index_select(dim, source), self._fields[i]
            if self._padded[i] and new.shape[dim + 1] != stored.shape[dim + 1]:
                width = max(stored.shape[dim + 1], -(-new.shape[dim + 1] // _STEP) * _STEP)
                new = widen(new, dim + 1, width)
                if stored.shape[dim + 1] != width:
                    stored = self._fields[i] = widen(stored, dim + 1, width)
                    self.version += 1
            stored.index_copy_(dim, slot, new)

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are (per replica)."""

    def draw(self, k: int) -> Any:
        """``k`` different stored rows, or all where there are no more: a tuple of the parts added.

        Every set of ``k`` rows is as likely.
        """
        if self._planned is not None:
            return self._packable(self._read(next(self._planned)))
        rows = self._read(self._index(self._flat(self._choose(k))))
        return _trim(rows) if True in self._padded else rows

    def plan(self, draws: int, k: int, size: int) -> Tensor:
        """What the next draws of ``k`` rows will read: numbers ``[draws, S * size]``, on the CPU.

        Each draw, of ``k`` rows or of all there are, is filled up to ``size`` with a row it has,
        which should then weigh nothing. For steps that are captured: copy the numbers to where the
        step reads them, and run it within :meth:`planned`.
        """
        chosen = np.stack([self._choose(k) for _ in range(draws)])
        fill = np.repeat(chosen[..., :1], size - chosen.shape[-1], -1)
        filled = np.concatenate((chosen, fill), -1)
        return torch.from_numpy(np.stack([self._flat(slots) for slots in filled]))

    def sizes(self, numbers: Tensor) -> np.ndarray | None:
        """Lengths ``[draws, S, size]`` of the rows a plan reads, where the host knows them."""
        if self._sizes is None:
            return None
        return self._sizes[numbers.numpy()].reshape(len(numbers), self.replicas or 1, -1)

    @contextmanager
    def planned(self, numbers: Tensor, room: int | None = None) -> Iterator[None]:
        """Within it, draws read the rows ``numbers [draws, S * size]``, one line after the other.

        Ragged rows come at their stored width: the longest one is not looked up, for which the
        host would have to wait.

        Args:
            room: that each of these draws needs, of which the host knows by :meth:`sizes`.
        """
        self._planned, self._room = iter(numbers.unbind()), room
        try:
            yield
        finally:
            self._planned = self._room = None

    def _packable(self, rows: Any) -> Any:
        if self._room is None or not isinstance(rows[0], Ragged):
            return rows
        return Packable.of(rows[0], self._room), *rows[1:]

    def _flat(self, slots: np.ndarray) -> np.ndarray:
        """Slots ``[S?, k]`` as numbers over all replicas, ``[S * k]``."""
        return slots if self.replicas is None else (self._base + slots).ravel()

    def _read(self, index: Tensor) -> Any:
        """The rows with these numbers ``[S * k]``, each part ``[*lead, k, ...]``."""
        rows = []
        for dim, stored in zip(self._dims, self._fields, strict=True):
            row = stored.index_select(dim, index)
            rows.append(row if self.replicas is None else row.unflatten(dim, (self.replicas, -1)))
        return _build(self._structure, rows)

    def _index(self, numbers: np.ndarray) -> Tensor:
        index = torch.from_numpy(numbers)
        return index if self._device.type == "cpu" else index.to(self._device, non_blocking=True)

    def _choose(self, k: int) -> np.ndarray:
        """``k`` different slots, ``[S?, k]``, other ones at every call; all where there are fewer.

        Rows lie in the first ``len(self)`` slots.
        """
        n = len(self)
        if not n:
            raise ValueError("Cannot draw from an empty buffer")
        self.draws += 1
        if n <= k:
            return (
                np.arange(n) if self.replicas is None else np.tile(np.arange(n), (self.replicas, 1))
            )
        return sample(n, k, self.seed, "draw", self.draws).numpy()

    def state_dict(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "seed": self.seed,
            "draws": self.draws,
            "structure": self._structure,
            "fields": list(self._fields),
            # where they lie, counted from the last dimension: the same in a stack and alone
            "slots": [d - field.dim() for d, field in zip(self._dims, self._fields, strict=True)],
        }

    def load_state_dict(self, state: dict[str, Any], device: Device | None = None) -> None:
        """Go on from a saved state, with the rows on ``device`` (by default where they are)."""
        if state["capacity"] != self.capacity:
            raise ValueError(f"Invalid capacity: {self.capacity}, saved was {state['capacity']}")
        self.seed, self.draws = state["seed"], state["draws"]
        if isinstance(self.seed, Tensor):
            self.seed = self.seed.cpu()
        self._structure = state["structure"]
        self._fields = [field.to(device or field.device, copy=True) for field in state["fields"]]
        pairs = zip(state["slots"], self._fields, strict=True)
        self._dims = [dim + field.dim() for dim, field in pairs]
        self.version += 1
        self._sizes = None
        if self._fields:
            self._padded, self._device = _padded(self._structure), self._fields[0].device
            if self._padded[0]:
                self._sizes = self._fields[1].cpu().numpy().astype(np.int64)


def _sizes_of(rows: Any) -> np.ndarray | None:
    """The lengths of ragged inputs, where the host knows them."""
    return rows[0].sizes if isinstance(rows[0], Packable) else None


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
    """Equal space per task, the memory of A-GEM: random examples of each, and no slot left empty.

    The examples of a task are ranked at random as it ends. Of all examples seen, the buffer holds
    the ``capacity`` with the lowest

        (rank within its task, a random number of its task)

    A task so has ``capacity // tasks`` slots at least, where it has as many examples; what others
    do not fill is shared in the same way, and of what cannot be shared equally some tasks have one
    more, the same ones under every seed. Once tasks outnumber slots each slot holds one example of
    one task, and the tasks present are a uniform sample of all (Algorithm R over tasks).
    """

    def __init__(self, capacity: int, seed: Seed) -> None:
        super().__init__(capacity, seed)
        self.tasks = 0
        self._heap: list[tuple[int, int]] = []  # (-key, slot): the first is the next to go

    def __len__(self) -> int:
        return len(self._heap)

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
        slots = self._make_room(task, n)
        flat = self._flat(slots)
        self._write(examples[chosen[..., : len(slots)]], np.arange(flat.size), flat)

    def _make_room(self, task: int, n: int) -> np.ndarray:
        """The slots for a new task's examples by rank: the free ones, then those of lower claim."""
        last = int(integers(1 << 32, 1, 0, "remainder", task))
        slots: list[int] = []
        for rank in range(n):
            key = (rank << 32) + last
            if len(self._heap) < self.capacity:
                slots.append(len(self._heap))
                heapq.heappush(self._heap, (-key, slots[-1]))
            elif key < -self._heap[0][0]:
                slots.append(self._heap[0][1])
                heapq.heapreplace(self._heap, (-key, slots[-1]))
            else:
                break
        return np.array(slots)

    def _replace_a_task(self, examples: Examples, task: int, chosen: Tensor) -> None:
        slots = integers(task + 1, 1, self.seed, "tasks", task).numpy()
        sources = np.flatnonzero(slots < self.capacity)
        if len(sources):
            self._write(examples[chosen[..., :1]], sources, self._flat(slots)[sources])

    def state_dict(self) -> dict[str, Any]:
        keys = [-key for key, _ in sorted(self._heap, key=lambda entry: entry[1])]
        return {
            **super().state_dict(),
            "tasks": self.tasks,
            "keys": torch.tensor(keys, dtype=torch.int64),  # by slot
        }

    def load_state_dict(self, state: dict[str, Any], device: Device | None = None) -> None:
        super().load_state_dict(state, device)
        self.tasks = state["tasks"]
        self._heap = [(-key, slot) for slot, key in enumerate(state["keys"].tolist())]
        heapq.heapify(self._heap)


def widen(tensor: Tensor, dim: int, width: int) -> Tensor:
    """The tensor with zeros appended along ``dim``."""
    if tensor.shape[dim] == width:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = width - tensor.shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples and dicts, in order; a Ragged is a tuple of two."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(part)


def _structure(tree: Any) -> Any:
    """How tensors are nested, in plain containers that any snapshot can hold."""
    if isinstance(tree, Tensor):
        return None
    if isinstance(tree, dict):
        return {key: _structure(part) for key, part in tree.items()}
    return "ragged" if isinstance(tree, Ragged) else [_structure(part) for part in tree]


def _padded(structure: Any) -> list[bool]:
    """For each tensor whether it is the padded one of a Ragged."""
    if structure is None or structure == "ragged":
        return [False] if structure is None else [True, False]
    parts = structure.values() if isinstance(structure, dict) else structure
    return [flag for part in parts for flag in _padded(part)]


def _build(structure: Any, tensors: list[Tensor]) -> Any:
    """The inverse of :func:`tensors_of`; takes from the front of the list."""
    if structure is None:
        return tensors.pop(0)
    if structure == "ragged":
        return Ragged(tensors.pop(0), tensors.pop(0))
    if isinstance(structure, dict):
        return {key: _build(part, tensors) for key, part in structure.items()}
    return tuple(_build(part, tensors) for part in structure)


def _trim(rows: Any) -> Any:
    """Ragged rows as wide as the longest: a wait on a GPU, which the shorter batch repays."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Ragged):
            return value
        longest = int(value.lengths.max())
        return Ragged(value.padded.narrow(value.lengths.ndim, 0, longest), value.lengths)

    return map_leaves(leaf, rows)
