"""The shape of an encoder, and the parameters of a stack of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
TABLES = ("word_table", "position_table", "type_table")
MATRICES = ("qkv_weight", "out_weight", "up_weight", "down_weight")
VECTORS = (
    "qkv_bias", "out_bias", "attention_gain", "attention_shift",
    "up_bias", "down_bias", "output_gain", "output_shift",
)  # fmt: skip
LAYER = (*MATRICES, *VECTORS)  # what each layer has


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder.

    `types` is 0 for a model without token types, `relative_buckets` 0 for one without relative
    position bias; position t of a sentence is row `position_offset + t` of the table; `kind` is the
    model's name in Hugging Face's config.json.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    positions: int
    types: int = 2
    eps: float = 1e-12
    activation: str = "gelu"
    pad: int = 0
    position_offset: int = 0
    relative_buckets: int = 0
    dropout: float = 0.0
    kind: str = "bert"

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "layers", "heads", "intermediate", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"Unknown activation {self.activation!r}; known: {known}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Invalid dropout: {self.dropout}, not in [0, 1)")

    @property
    def longest(self) -> int:
        """The longest sequence there are positions for."""
        return self.positions - self.position_offset

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter of one model."""
        H, L, I = self.hidden, self.layers, self.intermediate  # noqa: E741
        found: dict[str, tuple[int, ...]] = {
            "word_table": (self.vocab, H),
            "position_table": (self.positions, H),
        }
        if self.types:
            found["type_table"] = (self.types, H)
        found |= {"embed_gain": (H,), "embed_shift": (H,)}
        if self.relative_buckets:
            found["relative"] = (self.relative_buckets, self.heads)
        return found | {
            "qkv_weight": (L, 3 * H, H), "qkv_bias": (L, 3 * H),
            "out_weight": (L, H, H), "out_bias": (L, H),
            "attention_gain": (L, H), "attention_shift": (L, H),
            "up_weight": (L, I, H), "up_bias": (L, I),
            "down_weight": (L, H, I), "down_bias": (L, H),
            "output_gain": (L, H), "output_shift": (L, H),
        }  # fmt: skip


@dataclass
class Stacked:
    """The parameters of P members with S models each; R = P * S.

    `parts` holds each parameter as the P members have it, [S, ...]. `seeds` [S] tells dropout's
    random numbers apart, None where there is no dropout.
    """

    parts: dict[str, tuple[Tensor, ...]]
    seeds: Tensor | None

    @property
    def lead(self) -> tuple[int, int]:
        word = self.parts["word_table"]
        return len(word), word[0].shape[0]

    def joined(self, name: str) -> Tensor:
        """One parameter of all models, [R, ...]."""
        parts = self.parts[name]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
