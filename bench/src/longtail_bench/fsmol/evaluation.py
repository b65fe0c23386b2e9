r"""Accuracy and ROC-AUC of every task from one pass over all test molecules.

    AUC_i = (Σ_{active} rank - n₁ (n₁ + 1) / 2) / (n₁ n₀)        ranks of the logits within task i

that is how often an active molecule is above an inactive one, a tie counting one half. The ranks of
all tasks come from one sort by task and logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import Evaluator, Examples, Score, TableSequence, read

ROWS = {"cpu": 1 << 12, "cuda": 1 << 16}  # of all replicas, in one batch


class Evaluation(Evaluator):
    """``evaluation(model, sequence, tasks)``: both scores by name, [*lead, len(tasks)] each."""

    own_scores = (Score("roc_auc", None, "percent", higher_is_better=True),)

    def __call__(self, model: nn.Module, sequence: Any, tasks: range) -> dict[str, Tensor]:
        if tasks.start == 0:
            examples, task = sequence.tests(tasks.stop)
        else:
            examples, task = sequence.test(tasks.start), None
        logits, targets = logits_of(model, examples)
        if len(tasks) == 1 and logits.device.type == "cpu":
            return scores_of_one(logits, targets)
        if task is None:
            task = torch.zeros(len(targets), dtype=torch.int64, device=logits.device)
        return scores(logits, targets, task.to(logits.device), len(tasks))

    def validations(self, model: nn.Module, sequence: Any, tasks: Sequence[int]) -> Any:
        """Accuracy of the tasks' validation molecules, [tasks, *lead], in one pass as well."""
        if not isinstance(sequence, TableSequence):  # multi-task training: one task is all of them
            return super().validations(model, sequence, tasks)
        segments = sequence.segments("validation")
        assert segments is not None
        examples = segments.view(sequence.table, 0, len(sequence))
        logits, targets = logits_of(model, examples)
        number = segments.task_of_row().to(logits.device).expand(logits.shape)
        right = ((logits > 0) == (targets > 0.5)).double()
        found = _sums(right, number, len(sequence)).cpu().numpy()[..., tasks]
        return np.moveaxis(found / segments.sizes[tasks], -1, 0)


def logits_of(model: nn.Module, examples: Examples) -> tuple[Tensor, Tensor]:
    """Logits [*lead, n] and labels [n], or [S, n] where replicas see molecules of their own."""
    lead: tuple[int, ...] = getattr(model, "lead", ())
    device = next(model.parameters()).device
    rows = ROWS.get(device.type, ROWS["cpu"])
    for size in lead:
        rows = max(1, rows // size)
    logits, targets = [], []
    with evaluation_mode(model), torch.no_grad():
        for start in range(0, len(examples), rows):
            (bits, task), labels = read(examples, start, start + rows)
            if lead and labels.ndim == 1:
                bits, task = (x.expand(lead[1], *x.shape) for x in (bits, task))
            logits.append(model((bits, task)).float())
            targets.append(labels)
    if len(logits) == 1:
        return logits[0], targets[0]
    return torch.cat(logits, -1), torch.cat(targets, -1)


def scores(logits: Tensor, targets: Tensor, task: Tensor, tasks: int) -> dict[str, Tensor]:
    """Accuracy and ROC-AUC by task, float64 [*lead, tasks], of logits [*lead, n]."""
    number = task.expand(logits.shape)
    right = (logits > 0) == (targets > 0.5)
    sizes = torch.zeros(tasks, dtype=torch.float64, device=task.device)
    sizes.scatter_add_(0, task, torch.ones_like(task, dtype=torch.float64))
    accuracy = _sums(right.double(), number, tasks) / sizes
    return {"accuracy": accuracy, "roc_auc": roc_auc(logits, targets, task, sizes)}


def scores_of_one(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The same of one task, [*lead, 1], by pairs: a sort takes longer than a dozen molecules do."""
    active = targets > 0.5
    accuracy = ((logits > 0) == active).mean(-1, keepdim=True, dtype=torch.float64)
    above, below = logits[..., active, None], logits[..., None, ~active]
    found = (above > below).mean((-2, -1), dtype=torch.float64).unsqueeze(-1)
    ties = (above == below).mean((-2, -1), dtype=torch.float64).unsqueeze(-1)
    broken = logits.isnan().any(-1, keepdim=True)
    return {"accuracy": accuracy, "roc_auc": torch.where(broken, torch.nan, found + ties / 2)}


def roc_auc(logits: Tensor, targets: Tensor, task: Tensor, sizes: Tensor) -> Tensor:
    """[*lead, tasks]; NaN for a task without actives, or without inactives, or with a NaN."""
    tasks = len(sizes)
    order = logits.argsort(dim=-1, stable=True)
    order = order.gather(-1, task[order].argsort(dim=-1, stable=True))
    value, number = logits.gather(-1, order), task[order]
    place = torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape)
    # a run of equal logits shares the mean of its first and last place
    new = torch.ones_like(value, dtype=torch.bool)
    new[..., 1:] = (value[..., 1:] != value[..., :-1]) | (number[..., 1:] != number[..., :-1])
    last = torch.ones_like(new)
    last[..., :-1] = new[..., 1:]
    first = torch.where(new, place, 0).cummax(-1).values
    end = torch.where(last, place, logits.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    before = torch.cumsum(sizes, 0) - sizes
    rank = (first + end).double() / 2 + 1 - before[number]
    active = targets[order].double()
    n1 = torch.zeros_like(sizes).scatter_add_(0, task, targets.double())
    found = _sums(rank * active, number, tasks) - n1 * (n1 + 1) / 2
    found = found / (n1 * (sizes - n1))
    broken = _sums(value.isnan().double(), number, tasks) > 0
    return torch.where(broken, torch.nan, found)


def _sums(values: Tensor, number: Tensor, tasks: int) -> Tensor:
    total = values.new_zeros((*values.shape[:-1], tasks))
    return total.scatter_add_(-1, number, values)
