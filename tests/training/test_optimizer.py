"""Settings and policies as the optimizer gets them."""

import pytest
import torch

from longtail.names import POLICIES
from longtail.optim.kernels import uses_fused
from longtail.training.optimizer import build_optimizer
from longtail.training.settings import TrainSettings


@pytest.mark.parametrize("fused", [False, True])
def test_the_fused_kernel_is_used_if_and_only_if_asked_for(fused: bool) -> None:
    """Left open it would be used on a GPU, whatever the setting says."""
    settings = TrainSettings(fused=fused)
    optimizer = build_optimizer(torch.nn.Linear(2, 1), [POLICIES["continual"]], settings)
    (group,) = optimizer.param_groups
    assert group["fused"] is fused
    assert uses_fused(group) is fused
