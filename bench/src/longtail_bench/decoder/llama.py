r"""Llama-like decoders of our own: RMSNorm, rotary positions, grouped queries, SwiGLU.

    x ← x + W_o Attention(R q, R k, v)      (q, k, v) = W_qkv norm(x)
    x ← x + W_down (silu(g) ⊙ u)            (g, u)    = W_gu norm(x)

Against transformers' model (equal in float32): queries, keys and values are one product, so are
gate and up; rows are padded at the end, where causal attention needs no mask; logits are computed
only where they are asked for; and attention is a function that is passed in, so the same blocks
train, read a prompt and write one token a time (`generate.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from longtail_bench.decoder.answers import AnswerModel
from longtail_bench.decoder.tokens import read_config

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Number of the layer, queries [B, T, H, D], keys and values [B, T, K, D] -> [B, T, H, D]."""


@dataclass(frozen=True)
class LlamaConfig:
    """Shapes, and what the functions need."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    head_dim: int = 0  # 0: hidden / heads
    theta: float = 10000.0
    eps: float = 1e-5
    tied: bool = True

    @property
    def width(self) -> int:
        """Of one head."""
        return self.head_dim or self.hidden // self.heads

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> LlamaConfig:
        """From a config.json of transformers."""
        rope = found.get("rope_parameters") or {}
        return cls(
            vocabulary=found["vocab_size"],
            hidden=found["hidden_size"],
            layers=found["num_hidden_layers"],
            heads=found["num_attention_heads"],
            kv_heads=found.get("num_key_value_heads") or found["num_attention_heads"],
            intermediate=found["intermediate_size"],
            head_dim=found.get("head_dim") or 0,
            theta=found.get("rope_theta") or rope.get("rope_theta") or 10000.0,
            eps=found.get("rms_norm_eps", 1e-6),
            tied=found.get("tie_word_embeddings", False),
        )


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: LlamaConfig, number: int) -> None:
        super().__init__()
        c = config
        self.number, self.eps = number, c.eps
        self.heads = (c.heads, c.kv_heads, c.kv_heads)
        self.width = c.width
        self.norm1 = nn.Parameter(torch.ones(c.hidden))
        self.norm2 = nn.Parameter(torch.ones(c.hidden))
        self.qkv = nn.Linear(c.hidden, sum(self.heads) * c.width, bias=False)
        self.out = nn.Linear(c.heads * c.width, c.hidden, bias=False)
        self.gate_up = nn.Linear(c.hidden, 2 * c.intermediate, bias=False)
        self.down = nn.Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        h = self.qkv(rms_norm(x, x.shape[-1:], self.norm1, self.eps))
        h = h.unflatten(-1, (-1, self.width))
        q, _, v = h.split(self.heads, dim=-2)
        turned = rotate(h[..., : -self.heads[2], :], *rotation)  # queries and keys in one go
        q, k = turned.split(self.heads[:2], dim=-2)
        x = x + self.out(attend(self.number, q, k, v).flatten(-2))
        gate, up = self.gate_up(rms_norm(x, x.shape[-1:], self.norm2, self.eps)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


class Llama(AnswerModel):
    """A decoder with its weights as parameters."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.hidden))
        tied = config.tied
        self.lm_head = None if tied else nn.Linear(config.hidden, config.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """States [B, T, H] before the last norm; `positions` [T] or [B, T]."""
        x = self.embed(ids).float()  # sums over layers in full precision, whatever the weights are
        rotation = angles(positions, self.config)
        for block in self.blocks:
            x = block(x, rotation, attend)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        h = rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.eps)
        return linear(h, self.embed.weight) if self.lm_head is None else self.lm_head(h)

    def logits_at(self, ids: Tensor, lengths: Tensor, first: Tensor, count: int) -> Tensor:
        hidden = self.hidden(ids, torch.arange(ids.shape[1], device=ids.device), causal)
        where = first[:, None] + torch.arange(count, device=ids.device)
        where = where.clamp(max=ids.shape[1] - 1)[..., None].expand(-1, -1, hidden.shape[-1])
        return self.logits(hidden.gather(1, where))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Llama:
        """From config.json and model.safetensors as transformers writes them."""
        folder = Path(folder)
        shards = sorted(folder.glob("model*.safetensors"))
        if not shards:
            raise ValueError(f"{folder} has no model.safetensors")
        found = {k.removeprefix("model."): v for s in shards for k, v in read_weights(s).items()}
        try:
            config = LlamaConfig.from_json(read_config(folder))
            with torch.device("meta"):
                model = cls(config)
            state = {name: tensor.float() for name, tensor in fused(found, config).items()}
            model.load_state_dict(state, assign=True)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise ValueError(f"{folder}: config.json and weights do not fit: {why}") from None
        for parameter in model.parameters():
            parameter.requires_grad_()
        return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file; `ValueError` names a broken one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + D/2) of each head [B, T, H, D] by their angles [.., T, 1, D/2]."""
    a, b = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def angles(positions: Tensor, config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [.., T, 1, D/2] of positions [.., T]."""
    half = torch.arange(0, config.width, 2, device=positions.device).float() / config.width
    turned = positions[..., None, None].float() * config.theta**-half
    return turned.cos(), turned.sin()


def causal(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every token sees itself and those before it."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(
        q, k, v.to(q.dtype), is_causal=True, enable_gqa=grouped
    ).transpose(1, 2)


def fused(found: dict[str, Tensor], config: LlamaConfig) -> dict[str, Tensor]:
    """transformers' names (without "model.") to ours; products that are one here are joined."""
    try:
        state = {"embed.weight": found["embed_tokens.weight"], "norm": found["norm.weight"]}
        for i in range(config.layers):
            theirs, ours = f"layers.{i}.", f"blocks.{i}."
            attention = [found[f"{theirs}self_attn.{n}_proj.weight"] for n in "qkv"]
            gates = [found[f"{theirs}mlp.{n}_proj.weight"] for n in ("gate", "up")]
            state[f"{ours}norm1"] = found[f"{theirs}input_layernorm.weight"]
            state[f"{ours}norm2"] = found[f"{theirs}post_attention_layernorm.weight"]
            state[f"{ours}qkv.weight"] = torch.cat(attention)
            state[f"{ours}out.weight"] = found[f"{theirs}self_attn.o_proj.weight"]
            state[f"{ours}gate_up.weight"] = torch.cat(gates)
            state[f"{ours}down.weight"] = found[f"{theirs}mlp.down_proj.weight"]
        if not config.tied:
            state["lm_head.weight"] = found["lm_head.weight"]
    except KeyError as error:
        raise ValueError(f"the checkpoint has no tensor {error}") from None
    return state


def is_llama(folder: Path) -> bool:
    """Whether `Llama` computes exactly what the model of this folder does."""
    found = read_config(folder)
    rope = found.get("rope_scaling") or (found.get("rope_parameters") or {})
    plain_rope = rope.get("rope_type", rope.get("type", "default")) == "default"
    biased = found.get("attention_bias") or found.get("mlp_bias")
    known = found.get("model_type") == "llama" and found.get("hidden_act", "silu") == "silu"
    return bool(known and plain_rope and not biased and list(folder.glob("model*.safetensors")))
