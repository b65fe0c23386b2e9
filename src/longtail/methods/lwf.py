r"""Learning without Forgetting (Li and Hoiem, 2016; arXiv 1606.09282).

    L(θ) = L_task(θ) + λ mean over the batch of D(f_θ*(x), f_θ(x))     θ*: the last task's weights
    D(z*, z) = - Σ_k p_k log q_k,    p = softmax(z* / T),  q = softmax(z / T)

The model that the last task left answers the new inputs as well, and its answers, softened by the
temperature T, are learned beside the labels: nothing of old data is kept, but a second forward pass
is made of every batch. Where an example's output is one number, D is (z - z*)²; where the objective
has a distance between outputs (`Objective.distance`), it is that.

A model whose head belongs to one task at a time (`TaskModel`) has no answer of the last task to new
inputs but through that task's head: old and new weights answer with the old head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from longtail.methods.base import Method, check_weight, detach
from longtail.replicas import lead_of, task_parameters
from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import Batch, Examples, Outputs, Ragged


class LwF(Method):
    """The last task's model answers the new inputs, and its answers are learned as well."""

    name = "lwf"
    capturable = stackable = True
    unsaved = ("names", "heads", "counts")

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        strength: float = field(default=1.0, metadata={"help": "weight λ of the old answers"})
        temperature: float = field(default=2.0, metadata={"help": "T, which softens the answers"})

        def __post_init__(self) -> None:
            super().__post_init__()
            check_weight("strength", self.strength)
            if not self.temperature > 0:
                raise ValueError(f"Invalid temperature: {self.temperature}, it must be above zero")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        passing = {id(p) for p in task_parameters(self.model)}
        named = list(self.model.named_parameters())
        self.names = [name for name, p in named if p.requires_grad]
        self.present = [p.detach() for _, p in named if p.requires_grad]  # the same storage
        self.heads = [name for name, p in named if id(p) in passing]
        if not self.heads:  # of a TaskModel they are the heads of all tasks, and have to be today's
            self.names += [name for name, _ in self.model.named_buffers()]
            self.present += list(self.model.buffers())
        self.counts = dict(_statistics(self.model))
        self.past = [tensor.clone() for tensor in self.present]
        # λ once there is a past; a tensor, which a captured step reads anew.
        self.weight = self.present[0].new_zeros(())

    def loss(self, batch: Batch) -> Tensor:
        inputs, targets = batch
        outputs = self.model(inputs)
        self.outputs = detach(outputs)
        past = dict(zip(self.names, self.past, strict=True))
        with torch.no_grad(), evaluation_mode(self.model):
            old = functional_call(self.model, past, (inputs,))
        again = outputs
        if self.heads:  # of running statistics a copy: the batch has been counted once
            counted = {name: kept.clone() for name, kept in self.counts.items()}
            heads = {name: past[name] for name in self.heads}
            again = functional_call(self.model, heads | counted, (inputs,))
        distance = self.risk(self._distance(again, old))
        return self.mean_loss(outputs, targets) + self.weight * distance

    def _distance(self, outputs: Outputs, old: Outputs) -> Tensor:
        """D for each example, [*lead, B]."""
        objective = self.objective
        if objective.distance is not None:
            kept = objective.remember(old) if objective.remember else old
            return objective.distance(outputs, kept)
        rows = len(lead_of(self.model)) + 1
        if isinstance(outputs, Tensor) and (
            outputs.dim() == rows or outputs.shape[-1] == 1 or not objective.main.higher_is_better
        ):  # a number, or numbers whose score is an error, and no classes
            away = (outputs - old).square()
            return away.flatten(rows).mean(-1) if away.dim() > rows else away
        mask = outputs.mask() if isinstance(outputs, Ragged) else None
        new, then = (z.padded if isinstance(z, Ragged) else z for z in (outputs, old))
        wide = torch.promote_types(new.dtype, torch.float32)
        p, log_q = (z.to(wide) / self.settings.temperature for z in (then, new))
        if mask is not None:  # an example's own candidates
            p, log_q = (z.masked_fill(~mask, -torch.inf) for z in (p, log_q))
        p, log_q = p.softmax(-1), log_q.log_softmax(-1)
        if mask is not None:
            log_q = log_q.masked_fill(~mask, 0.0)  # 0 times minus infinity
        losses = -(p * log_q).sum(-1)
        return losses.flatten(rows).mean(-1) if losses.dim() > rows else losses

    def end_task(self, train: Examples | None) -> None:
        if train is None:
            return
        for kept, tensor in zip(self.past, self.present, strict=True):
            kept.copy_(tensor)
        self.weight.fill_(self.settings.strength)


def _statistics(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What normalisation layers count in training, by name; they write to it in place."""
    for prefix, module in model.named_modules():
        if getattr(module, "track_running_stats", False):
            yield from module.named_buffers(prefix)
