"""The methods in a loop that is not ours.

A framework's loop asks for a loss, walks back through it and steps. `MethodInLoop` gives it the
method's loss, adds to the gradients before the step, stores examples after it, and looks at the
task's data at its end. What a method knows is kept beside the memory from one week to the next.

The loss is the model's own. Methods need it for each example, of which a model says nothing, so it
is computed from the logits (cross-entropy, for language models the mean over an example's tokens)
and compared with the model's for single examples of the first batch; where they differ, an
objective must be given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longtail.methods import DERPlusPlus, Method
from longtail.support.files import replacing
from longtail.tasks import CLASSIFICATION, Objective, Score, leaves, map_leaves

FILE_NAME = "longtail_method.pt"
MakeMethod = Callable[..., Method]


class Logits(nn.Module):
    """A model that is called with keywords, as one that maps a batch of inputs to its logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.module(**inputs).logits


def _token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next token, averaged over each example's own."""
    logits, labels = outputs[:, :-1], targets[:, 1:]
    losses = cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none")
    known = labels != -100
    return (losses * known).sum(1) / known.sum(1).clamp(min=1)


LANGUAGE_MODEL = Objective(
    _token_loss, (Score("loss", _token_loss, "nats", higher_is_better=False),)
)


def own_objective(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> Objective:
    """The model's loss for each example, as far as a few examples can tell.

    Raises:
        ValueError: if the model's own loss is another.
    """
    objective, training = CLASSIFICATION, model.training
    model.eval()
    try:
        with torch.no_grad():
            for i in range(min(2, len(labels))):
                row = {key: value[i : i + 1] for key, value in inputs.items()}
                found = model(**row, labels=labels[i : i + 1])
                objective = LANGUAGE_MODEL if found.logits.dim() == 3 else CLASSIFICATION
                mine = objective.loss(found.logits, labels[i : i + 1])[0]
                if not torch.allclose(mine.float(), found.loss.float(), rtol=1e-2, atol=1e-4):
                    raise ValueError(
                        f"The model's loss of an example is {float(found.loss):.4f} and the "
                        f"cross-entropy of its logits {float(mine):.4f}: give an objective="
                    )
    except (TypeError, IndexError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"The model's loss is no loss of its logits ({error}): give objective="
        ) from None
    finally:
        model.train(training)
    return objective


class MethodInLoop:
    """A method whose hooks are called by a framework's callback.

    Args:
        method: built on the model that the loop trains.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._seen: list[tuple[Any, Any]] = []  # the batches of this step, and their outputs
        self._shapes: list[torch.Size] | None = None

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        self._check_width(inputs, targets)
        loss = self.method.loss((inputs, targets))
        outputs = self.method.outputs
        large = isinstance(outputs, Tensor) and outputs.dim() > 2
        if large and isinstance(self.method, DERPlusPlus) and not self.method.objective.remember:
            raise ValueError(
                f"DERPlusPlus stores the model's outputs, {tuple(outputs.shape[1:])} numbers an "
                "example here: give an objective= with remember and distance, or take Reservoir"
            )
        self._seen.append(((inputs, targets), outputs))
        return loss

    def after_backward(self) -> None:
        self.method.after_backward()

    def observe(self) -> None:
        """After the optimizer's step: the batches it was made of."""
        for batch, outputs in self._seen:
            self.method.outputs = outputs
            self.method.observe(map_leaves(Tensor.detach, batch))
        self._seen.clear()

    def end_task(self, examples: RowsOfDataset | None) -> None:
        self.method.end_task(examples)

    def save(self, path: Path, week: str | None = None) -> None:
        """Write what the method knows; ``week`` is what the last task is called."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            torch.save({"week": week, "method": self.method.state_dict()}, file)

    def load(self, path: Path | None) -> bool:
        """Whether there was something to load."""
        if path is None or not path.is_file():
            return False
        self.method.load_state_dict(_read(path)["method"])
        return True

    def _check_width(self, inputs: Any, targets: Any) -> None:
        shapes = [leaf.shape[1:] for leaf in leaves((inputs, targets))]
        if self._shapes is None:
            self._shapes = shapes
        if self.method.draws and shapes != self._shapes:
            raise ValueError(
                f"{type(self.method).__name__} stores rows of one length, and batches have "
                f"{[tuple(s) for s in self._shapes]} and {[tuple(s) for s in shapes]}: pad to a "
                "fixed length (padding='max_length')"
            )


def week_of_method(path: Path) -> str | None:
    """What the last task in the file of a method was called; None where nobody said."""
    return _read(path)["week"] if path.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        told = torch.load(path, weights_only=True)
    except Exception as error:  # of a damaged archive or pickle torch raises nearly anything
        said = " ".join(str(error).split())
        raise ValueError(f"Cannot load {path}: {type(error).__name__}: {said}") from None
    if not isinstance(told, dict) or told.keys() != {"week", "method"}:
        raise ValueError(f"Cannot load {path}: it holds nothing that a method knows")
    return told


class RowsOfDataset:
    """A map-style data set and its collator, as the examples that a method asks for.

    Args:
        dataset: has `len` and takes a number.
        collate: makes a batch of a list of its items.
        split: takes a batch apart into inputs and targets.
        device: where batches go.
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        collate: Callable[[list[Any]], Any],
        split: Callable[[Any], tuple[Any, Any]],
        device: torch.device | str,
    ) -> None:
        self.dataset, self.collate, self.split, self.device = dataset, collate, split, device

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Tensor) -> tuple[Any, Any]:
        batch = self.collate([self.dataset[int(i)] for i in index])
        return map_leaves(lambda leaf: leaf.to(self.device), self.split(batch))

    def to(self, device: torch.device | str) -> RowsOfDataset:
        return RowsOfDataset(self.dataset, self.collate, self.split, device)


def inputs_and_labels(batch: Any) -> tuple[dict[str, Tensor], Tensor]:
    """A batch of the Trainer taken apart."""
    inputs = dict(batch)
    if "labels" not in inputs:
        known = ", ".join(inputs)
        raise ValueError(f"A method needs labels, and the batch has {known}")
    labels = inputs.pop("labels")
    return inputs, labels
