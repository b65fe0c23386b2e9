"""The weights of a task's best epoch on its validation examples, each replica its own.

Small tasks have few validation examples, and epochs that are equal on them are common; `tie` says
which of them is kept, the first or the last. Scores are compared where they are computed: nothing
waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longtail.replicas import broadcast

# {"score": [*lead], "weights": one list of tensors per policy}
Best = dict[str, Any]
Beside = Sequence[Sequence[Tensor]]


def keep_best(
    best: Best | None,
    model: nn.Module,
    score: Any,
    higher_is_better: bool,
    tie: str = "first",
    beside: Beside = (),
) -> Best:
    """What was best so far, or these weights where their validation score [*lead] is better.

    Args:
        tie: which of equal epochs is kept, the "first" or the "last".
        beside: tensors of the method that are kept with the weights, a list for each policy.
    """
    groups = _tensors(model, beside)
    score = torch.as_tensor(score, device=groups[0][0].device)
    if best is None:
        return {"score": score, "weights": [[t.clone() for t in group] for group in groups]}
    old = best["score"]
    better = (score > old if higher_is_better else score < old) | old.isnan()
    if tie == "last":
        better = better | (score == old)
    masks = better.unbind() if better.dim() else [better]
    for mask, kept, group in zip(masks, best["weights"], groups, strict=True):
        for a, b in zip(kept, group, strict=True):
            torch.where(broadcast(mask, b), b, a, out=a)
    return {"score": torch.where(better, score, old), "weights": best["weights"]}


def restore_best(best: Best | None, model: nn.Module, beside: Beside = ()) -> None:
    """Weights of the best epoch, where one was kept; the optimizer's moments stay as they are."""
    if best is not None:
        for group, kept in zip(_tensors(model, beside), best["weights"], strict=True):
            torch._foreach_copy_(group, kept)


def load_best(best: Best | None, device: torch.device) -> Best | None:
    """As saved, on the device it is compared on."""
    if best is None:
        return None
    weights = [[t.to(device) for t in group] for group in best["weights"]]
    return {"score": best["score"].to(device), "weights": weights}


def _tensors(model: nn.Module, beside: Beside) -> list[list[Tensor]]:
    members = getattr(model, "members", [model])
    further = beside or [[] for _ in members]
    return [
        [t.detach() for t in (*m.parameters(), *m.buffers(), *own)]
        for m, own in zip(members, further, strict=True)
    ]
