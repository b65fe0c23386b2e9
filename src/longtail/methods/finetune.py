r"""Finetune: train on the new task and nothing else.

    L(θ) = mean over the batch of ℓ(f_θ(x), y)

What it forgets is what the other methods, and the optimizer's policy, are measured against.
"""

from longtail.methods.base import Method


class Finetune(Method):
    """The plain loss, starting from the weights the task before left."""

    name = "finetune"
    capturable = stackable = True
