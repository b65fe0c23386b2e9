r"""Language models that answer: trained on "context question answer", the loss on the answer.

A batch is ``{"ids": Ragged, "answer": Ragged}``: token ids of the whole text ``x``, and of the
answer ``y`` (its end token included) with which the text ends. With logits f(x) at the |y|
positions before each answer token, and nothing computed at the others,

    ℓ(x, y) = 1/|y| Σ_j -log softmax(f_j(x))[y_j]

What DER++ keeps of the logits are the `TOP` largest at each answer position, and their tokens:

    distance(x, z) = 1/|y| Σ_j 1/TOP Σ_{k in top z_j} (f_jk(x) - z_jk)²

so that a buffer of 500 answers takes megabytes instead of gigabytes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longtail.tasks import Objective, Ragged, Score

TOP = 32  # logits kept of each answer position


class AnswerModel(nn.Module):
    """A causal language model seen as something that gives the logits of answers."""

    @abstractmethod
    def logits_at(self, ids: Tensor, lengths: Tensor, first: Tensor, count: int) -> Tensor:
        """Logits [B, count, V] at `count` positions from `first` [B] on.

        Args:
            ids: [B, T], padded at the end with any token.
            lengths: how many are real, [B].
            first: the first position asked for, [B].
            count: how many positions; those past the end of a row may hold anything.
        """

    def forward(self, inputs: dict[str, Ragged]) -> dict[str, Any]:
        """{"logits": Ragged [B, A, V], "answer": [B, A]}: what was said, what should have been."""
        (ids, lengths), (answer, sizes) = inputs["ids"], inputs["answer"]
        logits = self.logits_at(ids, lengths, lengths - sizes - 1, answer.shape[-1])
        return {"logits": Ragged(logits, sizes), "answer": answer}


def answer_loss(outputs: dict[str, Any], targets: Any) -> Tensor:
    """Mean cross-entropy over the answer's tokens, one number an example [B]."""
    logits, answer = outputs["logits"], outputs["answer"]
    losses = cross_entropy(
        logits.padded.flatten(0, 1).float(), answer.flatten().long(), reduction="none"
    )
    return (losses.view(answer.shape) * logits.mask()).sum(-1) / logits.lengths


def all_right(outputs: dict[str, Any], targets: Any) -> Tensor:
    """1 where every answer token is the most likely one, given the right ones before it [B]."""
    logits = outputs["logits"]
    right = logits.padded.argmax(-1) == outputs["answer"]
    return (right | ~logits.mask()).all(-1).float()


def remember(outputs: dict[str, Any]) -> dict[str, Ragged]:
    """The largest logits of each answer position and their tokens."""
    logits, lengths = outputs["logits"]
    values, tokens = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
    return {"values": Ragged(values, lengths), "tokens": Ragged(tokens.int(), lengths)}


def distance(outputs: dict[str, Any], kept: dict[str, Ragged]) -> Tensor:
    """Mean squared difference to the kept logits, one number an example [B]."""
    logits = outputs["logits"]
    width = min(logits.padded.shape[1], kept["values"].padded.shape[1])
    tokens = kept["tokens"].padded[:, :width].long()
    now = logits.padded[:, :width].gather(-1, tokens)
    squares = (now - kept["values"].padded[:, :width]).float().square().mean(-1)
    return (squares * logits.mask()[:, :width]).sum(-1) / logits.lengths


ANSWERS = Objective(
    answer_loss,
    (Score("score", all_right, "percent", higher_is_better=True),),
    remember=remember,
    distance=distance,
)


def on_device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
