"""What a model's outputs are worth: a loss to train with and scores to report, per example."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from longtail.tasks.examples import Ragged

Outputs = Any


# A summary has other things under these names, and the further scores beside them.
_TAKEN = {"RP", "LP", "FGT", "BWT", "average", "breakdown", "diverged_at", "method_name", "policy"}
_TAKEN |= {"nonfinite_losses", "moments", "score", "scores", "tasks"}
_TAKEN |= {"validation", "validation_by_task"}


@dataclass(frozen=True)
class Score:
    """A number that says how well an example was answered, and how that number is read.

    Attributes:
        name: what summaries and tables call it.
        function: (outputs, targets) -> one number per example, ``[*lead, B]``; None for a score
            that a benchmark's own `Evaluator` gives.
        unit: of the mean over examples, as tables say it. ``"percent"`` is for shares between 0
            and 1, which tables multiply by 100.
        higher_is_better: its direction.
    """

    name: str
    function: Callable[[Outputs, Tensor], Tensor] | None
    unit: str
    higher_is_better: bool

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:  # tables ask for its metrics by a path, `name.RP`
            raise ValueError(f"Invalid name of a score: {self.name!r}, it has a dot or is empty")
        if not self.unit:
            raise ValueError(f"Invalid unit of score {self.name!r}: it is empty")


@dataclass(frozen=True)
class Objective:
    """What a model's outputs are worth.

    ``loss`` and the functions of ``scores`` give one number per example, ``[*lead, B]``: leading
    dimensions of the outputs (replicas) broadcast against targets ``[B]`` or ``[S, B]``. The first
    score is the one that tables lead with and that chooses epochs and rates; each keeps a
    direction and a unit of its own.

    Outputs too large to store (a vocabulary's logits) say what a method that replays outputs keeps
    of them, ``remember(outputs)``, and how far outputs are from that, ``distance(outputs, kept)``
    ``[*lead, B]``.
    """

    loss: Callable[[Outputs, Tensor], Tensor]
    scores: tuple[Score, ...]
    remember: Callable[[Outputs], Any] | None = None
    distance: Callable[[Outputs, Any], Tensor] | None = None

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("Invalid scores: an objective has at least one")
        check_names(self.scores)
        for score in self.scores:
            if score.function is None:
                raise ValueError(f"Invalid score {score.name!r}: an objective's has a function")

    @property
    def main(self) -> Score:
        """The score that tables lead with."""
        return self.scores[0]

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


def check_names(scores: Sequence[Score]) -> None:
    """Refuse scores that would be reported as something else: as another, or as a setting."""
    names = [score.name for score in scores]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"Invalid scores: two of them are called {name!r}")
        if place and name in _TAKEN:
            raise ValueError(
                f"Invalid name of a score: {name!r}, which a summary has for something else"
            )


_MEANS = {_cross_entropy: _mean_cross_entropy, _squared_error: _mean_squared_error}

CLASSIFICATION = Objective(
    _cross_entropy, (Score("accuracy", _accuracy, "percent", higher_is_better=True),)
)
REGRESSION = Objective(
    _squared_error, (Score("mse", _squared_error, "mse", higher_is_better=False),)
)
