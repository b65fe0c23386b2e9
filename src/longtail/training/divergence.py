"""Where a run diverged: the first task that left weights which are infinite or not a number.

Such weights never become finite again, but their scores look like any other's: the largest of
outputs that are all NaN is class 0. A loss that is not finite makes its gradient, and by Adam's
division the weights, not finite either, so they are looked at, once a task and on the device:

    first <- task    where first < 0 and Σ w is not finite (a sum of finite floats, in doubles, is)

Weights may stay finite though losses do not: a gradient scaler skips such steps, the best epoch of
a task may be one before them. So the losses of each task are added up too, where the gradient is
made from a loss, and looked at in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

WAITING = 64  # tasks whose sums are looked at together


class Divergence:
    """The first such task of a run, or of each replica; -1 where there is none so far.

    A task costs the sums of its weights, the comparison is made for many tasks at once: on tasks of
    one step anything more would cost as much as the step.

    Args:
        groups: the parameters, one list per policy (one in all for a plain module).
        lead: (P, S) where they are replicas', else ().
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], lead: tuple[int, ...]) -> None:
        self._groups = [[p.detach() for p in group if p.numel()] for group in groups]
        self._lead = lead
        device = next((p.device for group in groups for p in group), None)
        self._first = torch.full(lead, -1, device=device)
        self._waiting: list[tuple[int, list[Tensor]]] = []

    @property
    def first(self) -> Tensor:
        """Shape `lead`, on the device."""
        self._settle()
        return self._first

    @first.setter
    def first(self, tasks: Tensor) -> None:
        self._waiting.clear()  # of a state that is being replaced
        self._first = tasks

    def look(self, task: int) -> None:
        """Note what the task just learned left behind; nothing waits for the device."""
        self._waiting.append((task, self._sums()))
        if len(self._waiting) >= WAITING:
            self._settle()

    def _sums(self) -> list[Tensor]:
        """Σ w of every tensor, in doubles, which no sum of floats overflows: numbers, or [S]."""
        every = [p for group in self._groups for p in group]
        if not self._lead:
            return [p.sum(dtype=_wide(p)) for p in every]
        return [p.reshape(len(p), -1).sum(1, dtype=_wide(p)) for p in every]

    def _settle(self) -> None:
        """Look at all that is waiting, in one go."""
        if not self._waiting:
            return
        tasks, found = zip(*self._waiting, strict=True)
        self._waiting.clear()
        if not found[0]:
            return
        values = torch.stack([x for each in found for x in each]).isfinite()
        if self._lead:  # [tasks, P, parameters, S] -> [tasks, P, S]
            whole = values.view(len(tasks), self._lead[0], -1, self._lead[1]).all(2)
        else:
            whole = values.view(len(tasks), -1).all(1)
        number = torch.tensor(tasks, device=whole.device).view(-1, *[1] * len(self._lead))
        late = torch.iinfo(torch.int64).max
        earliest = torch.where(whole, late, number).amin(0)
        new = (self._first < 0) & (earliest < late)
        self._first = torch.where(new, earliest, self._first)

    def found(self) -> int | None:
        """The first task of any replica, read from the device."""
        first = self.first
        diverged = first[first >= 0]
        return int(diverged.min()) if diverged.numel() else None


class Losses:
    """How many tasks had a loss that was infinite or not a number, and the first of them.

    A step adds its loss to a sum. On a GPU the sum lies there, one small kernel adds to it, which a
    CUDA graph captures as well, and nothing waits; on a CPU a Python number costs a tenth of that.
    Replicas have one sum: their losses are added up before.
    """

    def __init__(self, device: torch.device) -> None:
        self._here = device.type == "cpu"
        self._total = 0.0
        self._sum = torch.zeros((), dtype=torch.float64, device=device)
        self._sums = torch.zeros(WAITING, dtype=torch.float64, device=device)
        self._tasks: list[int] = []
        self.count, self.first = 0, -1

    def note(self, loss: Tensor) -> None:
        if self._here:
            self._total += loss.item()
        else:
            self._sum.add_(loss.detach())

    def look(self, task: int) -> None:
        """End a task; nothing waits for the device until many have ended."""
        if self._here:
            self._end(task, math.isfinite(self._total))
            self._total = 0.0
            return
        self._sums[len(self._tasks)].copy_(self._sum)
        self._sum.zero_()
        self._tasks.append(task)
        if len(self._tasks) == WAITING:
            self.settle()

    def settle(self) -> None:
        """Count what is waiting, which is read from the device."""
        finite = self._sums[: len(self._tasks)].isfinite().tolist() if self._tasks else []
        for task, good in zip(self._tasks, finite, strict=True):
            self._end(task, good)
        self._tasks.clear()

    def _end(self, task: int, finite: bool) -> None:
        if not finite:
            self.count += 1
            self.first = task if self.first < 0 else self.first

    def state_dict(self) -> dict[str, float | int]:
        self.settle()
        total = self._total if self._here else float(self._sum)
        return {"count": self.count, "first": self.first, "sum": total}

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        self._tasks.clear()
        self.count, self.first = int(state["count"]), int(state["first"])
        self._total = float(state["sum"])
        self._sum.fill_(self._total)  # in place: a graph knows where it is


def _wide(p: Tensor) -> torch.dtype:
    return torch.complex128 if p.is_complex() else torch.float64
