"""What a continual-learning method is: at most four hooks around one optimizer step.

    for inputs, targets in batches:              # the training loop, or your own
        optimizer.zero_grad()
        loss = method.loss((inputs, targets))    # may add to the loss
        loss.backward()
        method.after_backward()                  # may add to the gradient, or project it
        optimizer.step()
        method.observe((inputs, targets))        # may store examples
    method.end_task(train)                       # may look at the task once more

Models are plain modules or `Replicas`: losses have shape [*lead, B] and every replica has its own
mean, `risk` below, so that a method written with it trains stacks as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longtail.methods.buffers import widen
from longtail.methods.saved import restore, saved
from longtail.replicas import PerReplica, lead_of
from longtail.support.random import Seed
from longtail.tasks import Batch, Examples, Objective, Outputs, Ragged, map_leaves
from longtail.tasks.examples import Packable


class Method:
    """A method that does nothing of its own; subclass it and override what you need.

    Args:
        model: what is trained; called as `model(inputs)`.
        objective: loss per example.
        seed: an int, or one per replica; names the method's own random numbers.
        settings: the fields of the class's `Settings`.
    """

    @dataclass(frozen=True)
    class Settings:
        """The method's settings, each with a line of help in its metadata."""

        def __post_init__(self) -> None:
            """Refuse impossible values. Every class asks its parents, by super(), so that the
            settings of two methods are checked where one method is made of both.
            """

    name: ClassVar[str] = ""
    # True if loss and after_backward launch the same kernels every step, up to what `self.buffer`
    # (a `buffers.Storage`) gives them, empty or not, in `draws` draws of `draw_size`.
    capturable: ClassVar[bool] = False
    draws: ClassVar[int] = 0
    # True if `after_backward` wants gradients that have been clipped, and what it adds is not.
    clips_first: ClassVar[bool] = False
    # True if runs that differ in their seed or rate may train as one stack: whatever the method
    # computes over parameters or examples is then one for each replica (`self.per_replica`). A
    # subclass says it again, and what a class that is not ours says is tried (`training.trial`).
    stackable: ClassVar[bool] = False
    # Attributes that no snapshot holds: the constructor makes them, or every step does.
    unsaved: ClassVar[tuple[str, ...]] = (
        *("model", "objective", "seed", "settings", "lead", "per_replica", "frozen"),
        *("outputs", "optimizer", "row_weights", "draw_weights"),
    )

    def __init__(
        self, model: nn.Module, objective: Objective, *, seed: Seed = 0, **settings: Any
    ) -> None:
        known = [field.name for field in dataclasses.fields(self.Settings)]
        for key in settings:
            if key not in known:
                raise ValueError(
                    f"{type(self).__name__} has no setting {key!r}; known: {', '.join(known)}"
                )
        self.model, self.objective, self.seed = model, objective, seed
        self.settings: Any = self.Settings(**settings)
        self.lead = lead_of(model)
        self.per_replica = PerReplica(self.lead)
        self.frozen = {id(p): name for name, p in model.named_parameters() if not p.requires_grad}
        if self.draws:
            self.check_seed()
        self.outputs: Outputs = None
        # Given by whoever makes both, for methods that read what the optimizer has measured.
        self.optimizer: torch.optim.Optimizer | None = None
        # Weight of each row in its replica's mean, where batches and draws are padded to a fixed
        # shape; None where all rows weigh the same.
        self.row_weights: Tensor | None = None
        self.draw_weights: Tensor | None = None

    def check_seed(self) -> None:
        """For methods that choose at random; rows of replicas would pass for rows of examples."""
        seeds = len(self.seed) if isinstance(self.seed, Tensor) else None
        copies = self.lead[1] if self.lead else None
        if seeds != copies:
            raise ValueError(f"The model has {copies} replicas and the method {seeds} seeds")

    def refuse_unfrozen(self) -> None:
        """For methods that guard weights: those that were frozen when it was made have no guard."""
        if not self.frozen:
            return
        for p in self.model.parameters():
            if p.requires_grad and id(p) in self.frozen:
                raise ValueError(
                    f"{self.frozen[id(p)]} was frozen when {type(self).__name__} was made and is "
                    "trained now: make the method first, and freeze what is not to be trained yet"
                )

    def loss(self, batch: Batch) -> Tensor:
        """The scalar to call `backward` on."""
        inputs, targets = batch
        outputs = self.model(inputs)
        self.outputs = detach(outputs)
        return self.mean_loss(outputs, targets)

    def draw_size(self, n: int) -> int:
        """How many stored examples a step on `n` new ones draws, where as many are stored."""
        return n

    def after_backward(self) -> None:
        """Called when every `p.grad` is complete (and unscaled)."""

    def observe(self, batch: Batch) -> None:
        """Called after the optimizer's step; `self.outputs` are those `loss` saw."""

    def end_task(self, train: Examples | None) -> None:
        """Called once per task, before the optimizer's boundary, with the task's examples."""

    def beside_weights(self) -> list[list[Tensor]]:
        """What belongs to the weights of a moment and goes back with them to a task's best epoch.

        A list for each policy of a stack, or one; none where there is nothing of the kind.
        """
        return []

    def state_dict(self) -> dict[str, Any]:
        """What a snapshot holds: every attribute but those in `unsaved`, see `saved.py`.

        Raises:
            ValueError: an attribute cannot be saved. A method that has one writes both functions.
        """
        return saved(self, self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        restore(self, self.model, state)

    def mean_loss(self, outputs: Outputs, targets: Any, *, drawn: bool = False) -> Tensor:
        """The objective's loss, averaged as in `risk`."""
        mean = self.objective.mean_loss
        if mean is None or (self.draw_weights if drawn else self.row_weights) is not None:
            return self.risk(self.objective.loss(outputs, targets), drawn=drawn)
        # replicas have equally many rows, so the sum of their means is a multiple of the mean
        return (
            mean(outputs, targets) * math.prod(self.lead) if self.lead else mean(outputs, targets)
        )

    def risk(self, losses: Tensor, *, drawn: bool = False) -> Tensor:
        """[*lead, B] -> the sum over replicas of each one's mean: gradients stay apart.

        The losses are those of a batch or, if `drawn`, those of a draw from `self.buffer`.
        """
        if losses.dim() != len(self.lead) + 1:  # [B, B], broadcast, would pass for B replicas
            raise ValueError(
                f"Invalid losses {tuple(losses.shape)}: an objective gives one number per example"
            )
        weights = self.draw_weights if drawn else self.row_weights
        if weights is not None:
            return (losses * weights).sum()
        return losses.mean() if losses.dim() == 1 else losses.mean(-1).sum()


def check_buffer(size: int) -> None:
    if size < 1:
        raise ValueError(f"Invalid buffer: {size}, it must hold at least one example")


def check_weight(name: str, value: float) -> None:
    """Of a term of the loss: NaN and infinity would end in a model without a single number."""
    if not 0 <= value < math.inf:
        raise ValueError(f"Invalid {name}: {value}, it must be a finite number, zero or more")


def detach(outputs: Outputs) -> Outputs:
    if isinstance(outputs, Tensor):
        return outputs.detach()

    def leaf(value: Any) -> Any:
        return Ragged(*map(Tensor.detach, value)) if isinstance(value, Ragged) else value.detach()

    return map_leaves(leaf, outputs)


def size_of(batch: Batch) -> int:
    """How many examples (per replica) a batch has."""
    return batch[1].shape[-1] if isinstance(batch[1], Tensor) else len(batch[1])


def rows_of(outputs: Outputs, start: int, n: int, dim: int) -> Outputs:
    """The outputs of `n` examples from `start` on, along the example dimension."""
    if isinstance(outputs, Tensor):
        return outputs.narrow(dim, start, n)

    def leaf(value: Any) -> Any:
        if isinstance(value, Ragged):
            return Ragged(value.padded.narrow(dim, start, n), value.lengths.narrow(dim, start, n))
        return value.narrow(dim, start, n)

    return map_leaves(leaf, outputs)


def gradients(
    parameters: Sequence[nn.Parameter], *beside: Sequence[Tensor]
) -> tuple[list[Tensor], ...]:
    """The gradients there are, and of each list beside them what belongs to these parameters.

    A parameter that took no part in the loss has none, and stays so: of zeros an optimizer would
    make steps, which decay its weight and its moments.
    """
    found = [i for i, p in enumerate(parameters) if p.grad is not None]
    grads = [parameters[i].grad for i in found]
    return grads, *([tensors[i] for i in found] for tensors in beside)  # pyright: ignore[reportReturnType]


def join(parts: list[Any], dim: int) -> Any:
    """Batches end to end along the example dimension; ragged rows are padded to one width."""

    def leaf(*values: Any) -> Any:
        if not isinstance(values[0], Ragged):
            return torch.cat(values, dim)
        width = max(value.padded.shape[dim + 1] for value in values)
        padded = [widen(value.padded, dim + 1, width) for value in values]
        lengths = torch.cat([value.lengths for value in values], dim)
        joined = Ragged(torch.cat(padded, dim), lengths)
        rooms = [v.room for v in values if isinstance(v, Packable) and v.room is not None]
        return Packable.of(joined, sum(rooms)) if len(rooms) == len(values) else joined

    return map_leaves(leaf, *parts)
