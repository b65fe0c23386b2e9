"""Any encoder that transformers' `AutoModel` loads, behind the interface of our own.

BERT, MiniLM, RoBERTa and MPNet go to `Encoder`, which is fast and can be stacked. Others (DeBERTa,
DistilBERT, ModernBERT, ...) run as transformers wrote them, one run at a time: a study plans them
as single runs.

With `cuda_graph` their steps are captured too, as a whole. transformers' attention masks allow it:
they ask the device nothing while a graph is being captured. Where some other model waits for the
device within its forward pass, the first capture ends the run with a sentence that says so, and
`cuda_graph = false` trains it eagerly.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longtail_bench.encoder.plain import Encoder
from longtail_bench.encoder.weights import KINDS, locate, read_kind


class Shape(NamedTuple):
    """What a user of an encoder asks its config for."""

    vocab: int
    hidden: int
    types: int
    pad: int
    longest: int  # tokens it can read; where nothing limits them, more than anybody has


class AutoEncoder(nn.Module):
    """A model of transformers as an encoder: ids, mask and types [B, T] to states [B, T, H].

    Args:
        model: as `AutoModel.from_pretrained` gives it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.name: str = model.config.model_type
        self.config = _shape(model.config)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        given = {"token_type_ids": types} if types is not None and self.config.types > 1 else {}
        return self.model(input_ids=ids, attention_mask=mask.long(), **given).last_hidden_state

    def freeze_embeddings(self) -> None:
        """Leave the word embeddings (and what the model keeps beside them) as they are."""
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(False)


def can_stack(source: str | Path) -> bool:
    """Whether a checkpoint has an encoder of ours, as far as it is on this machine.

    One that is not, or cannot be read, counts as such: loading it will say what is wrong.
    """
    folder = Path(source).expanduser()
    path = folder / "config.json" if folder.is_dir() else _cached_config(str(source))
    try:
        return path is None or read_kind(path)[0] in KINDS
    except ValueError:
        return True


def _cached_config(name: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):  # no such package; not a name a model can have
        return None
    return Path(found) if isinstance(found, str) else None


def load_encoder(source: str | Path, dropout: float = 0.0) -> Encoder | AutoEncoder:
    """The encoder in a folder or of a name: ours where it has one for that kind of model."""
    folder = locate(source)
    kind, _ = read_kind(folder / "config.json")
    if kind in KINDS:
        return Encoder.from_pretrained(folder, dropout=dropout)
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise ValueError(
            f"{source} is a {kind} model, which runs through transformers: pip install longtail[hf]"
        ) from None
    try:
        config = AutoConfig.from_pretrained(folder)
        _shape(config)  # before its weights are read
        for name, value in vars(config).items():
            if "dropout" in name and type(value) in (int, float):
                setattr(config, name, dropout)
        with _no_bar():
            model = AutoModel.from_pretrained(folder, config=config, dtype=torch.float32)
    except (ValueError, OSError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{source} cannot be loaded as an encoder: {reason}") from None
    return AutoEncoder(model)


def _shape(given: Any) -> Shape:
    """From transformers' config; `ValueError` where it is not that of an encoder of text."""
    if getattr(given, "is_encoder_decoder", False):
        raise ValueError(f"{given.model_type} is an encoder with a decoder")
    for name in ("vocab_size", "hidden_size"):
        if not isinstance(getattr(given, name, None), int):
            raise ValueError(f"{given.model_type} does not read text alone: it has no {name}")
    positions = getattr(given, "max_position_embeddings", None)
    return Shape(
        vocab=given.vocab_size,
        hidden=given.hidden_size,
        types=getattr(given, "type_vocab_size", 0) or 0,
        pad=getattr(given, "pad_token_id", 0) or 0,
        longest=positions if positions and positions > 0 else sys.maxsize,  # XLNet's is -1
    )


@contextmanager
def _no_bar() -> Iterator[None]:
    """transformers shows a bar of its own, to a pipe too; ours are the run's."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
