r"""Four metrics of a score matrix: pure functions, weighted by test size as in the paper.

With a_{j,i} the score on task i after learning task j, n_i the test examples of task i, T tasks:

    RP  = sum_{i=1..T}   n_i a_{T,i}                         / sum_{i=1..T}   n_i    (retained)
    LP  = sum_{i=1..T}   n_i a_{i,i}                         / sum_{i=1..T}   n_i    (learning)
    BWT = sum_{i=1..T-1} n_i (a_{T,i} - a_{i,i})             / sum_{i=1..T-1} n_i    (backward)
    FGT = sum_{i=1..T-1} n_i (max_{i<=j<=T} a_{j,i} - a_{T,i}) / sum_{i=1..T-1} n_i  (forgetting)

The maximum runs over the evaluated j (and a_{i,i}); it is a minimum where lower is better, so that
FGT of an error is negative where something was forgotten. With one task the sums of BWT and FGT are
empty and both are 0. A score that is NaN makes the metrics it enters NaN.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "METRICS",
    "ScoreMatrix",
    "breakdown",
    "curve",
    "size_groups",
    "summary",
]

METRICS = ("RP", "LP", "BWT", "FGT")
Scores = Mapping[int, Any] | tuple[Any, Any]


class ScoreMatrix:
    """The evaluated entries of the score matrix, and what the metrics need of them per task.

    Args:
        test_sizes: test examples per task; a task without any has no weight and needs no score.
        higher_is_better: direction of the score.
        trained: per task, False for zero-shot tasks (for :func:`breakdown`); all True by default.

    Scores may have leading dimensions (replicas): then the arrays below are ``[*lead, T]`` and the
    metrics arrays ``[*lead]``, and rows are not kept, which would not fit in memory.

    Attributes:
        own: a_{i,i}; NaN where it is missing, as below.
        best: the best score of each task from its own place on.
        last: the latest score of each task.

    Example:
        >>> m = ScoreMatrix(test_sizes=[10, 30])
        >>> m.record(after=0, scores={0: 0.9})
        >>> m.record(after=1, scores={0: 0.5, 1: 0.8})
        >>> {name: round(value, 3) for name, value in summary(m).items()}
        {'RP': 0.725, 'LP': 0.825, 'BWT': -0.4, 'FGT': 0.4}
    """

    def __init__(self, test_sizes: Any, higher_is_better: bool = True, trained: Any = None) -> None:
        self.test_sizes = _whole_numbers(test_sizes, "test_sizes")
        self.higher_is_better = higher_is_better
        count = len(self.test_sizes)
        self.trained = np.ones(count, bool) if trained is None else np.asarray(trained, dtype=bool)
        if self.test_sizes.sum() <= 0 or (self.test_sizes < 0).any():
            raise ValueError(f"Invalid test_sizes: {test_sizes}")
        if len(self.trained) != count:
            raise ValueError(f"Invalid trained: {len(self.trained)} entries for {count} tasks")
        self.lead: tuple[int, ...] | None = None
        self.own = self.best = self.last = np.full(count, np.nan)
        self._last_after = np.full(count, -1)
        self._has_own = np.zeros(count, bool)
        self._has_best = np.zeros(count, bool)
        self._row = -1  # the row last added to
        self.rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._curve: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.test_sizes)

    def record(self, after: int, scores: Scores) -> None:
        """Enter scores measured after learning task ``after``.

        A score that is entered again takes the place of the one before.

        Args:
            after: index of the task just learned, from zero.
            scores: ``{task: score}``, or task indices and an array ``[*lead, len(indices)]``.

        Raises:
            ValueError: an index is none of a task, or the scores do not fit the indices or what
                was recorded before; nothing is entered then.
        """
        if not isinstance(after, int | np.integer) or not 0 <= after < len(self):
            raise ValueError(f"Invalid after: {after}, there are {len(self)} tasks")
        if not isinstance(scores, Mapping):
            if not isinstance(scores, tuple | list) or len(scores) != 2:
                raise ValueError(f"Invalid scores: {scores!r}, neither a dict nor (tasks, values)")
            if self._record_own(after, *scores):
                return
        tasks, values = self._read(scores)
        again = tasks[(tasks <= after) & self._entered(after, tasks)]
        self._has_own[tasks[tasks == after]] = True
        self.own[..., tasks[tasks == after]] = values[..., tasks == after]
        newer = np.flatnonzero(self._last_after[tasks] <= after)
        self.last[..., _span(tasks[newer])] = values[..., _span(newer)]
        self._last_after[tasks[newer]] = after
        learned = tasks <= after  # a score from before the task's place says nothing of forgetting
        known = np.flatnonzero(learned & self._has_best[tasks])
        first = np.flatnonzero(learned & ~self._has_best[tasks])
        better = np.maximum if self.higher_is_better else np.minimum
        t = _span(tasks[known])
        self.best[..., t] = better(self.best[..., t], values[..., _span(known)])
        self.best[..., tasks[first]] = values[..., first]
        self._has_best[tasks[first]] = True
        # a_ii alone is in `own`: thousands of rows of one entry would only be slow to save
        if after == 0 or after == self._row or (tasks != after).any():
            self._add_row(after, tasks, values)
        if len(again):
            self._find_best(again)

    def _entered(self, after: int, tasks: np.ndarray) -> np.ndarray:
        """For each of these tasks whether it has a score from after that one."""
        known = self._last_after[tasks] == after
        known |= (tasks == after) & self._has_own[tasks]
        if after in self.rows:
            known |= np.isin(tasks, self.rows[after][0])
        if self.lead and known.any():
            # What the new score takes the place of may be the best one, and rows are not kept.
            raise ValueError(
                f"Invalid scores: task {tasks[known][0]} has scores from after task {after} "
                "already, which replicas cannot enter again"
            )
        return known

    def _find_best(self, tasks: np.ndarray) -> None:
        """The best scores of these tasks, from all that is kept."""
        better = np.fmax if self.higher_is_better else np.fmin
        for task in tasks:
            found = [self.own[task]] if self._has_own[task] else []
            for after, (row, values) in self.rows.items():
                found += values[row == task].tolist() if after >= task else []
            nan = any(np.isnan(found))
            self.best[task] = np.nan if nan else better.reduce(found)

    def _record_own(self, after: int, tasks: Any, values: Any) -> bool:
        """The first score of a task, a_ii: once per task, so it must cost next to nothing."""
        if len(tasks) != 1 or tasks[0] != after or not 0 < after < len(self) or after == self._row:
            return False
        values = _array(values)
        if self._last_after[after] >= 0 or values.shape[:-1] != self.lead or values.shape[-1] != 1:
            return False
        for scores in (self.own, self.best, self.last):
            scores[..., after] = values[..., 0]
        self._has_own[after] = self._has_best[after] = True
        self._last_after[after] = after
        return True

    def _read(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(scores, Mapping):
            indices: Any = list(scores)
            values = np.stack([_array(scores[i]) for i in indices], axis=-1) if indices else []
        else:
            indices, values = scores
        tasks, values = _whole_numbers(indices, "tasks"), _array(values)
        if len(tasks) and not (tasks.min() >= 0 and tasks.max() < len(self)):
            wrong = tasks[(tasks < 0) | (tasks >= len(self))][0]
            raise ValueError(f"Invalid task: {wrong}, there are {len(self)} tasks")
        if len(np.unique(tasks)) != len(tasks):
            raise ValueError(f"Invalid tasks: {tasks.tolist()}, one of them stands there twice")
        if values.shape[-1:] != tasks.shape:
            raise ValueError(f"Invalid scores: {values.shape} for {len(tasks)} tasks")
        if self.lead is None and len(tasks):
            self.lead = values.shape[:-1]
            # Tasks lie far apart in memory, replicas side by side: scores come task by task.
            self.own, self.best, self.last = (
                np.moveaxis(np.full((len(self), *self.lead), np.nan), 0, -1) for _ in range(3)
            )
        elif len(tasks) and values.shape[:-1] != self.lead:
            raise ValueError(f"Invalid scores: {values.shape[:-1]} replicas after {self.lead}")
        return tasks, values

    def _add_row(self, after: int, tasks: np.ndarray, values: np.ndarray) -> None:
        self._row = after
        if after in self.rows:
            old_tasks, old_values = self.rows[after]
            fresh = ~np.isin(old_tasks, tasks)
            tasks = np.concatenate((old_tasks[fresh], tasks))
            values = np.concatenate((old_values[..., fresh], values), axis=-1)
        if not self.lead:
            self.rows[after] = tasks, values
        weighed = np.flatnonzero(self.test_sizes[: after + 1])
        if len(weighed) and (self._last_after[weighed] == after).all():
            self._curve[after] = _mean(self.last[..., _span(weighed)], self.test_sizes[weighed])

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {
            "lead": None if self.lead is None else list(self.lead),
            "row": self._row,
            **{name: torch.from_numpy(np.array(array)) for name, array in arrays.items()},
            "rows": {j: [torch.from_numpy(np.array(a)) for a in r] for j, r in self.rows.items()},
            "curve": {j: torch.from_numpy(np.array(rp)) for j, rp in self._curve.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["own"].shape[-1] != len(self):
            raise ValueError(f"{state['own'].shape[-1]} tasks were saved, here are {len(self)}")
        self.lead = None if state["lead"] is None else tuple(state["lead"])
        self._row = state["row"]
        for name in _ARRAYS:
            setattr(self, name, state[name].clone().numpy())
        self.rows = {
            j: (t.clone().numpy(), v.clone().numpy()) for j, (t, v) in state["rows"].items()
        }
        self._curve = {j: rp.clone().numpy() for j, rp in state["curve"].items()}


_ARRAYS = ("own", "best", "last", "_last_after", "_has_own", "_has_best")


def summary(m: ScoreMatrix, chosen: np.ndarray | None = None) -> dict[str, Any]:
    """RP, LP, BWT and FGT; floats, or arrays ``[*lead]`` where scores have leading dimensions.

    Over all tasks, or those that ``chosen [T]`` says.
    """
    chosen = np.ones(len(m), bool) if chosen is None else np.asarray(chosen)
    if chosen.dtype != bool or chosen.shape != (len(m),):
        raise ValueError(
            f"Invalid chosen: {chosen!r}, not True or False for each of {len(m)} tasks"
        )
    return _summary(m, chosen)


def curve(m: ScoreMatrix) -> tuple[np.ndarray, np.ndarray]:
    """Where all tasks so far were evaluated, ``after [E]``, and RP over them, ``[*lead, E]``."""
    after = sorted(m._curve)
    rp = [m._curve[j] for j in after]
    return np.array(after, dtype=np.int64), np.stack(rp, -1) if rp else np.empty((*_lead(m), 0))


def size_groups(trained: Any, train_sizes: Any) -> dict[str, np.ndarray]:
    """The tasks of each group.

    ``head`` is the largest tenth of the trained tasks, ``tail`` the smaller half, ``body`` what
    lies between; ``zero_shot`` are the tasks never trained.
    """
    trained, sizes = np.asarray(trained, bool), np.asarray(train_sizes)
    known = np.flatnonzero(trained)
    order = known[np.argsort(-sizes[known], kind="stable")]
    head, half = -(-len(order) // 10), -(-len(order) // 2)
    return {
        "head": order[:head],
        "body": order[head:half],
        "tail": order[max(head, half) :],
        "zero_shot": np.flatnonzero(~trained),
    }


def breakdown(m: ScoreMatrix, train_sizes: Any) -> dict[str, dict[str, Any]]:
    """The metrics by task size: where in the tail performance is lost.

    The groups are those of :func:`size_groups`; what has no test examples is left out.
    """
    sizes = np.asarray(train_sizes)
    if len(sizes) != len(m):
        raise ValueError(f"Invalid train_sizes: {len(sizes)} entries for {len(m)} tasks")
    result: dict[str, dict[str, Any]] = {}
    for name, tasks in size_groups(m.trained, sizes).items():
        if m.test_sizes[tasks].sum() == 0:
            continue
        chosen = np.zeros(len(m), bool)
        chosen[tasks] = True
        result[name] = {
            "tasks": len(tasks),
            "train_examples": int(sizes[tasks].sum()),
            "test_examples": int(m.test_sizes[tasks].sum()),
            **_summary(m, chosen),
        }
    return result


def _parts(m: ScoreMatrix, chosen: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each metric the values that are averaged, and the tasks they belong to."""
    tasks = np.flatnonzero(chosen & (m.test_sizes > 0))
    final = len(m) - 1
    for missing, row in ((~m._has_own[tasks], None), (m._last_after[tasks] != final, final)):
        if missing.any():
            i = int(tasks[missing][0])
            raise ValueError(
                f"The score of task {i} after task {i if row is None else row} is missing "
                f"({int(missing.sum())} such scores are); record it before asking for metrics"
            )
    earlier = tasks[tasks < final]
    last = m.last[..., earlier]
    return {
        "RP": (m.last[..., tasks], tasks),
        "LP": (m.own[..., tasks], tasks),
        "BWT": (last - m.own[..., earlier], earlier),
        "FGT": (m.best[..., earlier] - last, earlier),
    }


def _summary(m: ScoreMatrix, chosen: np.ndarray) -> dict[str, Any]:
    means = {name: _mean(v, m.test_sizes[t]) for name, (v, t) in _parts(m, chosen).items()}
    return {name: mean if m.lead else float(mean) for name, mean in means.items()}


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean over the last dimension; 0 where there is no weight."""
    total = weights.sum()
    return values @ weights / total if total > 0 else np.zeros(values.shape[:-1])


def _span(numbers: np.ndarray) -> Any:
    """Numbers as a slice where each is one more than the last, which NumPy need not copy."""
    if len(numbers) == 0 or (np.diff(numbers) != 1).any():
        return numbers
    return slice(int(numbers[0]), int(numbers[-1]) + 1)


def _lead(m: ScoreMatrix) -> tuple[int, ...]:
    return m.lead or ()


def _whole_numbers(values: Any, name: str) -> np.ndarray:
    """Indices or sizes as int64; what is no whole number is refused and not rounded."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    with np.errstate(invalid="ignore"):
        found = array.astype(np.int64) if array.dtype.kind in "iuf" or not array.size else None
    if found is None or (found != array).any():
        raise ValueError(f"Invalid {name}: {values!r}, these are no whole numbers")
    return found


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)
