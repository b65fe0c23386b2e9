"""What a method of a framework's loop knows, for weeks that are resumed and weeks that are not."""

from __future__ import annotations

import torch
from torch import Tensor

from longtail.integrations.foreign_loop import MethodInLoop
from longtail.methods import Reservoir, SynapticIntelligence

METHODS = (SynapticIntelligence, Reservoir)


def known(in_loop: MethodInLoop | None) -> list[Tensor]:
    """What SI has summed along the way, or how many examples a buffer was shown."""
    assert in_loop is not None
    method = in_loop.method
    if isinstance(method, SynapticIntelligence):
        return [tensor.clone() for tensor in method.sum_F]
    assert isinstance(method, Reservoir)
    return [torch.tensor(method.buffer.count)]


def check_same(whole: list[Tensor], resumed: list[Tensor]) -> None:
    """Half a week is not to be lost."""
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    assert any(bool((tensor > 0).any()) for tensor in whole)
