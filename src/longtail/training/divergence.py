"""Where a run diverged: the first task that left weights which are infinite or not a number.

Such weights never become finite again, but their scores look like any other's: the largest of
outputs that are all NaN is class 0. A loss that is not finite makes its gradient, and by Adam's
division the weights, not finite either, so they are looked at, once a task and on the device:

    first <- task    where first < 0 and max |w| is not finite
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Divergence:
    """The first such task of a run, or of each replica; -1 where there is none so far.

    Args:
        groups: the parameters, one list per policy (one in all for a plain module).
        lead: (P, S) where they are replicas', else ().
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], lead: tuple[int, ...]) -> None:
        self._groups = [[p for p in group if p.numel()] for group in groups]
        self._lead = lead
        device = next((p.device for group in groups for p in group), None)
        self.first = torch.full(lead, -1, device=device)

    @torch.no_grad()
    def look(self, task: int) -> None:
        """Note what the task just learned left behind; nothing waits for the device."""
        finite = torch.stack([self._largest(group) for group in self._groups]).isfinite()
        new = (self.first < 0) & ~finite.reshape(self._lead)
        self.first = torch.where(new, task, self.first)

    def _largest(self, params: Sequence[Tensor]) -> Tensor:
        """max |w|, in which a NaN is the largest; one number, or [S]."""
        if not params:
            return self.first.new_zeros(self._lead[1:], dtype=torch.float32)
        if not self._lead:
            return torch.stack(torch._foreach_norm(list(params), float("inf"))).amax()
        largest = [p.reshape(len(p), -1).abs().amax(1) for p in params]
        return torch.stack([x.to(torch.float64) for x in largest]).amax(0)

    def found(self) -> int | None:
        """The first task of any replica, read from the device."""
        diverged = self.first[self.first >= 0]
        return int(diverged.min()) if diverged.numel() else None
