"""What the gradient of a batch is computed by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from longtail.methods import Finetune, Method
from longtail.replicas.regression import RegressionGradient
from longtail.tasks import Batch

# Called as `gradient(batch, share)`: add that of `share` times the loss to every `p.grad`.
Gradient = Callable[[Batch, float], None]


def choose_gradient(
    method: Method, autocast: AbstractContextManager[Any], scaler: torch.amp.GradScaler
) -> Gradient:
    """How a run gets the gradient of `method.loss`, decided once, when the run is built.

    By autograd; but where nobody reads the loss or the outputs of linear models with squared
    errors, their gradient is written down without.
    """

    def by_autograd(batch: Batch, share: float) -> None:
        with autocast:
            loss = method.loss(batch)
        scaler.scale(loss if share == 1.0 else loss * share).backward()

    kind = type(method)
    unread = kind.loss is Method.loss and kind.observe is Method.observe
    if not (isinstance(method, Finetune) and unread) or not RegressionGradient.applies(
        method.model, method.objective
    ):
        return by_autograd
    write = RegressionGradient(method.model)  # pyright: ignore[reportArgumentType]

    def written(batch: Batch, share: float) -> None:
        with autocast:  # whoever wraps this method's loss wants to see it
            done = "loss" not in vars(method) and write(*batch, method.row_weights, share)
        if done:
            method.outputs = None
        else:
            by_autograd(batch, share)

    return written
