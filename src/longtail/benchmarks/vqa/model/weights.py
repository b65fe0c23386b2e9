"""Checkpoints of Oscar, and of plain encoders, into a `VisionLanguage` model.

Oscar's names, without `bert.` in front: those of BERT, and

    img_embedding.weight [H, F + 6]  img_embedding.bias     regions, fresh where there is none
    LayerNorm.weight  LayerNorm.bias                        their norm; fresh beside a fresh layer
    pooler.dense.weight  pooler.dense.bias                  fresh where there is none
    classifier.0.weight  classifier.2.weight  (and .bias)   fresh unless asked for: answers differ
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longtail.benchmarks.vqa.model import NORM, VisionLanguage
from longtail.models.encoder.plain import Encoder
from longtail.models.encoder.weights import locate, read_kind, read_tensors

_PARTS = {"region": "img_embedding", "region_norm": "LayerNorm", "pooler": "pooler.dense"}
_CLASSIFIER = {"classifier.0": "classifier.0", "classifier.2": "classifier.2"}


def from_pretrained(
    source: str | Path,
    width: int,
    answers: int,
    kept: Sequence[int] | None = None,
    dropout: float | None = None,
    classifier: bool = False,
) -> VisionLanguage:
    """A model with the weights of a checkpoint: Oscar's, or a plain encoder's.

    Args:
        source: a folder with config.json and the weights, or a name in the local cache.
        width: numbers of a region, box geometry included.
        answers: how many answers there are.
        kept: the tokens in use, numbered anew in this order, padding first; None for all.
        dropout: in place of the checkpoint's.
        classifier: load the checkpoint's classifier too; it must have the same answers.
    """
    folder = locate(source)
    path, tensors = read_tensors(folder)
    given = read_kind(folder / "config.json")[1]
    encoder = Encoder.from_pretrained(folder, **({} if dropout is None else {"dropout": dropout}))
    if kept is not None:
        keep_words(encoder, kept)
    # A fresh layer gets Oscar's norm too: with it regions are found after half as many steps.
    normed = "LayerNorm.weight" in tensors or "img_embedding.weight" not in tensors
    norm = given.get("img_layer_norm_eps", NORM) if normed else None
    scale = _scale(tensors, encoder.config.hidden) if classifier else 2
    model = VisionLanguage(encoder, width, answers, norm, scale)
    _load(model, tensors, _PARTS | (_CLASSIFIER if classifier else {}), classifier, path)
    return model


def keep_words(encoder: Encoder, kept: Sequence[int]) -> None:
    """Only the tokens `kept` remain, numbered in that order; the first is padding."""
    table = encoder.get_parameter("word_table")
    chosen = torch.as_tensor(kept)
    if int(chosen.max()) >= len(table):
        raise ValueError(f"token {int(chosen.max())}, but the encoder has {len(table)} words")
    encoder.register_parameter("word_table", nn.Parameter(table.detach()[chosen].clone()))
    encoder.config = replace(encoder.config, vocab=len(chosen), pad=0)


def _scale(tensors: dict[str, Tensor], hidden: int) -> int:
    """Width of the classifier's hidden layer in units of the encoder's."""
    weight = tensors.get("classifier.0.weight")
    return 2 if weight is None else max(1, len(weight) // hidden)


def _load(
    model: VisionLanguage,
    tensors: dict[str, Tensor],
    parts: dict[str, str],
    strict: bool,
    path: Any,
) -> None:
    """Copy what is there; a part that is there by half, or in another shape, is refused."""
    wrong: list[str] = []
    for ours, theirs in parts.items():
        names = {kind: f"{theirs}.{kind}" for kind in ("weight", "bias")}
        there = [kind for kind, name in names.items() if name in tensors]
        needed = strict and theirs.startswith("classifier")
        if not there and not needed:
            continue
        for kind, name in names.items():
            target = model.get_parameter(f"{ours}.{kind}")
            if kind not in there:
                wrong.append(f"{name} is missing")
            elif tensors[name].shape != target.shape:
                wrong.append(f"{name} is {list(tensors[name].shape)}, not {list(target.shape)}")
            else:
                target.data.copy_(tensors[name])
    if wrong:
        raise ValueError(f"{path} does not fit the data: {'; '.join(wrong)}")
