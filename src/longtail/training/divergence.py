"""Where a run diverged: the first task that left weights which are infinite or not a number.

Such weights never become finite again, but their scores look like any other's: the largest of
outputs that are all NaN is class 0. A loss that is not finite makes its gradient, and by Adam's
division the weights, not finite either, so they are looked at, once a task and on the device:

    first <- task    where first < 0 and Σ w is not finite (a sum of finite floats, in doubles, is)

Weights may stay finite though losses do not: a gradient scaler skips such steps, the best epoch of
a task may be one before them. So the losses of each task are added up too, where the gradient is
made from a loss, and looked at beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

WAITING = 64  # tasks whose sums are looked at together


class Diverged(NamedTuple):
    """The first task that left numbers which are not finite, and of what: "weights", "losses"."""

    task: int
    what: str


class Divergence:
    """The first such task of a run, or of each replica; -1 where there is none so far.

    A task costs the sums of its weights, the comparison is made for many tasks at once: on tasks of
    one step anything more would cost as much as the step. Replicas have one sum of losses: theirs
    are added up before.

    Args:
        groups: the parameters, one list per policy (one in all for a plain module).
        lead: (P, S) where they are replicas', else ().
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], lead: tuple[int, ...]) -> None:
        self._groups = [[p.detach() for p in group if p.numel()] for group in groups]
        self._lead = lead
        device = next((p.device for group in groups for p in group), torch.device("cpu"))
        self._first = torch.full(lead, -1, device=device)
        # Of losses: how many tasks have had a bad one, and the first of them.
        self._count = torch.tensor(0, device=device)
        self._first_loss = torch.tensor(-1, device=device)
        # Of this task. On a GPU a small kernel adds to it, which a CUDA graph captures as well; on
        # a CPU a Python number costs a tenth of that.
        self._here = device.type == "cpu"
        self._loss = 0.0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._waiting: list[tuple[int, list[Tensor], Tensor]] = []

    @property
    def first(self) -> Tensor:
        """Shape `lead`, on the device."""
        self._settle()
        return self._first

    @first.setter
    def first(self, tasks: Tensor) -> None:
        self._waiting.clear()  # of a state that is being replaced
        self._first = tasks

    @property
    def bad_losses(self) -> int:
        """How many tasks have had a loss that was not finite, read from the device."""
        self._settle()
        return int(self._count)

    def note(self, loss: Tensor) -> None:
        """Add the loss of a step to its task's sum."""
        if self._here:
            self._loss += loss.item()
        else:
            self._loss_sum.add_(loss.detach())

    def look(self, task: int) -> None:
        """Note what the task just learned left behind; nothing waits for the device."""
        self._waiting.append((task, self._sums(), self._sum_of_losses().clone()))
        self._loss = 0.0
        self._loss_sum.zero_()
        if len(self._waiting) >= WAITING:
            self._settle()

    def found(self) -> Diverged | None:
        """The first task of any replica, read from the device; of losses where weights are well."""
        diverged = self.first[self.first >= 0]
        if diverged.numel():
            return Diverged(int(diverged.min()), "weights")
        return Diverged(int(self._first_loss), "losses") if self.bad_losses else None

    def losses_dict(self) -> dict[str, float | int]:
        """What a snapshot holds of the losses."""
        count, total = self.bad_losses, float(self._sum_of_losses())
        return {"count": count, "first": int(self._first_loss), "sum": total}

    def load_losses_dict(self, state: Mapping[str, float | int]) -> None:
        self._count.fill_(state["count"])
        self._first_loss.fill_(state["first"])
        self._loss = float(state["sum"])
        self._loss_sum.fill_(self._loss)  # in place: a graph knows where it is

    def _sums(self) -> list[Tensor]:
        """Σ w of every tensor, in doubles, which no sum of floats overflows: numbers, or [S]."""
        every = [p for group in self._groups for p in group]
        if not self._lead:
            return [p.sum(dtype=_wide(p)) for p in every]
        return [p.reshape(len(p), -1).sum(1, dtype=_wide(p)) for p in every]

    def _sum_of_losses(self) -> Tensor:
        return self._loss_sum.fill_(self._loss) if self._here else self._loss_sum

    def _settle(self) -> None:
        """Look at all that is waiting, in one go."""
        if not self._waiting:
            return
        tasks, weights, losses = zip(*self._waiting, strict=True)
        self._waiting.clear()
        number = torch.tensor(tasks, device=self._first.device)
        whole = torch.stack(losses).isfinite()
        self._count += (~whole).sum()
        self._first_loss = _earlier(self._first_loss, whole, number)
        if not weights[0]:
            return
        values = torch.stack([total for sums in weights for total in sums]).isfinite()
        if self._lead:  # [tasks, P, parameters, S] -> [tasks, P, S]
            whole = values.view(len(tasks), self._lead[0], -1, self._lead[1]).all(2)
        else:
            whole = values.view(len(tasks), -1).all(1)
        number = number.view(-1, *[1] * len(self._lead))
        self._first = _earlier(self._first, whole, number)


def _earlier(first: Tensor, whole: Tensor, tasks: Tensor) -> Tensor:
    """The first task that is not whole, where there was none before."""
    late = torch.iinfo(torch.int64).max
    earliest = torch.where(whole, late, tasks).amin(0)
    return torch.where((first < 0) & (earliest < late), earliest, first)


def _wide(p: Tensor) -> torch.dtype:
    return torch.complex128 if p.is_complex() else torch.float64
