r"""Finetune: train on the new task and nothing else.

    L(θ) = mean over the batch of ℓ(f_θ(x), y)

What it forgets is what the other methods, and the optimizer's policy, are measured against.
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from longtail.methods.base import Method
from longtail.regressions import regression_loss, write_gradients
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

    def backward(self, batch: Batch, autocast: AbstractContextManager[Any]) -> None:
        # A subclass, or whoever wraps a method's loss, may add to it or look at its value.
        own = type(self).loss is Finetune.loss and "loss" not in vars(self)
        with autocast:
            done = own and write_gradients(self.model, self.objective, *batch, self.row_weights)
        if not done:
            super().backward(batch, autocast)
            return
        self.outputs = None
