"""Any encoder that transformers' `AutoModel` loads, behind the interface of our own.

BERT, MiniLM, RoBERTa and MPNet go to `Encoder`, which is fast and can be stacked. Others (DeBERTa,
ModernBERT, ...) run as transformers wrote them: eager, one run at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail.models.encoder import Encoder
from longtail.models.encoder_weights import KINDS, locate


class Shape(NamedTuple):
    """What a user of an encoder asks its config for."""

    vocab: int
    hidden: int
    types: int
    pad: int
    longest: int


class AutoEncoder(nn.Module):
    """A model of transformers as an encoder: ids, mask and types [B, T] to states [B, T, H].

    Args:
        model: as `AutoModel.from_pretrained` gives it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        given = model.config
        self.name: str = given.model_type
        self.config = Shape(
            vocab=given.vocab_size,
            hidden=given.hidden_size,
            types=getattr(given, "type_vocab_size", 0) or 0,
            pad=given.pad_token_id or 0,
            longest=given.max_position_embeddings,
        )

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        given = {"token_type_ids": types} if types is not None and self.config.types > 1 else {}
        return self.model(input_ids=ids, attention_mask=mask.long(), **given).last_hidden_state

    def freeze_embeddings(self, frozen: bool = True) -> None:
        """Leave the word embeddings (and what the model keeps beside them) as they are."""
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(not frozen)

    def save_pretrained(self, folder: str | Path) -> None:
        self.model.save_pretrained(folder)


def load_encoder(source: str | Path, dropout: float = 0.0) -> Encoder | AutoEncoder:
    """The encoder in a folder or of a name: ours where it has one for that kind of model."""
    folder = locate(source)
    try:
        given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be read: {error}") from None
    if given.get("model_type") in KINDS:
        return Encoder.from_pretrained(folder, dropout=dropout)
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise ValueError(
            f"{source} is a {given.get('model_type')} model, which runs through transformers: "
            "pip install longtail[hf]"
        ) from None
    try:
        config = AutoConfig.from_pretrained(folder)
        for name in vars(config):
            if "dropout" in name and isinstance(getattr(config, name), float):
                setattr(config, name, dropout)
        model = AutoModel.from_pretrained(folder, config=config, dtype=torch.float32)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"{source} cannot be loaded as an encoder: {error}") from None
    return AutoEncoder(model)
