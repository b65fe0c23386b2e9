r"""Sentence matching: does the second sentence belong to the first? One score per pair.

    [CLS] sentence with its target marked [SEP] word : gloss [SEP]
    z = w_2 tanh(W_1 encode(ids)[CLS] + b_1) + b_2

(Huang et al., 2019: GlossBERT, whose classifier is BERT's: a tanh layer as wide as the encoder,
then one number.) The prediction for a target is its candidate with the largest z; the loss is
binary cross-entropy per pair. The tanh layer is the checkpoint's pooler, where it has one, as in
GlossBERT. The number of parameters does not depend on the tasks.

The last product is in fp32 under autocast too: scores rounded to bf16 would tie candidates that
differ by less than half a percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from longtail.tasks.examples import Packable, Ragged
from longtail_bench.encoder.auto import AutoEncoder, load_encoder
from longtail_bench.encoder.plain import Encoder
from longtail_bench.encoder.weights import locate, read_pooler


class SentencePairs(nn.Module):
    """Token ids, `Ragged` [B, T] or a tensor padded with the encoder's `pad`, to scores [B].

    Args:
        encoder: an `Encoder`, or an `AutoEncoder` around any other model.
        separator: the id of [SEP]. Tokens after the first one are the second sentence: their type
            is 1, where the encoder has types.
        dropout: of the vector that the classifier sees, in training.

    Example:
        >>> from longtail_bench.encoder.plain import EncoderConfig
        >>> config = EncoderConfig(30, hidden=8, layers=2, heads=2, intermediate=16, positions=12)
        >>> model = SentencePairs(Encoder(config), separator=3)
        >>> model(torch.tensor([[2, 7, 3, 9, 3, 0], [2, 7, 3, 5, 6, 3]])).shape
        torch.Size([2])
    """

    def __init__(
        self, encoder: Encoder | AutoEncoder, separator: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= separator < encoder.config.vocab:
            raise ValueError(
                f"Invalid separator: {separator}, the encoder has {encoder.config.vocab} tokens"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"Invalid dropout: {dropout}, not in [0, 1)")
        self.encoder, self.separator, self.dropout = encoder, separator, dropout
        self.inner = nn.Linear(encoder.config.hidden, encoder.config.hidden)
        self.outer = nn.Linear(encoder.config.hidden, 1)
        for layer in (self.inner, self.outer):
            nn.init.normal_(layer.weight, std=0.02)  # as BERT does
            nn.init.zeros_(layer.bias)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, separator: int, dropout: float = 0.0, frozen: bool = False
    ) -> SentencePairs:
        """Any encoder that `AutoModel` loads, by folder or name; the last layer is new.

        So is the tanh layer, unless the checkpoint has one over its first token (BERT's pooler).

        Args:
            dropout: of encoder and classifier.
            frozen: leave the embeddings as they are in training.
        """
        encoder = load_encoder(source, dropout)
        if frozen:
            encoder.freeze_embeddings()
        model = cls(encoder, separator, dropout)
        pooler = read_pooler(locate(source), encoder.config.hidden)
        if pooler is not None:
            with torch.no_grad():
                for own, given in zip(model.inner.parameters(), pooler, strict=True):
                    own.copy_(given)
        return model

    def packs(self) -> bool:
        """Whether it computes pairs without their padding: under the autocast of now, here."""
        return isinstance(self.encoder, Encoder) and self.encoder.packs(self.inner.weight, 1)

    def forward(self, inputs: Ragged | Tensor) -> Tensor:
        if isinstance(self.encoder, AutoEncoder):
            ids, mask, types = self._read(inputs)
            cls = self.encoder(ids, mask, types)[None, :, 0]
        else:
            cls = self._encode(self.encoder.lifted(), _lift(inputs))
        return self._classify([p[None] for p in self._head()], cls)[0]

    @classmethod
    def forward_stacked(cls, members: Sequence[SentencePairs], inputs: Ragged | Tensor) -> Tensor:
        """Inputs [S, B, T] to scores [P, S, B]."""
        first = members[0]
        if isinstance(first.encoder, AutoEncoder):
            raise ValueError(
                f"{first.encoder.name} runs through transformers and cannot be stacked: "
                "`stack = false` in the study file trains its runs one by one"
            )
        stacked = first.encoder.stacked_parameters([member.encoder for member in members])
        found = first._encode(stacked, inputs)
        head = [torch.cat(parts) for parts in zip(*(m._head() for m in members), strict=True)]
        return first._classify(head, found).unflatten(0, stacked.lead)

    def _head(self) -> list[Tensor]:
        # not get_parameter: functional_call puts plain tensors in their place
        layers = (self.inner, self.outer)
        return [value for layer in layers for value in (layer.weight, layer.bias)]

    def _encode(self, stacked: Any, inputs: Ragged | Tensor) -> Tensor:
        """[CLS] after all layers, [R, B, H]."""
        assert isinstance(self.encoder, Encoder)
        ids, mask, types = self._read(inputs)
        packs = self.encoder.packs(ids, ids.shape[-1])
        if packs and isinstance(inputs, Packable) and inputs.room is not None:
            return self.encoder.encode_packed(stacked, ids, inputs.lengths, types, inputs.room)
        hidden = self.encoder.embed(stacked, ids, types)
        return self.encoder.encode(stacked, hidden, mask, first=True)

    def _read(self, inputs: Ragged | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids, mask and types, all [..., B, T]."""
        config = self.encoder.config
        ids = inputs.padded if isinstance(inputs, Ragged) else inputs
        mask = inputs.mask() if isinstance(inputs, Ragged) else ids != config.pad
        if config.types < 2:
            return ids, mask, None
        ends = (ids == self.separator).to(torch.int32)
        return ids, mask, (ends.cumsum(-1, dtype=torch.int32) > ends).to(ids.dtype)

    def _classify(self, head: Sequence[Tensor], cls: Tensor) -> Tensor:
        """[R, B, H] to [R, B]; `head` is [R, ...] each."""
        inner, inner_bias, outer, outer_bias = head
        cls = F.dropout(cls, self.dropout, self.training)
        hidden = torch.baddbmm(inner_bias[:, None], cls, inner.transpose(1, 2)).float().tanh()
        with torch.autocast(cls.device.type, enabled=False):
            return (hidden * outer).sum(-1) + outer_bias


def _lift(inputs: Ragged | Tensor) -> Ragged | Tensor:
    if isinstance(inputs, Ragged):
        lifted = Ragged(inputs.padded[None], inputs.lengths[None])
        return Packable.of(lifted, inputs.room) if isinstance(inputs, Packable) else lifted
    return inputs[None]
