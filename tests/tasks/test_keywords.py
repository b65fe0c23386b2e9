"""Models that take their inputs by name train as they are."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail.methods import METHODS
from longtail.tasks import CLASSIFICATION, from_tensors
from longtail.tasks.keywords import accept_keywords
from longtail.training import POLICIES, Run, TrainSettings, train


class Output(dict):
    """As of Hugging Face: a dict whose loss may be missing."""


class Named(nn.Module):
    """Takes ids and a mask, and returns logits in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any):
        assert attention_mask is not None
        weights = attention_mask.float()[..., None]
        mean = (self.table(input_ids) * weights).sum(-2) / weights.sum(-2)
        return Output(logits=self.head(mean), hidden=mean)


class Around(nn.Module):
    """What a user had to write before."""

    def __init__(self, inner: Named) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.inner(**inputs)["logits"]


def tasks(ragged: bool = False) -> Any:
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> Any:
        ids = torch.randint(1, 11, (n, 5), generator=generator)
        lengths = torch.randint(1, 6, (n,), generator=generator)
        labels = ids[:, 0] % 3
        if ragged:
            return {"input_ids": [row[:k] for row, k in zip(ids, lengths, strict=True)]}, labels
        mask = torch.arange(5) < lengths[:, None]
        return {"input_ids": ids * mask, "attention_mask": mask.long()}, labels

    return from_tensors([(f"task {i}", part(12), part(6)) for i in range(3)], CLASSIFICATION)


def trained(model: nn.Module, method: str = "finetune", ragged: bool = False) -> Run:
    sequence = tasks(ragged)
    rule = METHODS[method](model, sequence.objective, seed=0)
    settings = TrainSettings(lr=0.01, batch_size=5)
    run = Run(sequence, model, rule, [POLICIES["continual"]], settings, seed=0)
    train(run)
    return run


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_trains_such_a_model_as_if_a_module_stood_around_it(method: str) -> None:
    torch.manual_seed(0)
    model = Named()
    around = Around(copy.deepcopy(model))
    run, other = trained(model, method), trained(around, method)
    for name, value in model.state_dict().items():
        assert torch.equal(value, around.state_dict()[f"inner.{name}"])
    assert run.matrix.last.tolist() == other.matrix.last.tolist()


def test_rows_of_different_lengths_come_with_their_mask() -> None:
    torch.manual_seed(0)
    model = Named()
    padded = copy.deepcopy(model)
    trained(model, ragged=True)
    trained(padded)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, padded.state_dict()[name])


def test_calls_of_the_users_own_are_as_they_were_and_copies_are_too() -> None:
    model = Named()
    trained(model)
    batch = {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 3)}
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert set(one(**batch)) == {"logits", "hidden"}
        assert isinstance(one(batch), Tensor)


def test_a_model_that_wants_the_dict_gets_it() -> None:
    class Whole(nn.Module):
        def forward(self, batch: dict[str, Tensor], scale: float = 1.0) -> Tensor:
            return batch["a"] * scale

    model = Whole()
    accept_keywords(model)
    assert model({"a": torch.ones(2)}).tolist() == [1.0, 1.0]


def test_one_without_logits_says_so() -> None:
    class Bare(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Any:
            return {"hidden": a}

    model = Bare()
    accept_keywords(model)
    with pytest.raises(ValueError, match="Bare returned hidden"):
        model({"a": torch.ones(1), "b": torch.ones(1)})


def test_a_model_of_hugging_face_learns() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    run = trained(model, "derpp")
    assert run.matrix.last.shape == (3,)
