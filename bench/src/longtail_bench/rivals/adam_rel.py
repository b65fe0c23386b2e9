r"""Adam-Rel: at a boundary keep both moments and count steps anew (Ellis et al., 2024).

    t ← 0,    m ← m,    v ← v                           at the end of a task (arXiv 2412.17113)
    θ ← θ - γ (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)   as Adam, with the task's own t

The kept moments are divided as if they had just begun. In the first step of a task that is
1 / (1 - β₁) = 10 for m and 1 / √(1 - β₂) = 32 for √v: a third of the usual step where gradients are
as before, and no larger than the usual one where they are many times as large.

A policy in a run: `--policy longtail_bench.rivals.adam_rel:restart_time`; in a loop of your own
`restart_time(optimizer)` after each task.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def restart_time(
    optimizer: torch.optim.Optimizer, model: nn.Module | None = None, task: int = 0
) -> None:
    """Count steps from zero again, in every state that counts them; moments stay as they are.

    Args:
        optimizer: one whose state has ``step``, as Adam's has; ours is to be made with
            ``first_moment="ema", second_moment="ema", beta3=0`` and never told `end_task`.
        model: what it moves; not looked at.
        task: the number of the task that ends; not looked at.

    Raises:
        ValueError: if some state counts no steps.
    """
    for state in optimizer.state.values():
        if "step" not in state:
            known = ", ".join(map(str, state))
            raise ValueError(
                f"{type(optimizer).__name__} counts no steps: its state has {known or 'nothing'}"
            )
    counts = [state["step"] for state in optimizer.state.values()]
    on_device = [count for count in counts if isinstance(count, Tensor)]
    if on_device:  # in place: kernels and captured steps point at them
        torch._foreach_zero_(on_device)
    for state in optimizer.state.values():
        if not isinstance(state["step"], Tensor):
            state["step"] = 0
        if isinstance(state.get("mu_product"), Tensor):  # what NAdam has in place of 1 - β₁ᵗ
            state["mu_product"].fill_(1.0)


restart_time.elementwise = True  # pyright: ignore[reportFunctionMemberAccess]
