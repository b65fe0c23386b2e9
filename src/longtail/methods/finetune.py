r"""Finetune: train on the new task and nothing else.

    L(θ) = mean over the batch of ℓ(f_θ(x), y)

What it forgets is what the other methods, and the optimizer's policy, are measured against.
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from longtail.methods.base import Method
from longtail.replicas.regression import regression_loss, write_gradients
from longtail.tasks import Batch


class Finetune(Method):
    """The plain loss, starting from the weights the task before left."""

    name = "finetune"
    capturable = True

    def loss(self, batch: Batch) -> Tensor:
        loss = regression_loss(self.model, self.objective, *batch, self.row_weights)
        if loss is None:
            return super().loss(batch)
        self.outputs = None  # nobody looks: there is no `observe`
        return loss


def backward(method: Method, batch: Batch, autocast: AbstractContextManager[Any]) -> None:
    """The gradients of ``method.loss(batch)``, whose value nobody reads."""
    # A subclass, or whoever wraps a method's loss, may add to it or look at its value.
    plain = type(method).loss is Finetune.loss and "loss" not in vars(method)
    with autocast:
        if plain and write_gradients(method.model, method.objective, *batch, method.row_weights):
            method.outputs = None
            return
        loss = method.loss(batch)
    loss.backward()
