r"""The encoder of the BERT family (BERT, MiniLM, RoBERTa, MPNet), for one model or a stack of them.

    h = norm(word[id] + position[t] + type[id's sentence])
    h = norm(h + W_o attention(W_qkv h + b_qkv) + b_o)       softmax(q k' / √d + bias) v
    h = norm(h + W_2 gelu(W_1 h + b_1) + b_2)                both lines once a layer

Parameters are stacked over the layers ([L, 3H, H] for W_qkv), so a model is 17 tensors however deep
it is. The functional core, `embed` and `encode`, has a leading R on every parameter and every
hidden state: R = P * S models of a `Replicas` stack run as one program, one launch a layer, and a
plain model is the case R = 1.

Under bf16 autocast only the operands of matrix products are bf16. Parameters, LayerNorm, softmax,
biases and the residual stream are fp32, so an update of 1e-6 is not lost in a weight's rounding. On
a CUDA device with Triton, bf16 runs through the kernels of `fused.py`; everything else through
the plain operations below, which are the ground truth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from longtail_bench.encoder import fused
from longtail_bench.encoder.config import ACTIVATIONS, LAYER, TABLES, EncoderConfig, Stacked
from longtail_bench.encoder.weights import locate, read_config, read_weights

__all__ = ["Encoder", "EncoderConfig", "Stacked"]


class Encoder(nn.Module):
    """One model, or with S models stacked into its parameters a member of `Replicas`.

    Args:
        config: the shape; parameters are initialised as BERT's are, `N(0, 0.02²)`.

    Example:
        >>> config = EncoderConfig(30, hidden=8, layers=2, heads=2, intermediate=16, positions=12)
        >>> ids = torch.tensor([[2, 7, 3, 0]])
        >>> Encoder(config)(ids, ids != 0).shape
        torch.Size([1, 4, 8])
    """

    seed: Tensor
    passes: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        for name, shape in config.shapes().items():
            self.register_parameter(name, nn.Parameter(_initial(name, shape)))
        if config.pad < config.vocab:
            self.get_parameter("word_table").data[config.pad] = 0
        # The n-th training pass of this model has its own dropout, in snapshots too.
        self.register_buffer("seed", torch.randint(1 << 48, ()))
        self.register_buffer("passes", torch.tensor(0))

    @classmethod
    def from_pretrained(cls, source: str | Path, **overrides: Any) -> Encoder:
        """A checkpoint in Hugging Face's format: a folder, or a name in the local cache.

        Args:
            source: a folder with config.json and model.safetensors or pytorch_model.bin.
            overrides: fields of `EncoderConfig` to change: `dropout=0.0`.
        """
        folder = locate(source)
        config = replace(read_config(folder), **overrides)
        with torch.device("meta"):
            encoder = cls(config)
        encoder.to_empty(device="cpu")
        encoder.load_state_dict(read_weights(folder, config), strict=False)
        encoder.seed.copy_(torch.randint(1 << 48, ()))
        encoder.passes.zero_()
        return encoder

    def freeze_embeddings(self) -> None:
        """Leave the word, position and type embeddings as they are in training."""
        for name in TABLES:
            if name in self.config.shapes():
                self.get_parameter(name).requires_grad_(False)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, H] of token ids [B, T]; `mask` is True where a token is real."""
        stacked = self.lifted()
        hidden = self.embed(stacked, ids[None], None if types is None else types[None])
        return self.encode(stacked, hidden, mask[None])[0]

    @classmethod
    def forward_stacked(cls, members: Sequence[Encoder], inputs: tuple[Tensor, ...]) -> Tensor:
        """Inputs (ids [S, B, T], mask [S, B, T], ...) to hidden states [P, S, B, T, H]."""
        ids, mask, *rest = inputs
        stacked = members[0].stacked_parameters(members)
        hidden = members[0].encode(stacked, members[0].embed(stacked, ids, *rest), mask)
        return hidden.unflatten(0, stacked.lead)

    def parameter(self, name: str) -> Tensor:
        """What stands for a parameter now: under `functional_call` a plain tensor."""
        return getattr(self, name)

    def lifted(self) -> Stacked:
        """The parameters of this one model as a stack with R = 1."""
        return self.stacked_parameters([_Lifted(self)])

    def stacked_parameters(self, members: Sequence[Any]) -> Stacked:
        """The parameters of `members`, [S, ...] each, as a stack; counts a pass in training."""
        parts = {name: tuple(m.parameter(name) for m in members) for name in self.config.shapes()}
        seeds = None
        if self.training and self.config.dropout:
            seeds = (members[0].seed + members[0].passes).reshape(-1)
            for member in members:
                member.passes.add_(1)
        return Stacked(parts, seeds)

    def embed(self, stacked: Stacked, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """Embeddings [R, B, T, H] of ids [S, B, T], the same for all P members.

        Args:
            types: rows of the type table [S, B, T]; 0 by default.
        """
        width, drop = ids.shape[-1], self.config.dropout if stacked.seeds is not None else 0.0
        _check_length(self.config, width)
        if fused.usable(self.config, ids, width):
            return F.dropout(fused.embed(self.config, stacked, ids, types), drop)
        start = self.config.position_offset
        rows = {
            "word_table": ids,
            "position_table": torch.arange(start, start + width, device=ids.device).expand(
                ids.shape
            ),
            "type_table": torch.zeros_like(ids) if types is None else types,
        }
        hidden = sum(
            torch.cat([_lookup(table, rows[name]) for table in tables])
            for name, tables in stacked.parts.items()
            if name in TABLES
        )
        assert isinstance(hidden, Tensor)
        gain, shift = stacked.joined("embed_gain"), stacked.joined("embed_shift")
        hidden = _norm(hidden, gain, shift, self.config.eps)
        return F.dropout(hidden, drop)

    def encode(self, stacked: Stacked, hidden: Tensor, mask: Tensor, first: bool = False) -> Tensor:
        """All layers: hidden [R, B, T, H], mask [S, B, T] (True for a real token) to [R, B, T, H].

        Hidden states of masked positions are finite and meaningless; nothing depends on them.

        Args:
            first: only what a classifier on [CLS] reads, [R, B, H]: after attention, the last layer
                then has one position a sequence in place of T.
        """
        R, B, T, H = hidden.shape
        if B == 0:  # of no sequences torch's attention makes None on CUDA
            return hidden[:, :, 0] if first else hidden
        heads, drop = self.config.heads, self.config.dropout if stacked.seeds is not None else 0.0
        bias = self._relative_bias(stacked, T)  # [R, heads, T, T] or None
        if fused.usable(self.config, hidden, T):
            return fused.encode(self.config, stacked, hidden, mask, bias, first)
        layers = zip(*(stacked.joined(name).unbind(1) for name in LAYER), strict=True)
        attend = mask.expand(-1, B, T).repeat(R // mask.shape[0], 1, 1).flatten(0, 1)[:, None, None]
        if bias is not None:
            bias = bias.repeat_interleave(B, 0).masked_fill(~attend, -math.inf)
        hidden = hidden.flatten(1, 2)
        for layer, values in enumerate(layers):
            p = dict(zip(LAYER, values, strict=True))
            qkv = _linear(hidden, p["qkv_weight"], p["qkv_bias"])
            q, k, v = qkv.view(R * B, T, 3, heads, H // heads).permute(2, 0, 3, 1, 4)
            if bias is not None:
                attend = bias.to(q.dtype)
            if first and layer == self.config.layers - 1:
                q, hidden = q[:, :, :1], hidden[:, ::T]
                attend = attend[:, :, :1]
            mixed = F.scaled_dot_product_attention(q, k, v, attend, dropout_p=drop)
            mixed = mixed.transpose(1, 2).reshape(hidden.shape)
            out = F.dropout(_linear(mixed, p["out_weight"], p["out_bias"]), drop)
            hidden = _norm(hidden + out, p["attention_gain"], p["attention_shift"], self.config.eps)
            inner = ACTIVATIONS[self.config.activation](
                _linear(hidden, p["up_weight"], p["up_bias"])
            )
            out = F.dropout(_linear(inner, p["down_weight"], p["down_bias"]), drop)
            hidden = _norm(hidden + out, p["output_gain"], p["output_shift"], self.config.eps)
        return hidden if first else hidden.unflatten(1, (B, T))

    def packs(self, x: Tensor, tokens: int) -> bool:
        """Whether `encode_packed` takes sequences of so many tokens, where the tensor x lies."""
        return fused.usable(self.config, x, tokens)

    def encode_packed(
        self, stacked: Stacked, ids: Tensor, lengths: Tensor, types: Tensor | None, rows: int
    ) -> Tensor:
        """What `embed` and `encode(first=True)` give, [R, B, H], computed without padding.

        Args:
            ids: [S, B, T], of which the first `lengths` [S, B] of a row count, one at least.
            types: rows of the type table [S, B, T]; 0 by default.
            rows: `fused.packed_rows` of the most tokens that a replica has. The host knows it: to
                ask the device would be a wait.
        """
        _check_length(self.config, ids.shape[-1])
        packed = fused.pack(self.config, stacked.lead[1], ids, types, lengths, rows)
        drop = self.config.dropout if stacked.seeds is not None else 0.0
        hidden = F.dropout(fused.embed_packed(self.config, stacked, packed), drop)
        bias = self._relative_bias(stacked, packed.width)
        return fused.encode_packed(self.config, stacked, hidden, packed, bias)

    def _relative_bias(self, stacked: Stacked, width: int) -> Tensor | None:
        """MPNet's bias [R, heads, T, T] for attention from t (rows) to u, by bucket of u - t."""
        if not self.config.relative_buckets:
            return None
        table = stacked.joined("relative").transpose(1, 2)  # [R, heads, buckets]
        chosen = _chosen_buckets(width, self.config.relative_buckets, table.device)
        # A product with zeros and ones: its gradient needs no atomics, as that of indexing does.
        with torch.autocast(table.device.type, enabled=False):
            return (table @ chosen).unflatten(-1, (width, width))


class _Lifted:
    """A plain encoder seen as a member with S = 1: every parameter with a leading one."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.seed, self.passes = encoder, encoder.seed, encoder.passes

    def parameter(self, name: str) -> Tensor:
        return self.encoder.parameter(name)[None]


@functools.cache
def _chosen_buckets(width: int, buckets: int, device: torch.device) -> Tensor:
    """1 where a pair of positions is in a bucket, [buckets, width * width]."""
    return F.one_hot(relative_buckets(width, buckets).flatten(), buckets).T.float().to(device)


def relative_buckets(width: int, buckets: int, farthest: int = 128) -> Tensor:
    """Bucket of u - t, [width, width]: exact when near, logarithmic when far, by sign."""
    distance = torch.arange(width)[None] - torch.arange(width)[:, None]
    half = buckets // 2
    exact = half // 2
    far = distance.abs().clamp(min=1).float() / exact
    far = exact + (far.log() / math.log(farthest / exact) * (half - exact)).long()
    near = distance.abs() < exact
    return torch.where(near, distance.abs(), far.clamp(max=half - 1)) + half * (distance > 0)


def _initial(name: str, shape: tuple[int, ...]) -> Tensor:
    if torch.get_default_device().type == "meta":  # drawing there imports the compiler: 2 s
        return torch.empty(shape)
    if name.endswith(("_bias", "_shift")):
        return torch.zeros(shape)
    return torch.ones(shape) if name.endswith("_gain") else torch.randn(shape) * 0.02


def _lookup(table: Tensor, rows: Tensor) -> Tensor:
    """Rows [S, B, T] of a table [S, n, H]: [S, B, T, H]."""
    if table.shape[0] == 1:
        return F.embedding(rows, table[0])
    start = torch.arange(table.shape[0], device=rows.device)[:, None, None] * table.shape[1]
    return F.embedding(rows + start, table.flatten(0, 1))


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [R, N, in], weight [R, out, in], bias [R, out]: [R, N, out]."""
    if x.shape[0] == 1:
        return F.linear(x[0], weight[0], bias[0])[None]
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """LayerNorm with a gain and a shift for each of the R models."""
    lead = (x.shape[0], *[1] * (x.dim() - 2), -1)
    if x.shape[0] == 1:
        return F.layer_norm(x, x.shape[-1:], gain[0], shift[0], eps)
    return torch.addcmul(shift.view(lead), F.layer_norm(x, x.shape[-1:], eps=eps), gain.view(lead))


def _check_length(config: EncoderConfig, width: int) -> None:
    if width > config.longest:
        raise ValueError(
            f"sequences of {width} tokens, but the encoder has {config.longest} positions"
        )
