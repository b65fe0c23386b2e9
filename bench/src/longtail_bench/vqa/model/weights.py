"""Checkpoints of Oscar, and of plain encoders, into a `VisionLanguage` model.

Oscar's names, without `bert.` in front: those of BERT, and

    img_embedding.weight [H, F + 6]  img_embedding.bias     regions, fresh where there is none
    LayerNorm.weight  LayerNorm.bias                        their norm; fresh beside a fresh layer
    pooler.dense.weight  pooler.dense.bias                  fresh where there is none

The classifier is fresh: its answers are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from longtail_bench.encoder.plain import Encoder
from longtail_bench.encoder.weights import locate, read_kind, read_tensors
from longtail_bench.vqa.model import NORM, VisionLanguage

_PARTS = {"region": "img_embedding", "region_norm": "LayerNorm", "pooler": "pooler.dense"}


def from_pretrained(
    source: str | Path,
    width: int,
    answers: int,
    kept: Sequence[int] | None = None,
    dropout: float | None = None,
) -> VisionLanguage:
    """A model with the weights of a checkpoint: Oscar's, or a plain encoder's.

    Args:
        source: a folder with config.json and the weights, or a name in the local cache.
        width: numbers of a region, box geometry included.
        answers: how many answers there are.
        kept: the tokens in use, numbered anew in this order, padding first; None for all.
        dropout: in place of the checkpoint's.
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
    model = VisionLanguage(encoder, width, answers, norm)
    _load(model, tensors, path)
    return model


def keep_words(encoder: Encoder, kept: Sequence[int]) -> None:
    """Only the tokens `kept` remain, numbered in that order; the first is padding."""
    table = encoder.get_parameter("word_table")
    chosen = torch.as_tensor(kept)
    if int(chosen.max()) >= len(table):
        raise ValueError(f"token {int(chosen.max())}, but the encoder has {len(table)} words")
    encoder.register_parameter("word_table", nn.Parameter(table.detach()[chosen].clone()))
    encoder.config = replace(encoder.config, vocab=len(chosen), pad=0)


def _load(model: VisionLanguage, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy what is there; a part that is there by half, or in another shape, is refused."""
    wrong: list[str] = []
    for ours, theirs in _PARTS.items():
        names = {kind: f"{theirs}.{kind}" for kind in ("weight", "bias")}
        if not any(name in tensors for name in names.values()):
            continue
        for kind, name in names.items():
            target = model.get_parameter(f"{ours}.{kind}")
            if name not in tensors:
                wrong.append(f"{name} is missing")
            elif tensors[name].shape != target.shape:
                wrong.append(f"{name} is {list(tensors[name].shape)}, not {list(target.shape)}")
            else:
                target.data.copy_(tensors[name])
    if wrong:
        raise ValueError(f"{path} does not fit the data: {'; '.join(wrong)}")
