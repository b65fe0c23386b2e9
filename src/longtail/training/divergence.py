"""Where a run diverged: the first task that left weights which are infinite or not a number.

Such weights never become finite again, but their scores look like any other's: the largest of
outputs that are all NaN is class 0. A loss that is not finite makes its gradient, and by Adam's
division the weights, not finite either, so they are looked at, once a task and on the device:

    first <- task    where first < 0 and Σ w is not finite (a sum of finite floats, in doubles, is)
"""

from __future__ import annotations

from collections.abc import Sequence

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


def _wide(p: Tensor) -> torch.dtype:
    return torch.complex128 if p.is_complex() else torch.float64
