r"""Finetune: train on the new task and nothing else.

    L(θ) = mean over the batch of ℓ(f_θ(x), y)

What it forgets is what the other methods, and the optimizer's policy, are measured against.
"""

from torch import Tensor

from longtail.methods.base import Method
from longtail.regressions import regression_loss
from longtail.tasks import Batch


class Finetune(Method):
    """The plain loss, starting from the weights the task before left."""

    name = "finetune"
    capturable = True

    def loss(self, batch: Batch) -> Tensor:
        unread = self.loss_unread and type(self).loss is Finetune.loss  # a subclass may look at it
        weights = self.row_weights
        loss = regression_loss(self.model, self.objective, *batch, weights, unread=unread)
        if loss is None:
            return super().loss(batch)
        self.outputs = None  # nobody looks: there is no `observe`
        return loss
