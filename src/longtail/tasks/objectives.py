"""What a model's outputs are worth: a loss to train with and a score to report, per example."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from longtail.tasks.examples import Ragged

Outputs = Any


@dataclass(frozen=True)
class Objective:
    """What a model's outputs are worth.

    ``loss`` and ``score`` give one number per example, ``[*lead, B]``: leading dimensions of the
    outputs (replicas) broadcast against targets ``[B]`` or ``[S, B]``. ``further`` names other
    scores of the same outputs, to be reported beside: ``(("top5", top5),)``.

    Outputs too large to store (a vocabulary's logits) say what a method that replays outputs keeps
    of them, ``remember(outputs)``, and how far outputs are from that, ``distance(outputs, kept)``
    ``[*lead, B]``.
    """

    loss: Callable[[Outputs, Tensor], Tensor]
    score: Callable[[Outputs, Tensor], Tensor]
    score_name: str
    higher_is_better: bool
    further: tuple[tuple[str, Callable[[Outputs, Tensor], Tensor]], ...] = ()
    remember: Callable[[Outputs], Any] | None = None
    distance: Callable[[Outputs, Any], Tensor] | None = None

    @property
    def mean_loss(self) -> Callable[[Outputs, Tensor], Tensor] | None:
        """The mean of ``loss`` over all its examples, where one operation gives it."""
        return _MEANS.get(self.loss)


def _logits(outputs: Tensor | Ragged) -> Tensor:
    if isinstance(outputs, Ragged):  # one candidate set per example: padding is never chosen
        return outputs.padded.masked_fill(~outputs.mask(), -math.inf)
    return outputs


def _cross_entropy(outputs: Tensor | Ragged, targets: Tensor) -> Tensor:
    logits = _logits(outputs)
    if logits.ndim == 2:
        return cross_entropy(logits, targets, reduction="none")
    lead = logits.shape[:-1]
    flat = cross_entropy(logits.flatten(0, -2), targets.expand(lead).flatten(), reduction="none")
    return flat.view(lead)


def _mean_cross_entropy(outputs: Tensor | Ragged, targets: Tensor) -> Tensor:
    logits = _logits(outputs)
    if logits.ndim == 2:
        return cross_entropy(logits, targets)
    return cross_entropy(logits.flatten(0, -2), targets.expand(logits.shape[:-1]).flatten())


def _accuracy(outputs: Tensor | Ragged, targets: Tensor) -> Tensor:
    return (_logits(outputs).argmax(-1) == targets).float()


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    _check_regression(outputs, targets)
    return (outputs - targets).square()


def _mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    _check_regression(outputs, targets)
    return mse_loss(outputs, targets.expand_as(outputs))


def _check_regression(outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape[-1] != targets.shape[-1]:  # [B, 1] against [B] would broadcast to [B, B]
        raise ValueError(
            f"Invalid outputs {tuple(outputs.shape)} for targets {tuple(targets.shape)}: "
            "regression needs one number per example"
        )


_MEANS = {_cross_entropy: _mean_cross_entropy, _squared_error: _mean_squared_error}

CLASSIFICATION = Objective(_cross_entropy, _accuracy, "accuracy", higher_is_better=True)
REGRESSION = Objective(_squared_error, _squared_error, "mse", higher_is_better=False)
