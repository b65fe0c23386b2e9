"""GGUF files of Llama-like models as a folder that `Llama` and transformers read.

    python -m longtail.benchmarks.nlp5.lm.gguf SmolLM2-135M-Instruct.Q4_1.gguf smollm2

writes config.json, model.safetensors (dequantised to float32) and tokenizer.json into a folder of
that name in the cache (or into any other, where the name has a slash). llama.cpp keeps
the rows of query and key weights in another order, pairs (2i, 2i + 1) for rotary positions where
transformers has (i, i + D/2); they are put back.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.support.downloads import cache_folder

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(path: str | Path, folder: str | Path) -> None:
    """Write `folder` from a GGUF file; it appears whole or not at all."""
    reader = _open(Path(path))
    about = {name: field.contents() for name, field in reader.fields.items()}
    if about.get("general.architecture") != "llama":
        raise ValueError(f"{path} is a {about.get('general.architecture')!r} model, not 'llama'")
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = Path(place) / "model"
        made.mkdir()
        _write(reader, about, made)
        folder.mkdir(exist_ok=True)
        for file in sorted(made.iterdir(), reverse=True):  # config.json last: it says "complete"
            os.replace(file, folder / file.name)


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ValueError(
            f"{path.name} needs the package gguf: pip install 'longtail[gguf]'"
        ) from None
    try:
        return GGUFReader(path)
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a GGUF file: {error}") from None


def _write(reader: Any, about: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    state = tensors(reader, about)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer_json(about), encoding="utf-8")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(state["model.embed_tokens.weight"]),
        "hidden_size": about["llama.embedding_length"],
        "num_hidden_layers": about["llama.block_count"],
        "num_attention_heads": about["llama.attention.head_count"],
        "num_key_value_heads": about["llama.attention.head_count_kv"],
        "intermediate_size": about["llama.feed_forward_length"],
        "head_dim": about.get("llama.attention.key_length")
        or about["llama.embedding_length"] // about["llama.attention.head_count"],
        "max_position_embeddings": about["llama.context_length"],
        "rms_norm_eps": about["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": about.get("llama.rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in state,
        "bos_token_id": about.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": about.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": about.get("tokenizer.ggml.padding_token_id"),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def tensors(reader: Any, about: dict[str, Any]) -> dict[str, Tensor]:
    """All weights in float32, with transformers' names."""
    from gguf import dequantize

    heads = {
        "attn_q": about["llama.attention.head_count"],
        "attn_k": about["llama.attention.head_count_kv"],
    }
    found = {}
    for tensor in reader.tensors:
        parts = tensor.name.removesuffix(".weight").split(".")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if parts[0] == "blk":
            kind = parts[2]
            if kind in heads:
                weight = in_halves(weight, heads[kind])
            found[f"model.layers.{parts[1]}.{_NAMES[kind]}.weight"] = weight.contiguous()
        elif parts[0] in _TOP:
            found[f"{_TOP[parts[0]]}.weight"] = weight
    return found


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows in the order of llama.cpp, pairs side by side, to that of transformers, halves."""
    pairs = weight.view(heads, -1, 2, weight.shape[-1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def tokenizer_json(about: dict[str, Any]) -> str:
    """A byte-level BPE tokeniser (GPT-2's, or SmolLM's with single digits)."""
    from longtail.benchmarks.nlp5.lm.tokens import import_tokenizers

    tokenizers = import_tokenizers("a GGUF file")
    kind = (about.get("tokenizer.ggml.model"), about.get("tokenizer.ggml.pre"))
    if kind[0] != "gpt2" or kind[1] not in ("smollm", "gpt-2", "default"):
        raise ValueError(f"tokenisers of kind {kind[0]!r} / {kind[1]!r} are not known here")
    names = about["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    steps = tokenizers.pre_tokenizers
    bytes_ = steps.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [steps.Digits(individual_digits=True)] if kind[1] == "smollm" else []
    made.pre_tokenizer = steps.Sequence([*digits, bytes_])
    made.decoder = tokenizers.decoders.ByteLevel()
    control = [
        tokenizers.AddedToken(name, special=True, normalized=False)
        for name, type_ in zip(names, about["tokenizer.ggml.token_type"], strict=True)
        if type_ == 3
    ]
    made.add_special_tokens(control)
    return made.to_str()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m longtail.benchmarks.nlp5.lm.gguf FILE.gguf NAME_OR_FOLDER")
    target = sys.argv[2]
    convert(sys.argv[1], target if "/" in target else cache_folder("models", target))
