"""Any causal language model of transformers, seen as an `AnswerModel`.

Rows are padded at the front, so that all answers end in the last column and the model computes
logits only there (`logits_to_keep`), whatever it does to them.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from longtail_bench.decoder.answers import AnswerModel


class TransformersLM(AnswerModel):
    """Wraps a model whose call gives `.logits`."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self._keeps = "logits_to_keep" in inspect.signature(net.forward).parameters

    @classmethod
    def from_pretrained(cls, name: str) -> TransformersLM:
        try:
            from transformers import AutoModelForCausalLM
        except ImportError:
            raise ValueError(
                f"model {name!r} needs transformers: pip install 'longtail[hf]'"
            ) from None
        try:
            net = AutoModelForCausalLM.from_pretrained(
                name, dtype=torch.float32, local_files_only=True
            )
        except (OSError, ValueError) as error:
            why = str(error).split("\n")[0]
            raise ValueError(
                f"model {name!r} cannot be loaded: it must be a folder, a .gguf file, or in the "
                f"Hugging Face cache (`hf download {name}` fetches it); {why}"
            ) from None
        return cls(net)

    def logits_at(self, ids: Tensor, lengths: Tensor, first: Tensor, count: int) -> Tensor:
        keep = count + 1
        padded, mask = pad_front(ids, lengths)
        options = {"logits_to_keep": keep} if self._keeps else {}
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = self.net(
            input_ids=padded,
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
            **options,
        ).logits[:, -keep:]
        # the first position asked for, counted from the end of the row
        where = keep - (lengths - first)[:, None] + torch.arange(count, device=ids.device)
        where = where.clamp(0, logits.shape[1] - 1)[..., None].expand(-1, -1, logits.shape[-1])
        return logits.gather(1, where)


def pad_front(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [B, T] moved to the right, and where they are real (1) or padding (0)."""
    columns = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - lengths)[:, None]
    return ids.gather(1, columns.clamp(min=0)), (columns >= 0).long()
