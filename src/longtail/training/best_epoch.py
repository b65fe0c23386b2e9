"""The weights of a task's best epoch on its validation examples, each replica its own.

Small tasks have few validation examples, and epochs that are equal on them are common; `tie` says
which of them is kept: the first, the last, or that with the smaller loss on the same examples (the
first where these are equal too). Scores are compared where they are computed: nothing waits for the
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longtail.replicas import broadcast

# {"score": [*lead], "weights": one list of tensors per policy}, and "loss": [*lead] if that decides
Best = dict[str, Any]
Beside = Sequence[Sequence[Tensor]]


def keep_best(
    best: Best | None,
    model: nn.Module,
    score: Any,
    higher_is_better: bool,
    ties: Sequence[str] = (),
    loss: Any = None,
    beside: Beside = (),
) -> Best:
    """What was best so far, or these weights where their validation score [*lead] is better.

    Args:
        ties: which of equal epochs each policy keeps, "first", "last" or that of smaller "loss";
            empty for the first everywhere.
        loss: of the validation examples, [*lead], where a tie is decided by it.
        beside: tensors of the method that are kept with the weights, a list for each policy.
    """
    groups = _tensors(model, beside)
    score = torch.as_tensor(score, device=groups[0][0].device)
    new: Best = {"score": score}
    if "loss" in ties:
        new["loss"] = torch.as_tensor(loss, device=score.device)
    if best is None:
        return {**new, "weights": [[t.clone() for t in group] for group in groups]}
    old = best["score"]
    better = (score > old if higher_is_better else score < old) | old.isnan()
    by_rule = {"first": better, "last": better | (score == old)}
    if "loss" in ties:
        by_rule["loss"] = better | ((score == old) & (new["loss"] < best["loss"]))
    rules = ties or ["first"] * len(groups)
    masks = [by_rule[tie][i] if score.dim() else by_rule[tie] for i, tie in enumerate(rules)]
    better = torch.stack(masks) if score.dim() else masks[0]
    for mask, kept, group in zip(masks, best["weights"], groups, strict=True):
        for a, b in zip(kept, group, strict=True):
            torch.where(broadcast(mask, b), b, a, out=a)
    kept = {name: torch.where(better, value, best[name]) for name, value in new.items()}
    return {**kept, "weights": best["weights"]}


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
    return {name: value.to(device) for name, value in best.items() if name != "weights"} | {
        "weights": weights
    }


def _tensors(model: nn.Module, beside: Beside) -> list[list[Tensor]]:
    members = getattr(model, "members", [model])
    further = beside or [[] for _ in members]
    return [
        [t.detach() for t in (*m.parameters(), *m.buffers(), *own)]
        for m, own in zip(members, further, strict=True)
    ]
