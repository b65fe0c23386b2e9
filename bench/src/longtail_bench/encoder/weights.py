"""Encoder checkpoints in Hugging Face's format, read without transformers.

A folder with `config.json` and `model.safetensors` (or `pytorch_model.bin`). The queries', keys'
and values' matrices of a layer are one of ours, and those of all layers are stacked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from longtail_bench.encoder.config import EncoderConfig

KINDS = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")  # model_type in config.json
_BERT = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
}
_MPNET = {
    "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "out": ("attention.attn.o",),
    "attention_norm": ("attention.LayerNorm",),
}
_BOTH = {
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}


def names(config: EncoderConfig) -> Iterator[tuple[str, list[list[str]]]]:
    """Each of our parameters and the checkpoint's names of its parts, [layer][part]."""
    yield "word_table", [["embeddings.word_embeddings.weight"]]
    yield "position_table", [["embeddings.position_embeddings.weight"]]
    if config.types:
        yield "type_table", [["embeddings.token_type_embeddings.weight"]]
    yield "embed_gain", [["embeddings.LayerNorm.weight"]]
    yield "embed_shift", [["embeddings.LayerNorm.bias"]]
    if config.relative_buckets:
        yield "relative", [["encoder.relative_attention_bias.weight"]]
    for ours, theirs in ((_MPNET if config.kind == "mpnet" else _BERT) | _BOTH).items():
        pair = ("gain", "shift") if ours.endswith("norm") else ("weight", "bias")
        for kind, suffix in zip(pair, ("weight", "bias"), strict=True):
            yield (
                f"{ours.removesuffix('_norm')}_{kind}",
                [
                    [f"encoder.layer.{layer}.{part}.{suffix}" for part in theirs]
                    for layer in range(config.layers)
                ],
            )


def locate(source: str | Path) -> Path:
    """The folder of a checkpoint: itself, or what the Hugging Face cache has under a name."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"no folder {str(source)!r}; to look it up as a Hugging Face name, "
            "pip install longtail[hf]"
        ) from None
    files = ["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer*", "vocab.*"]
    for cached in (True, False):  # what is there is used without asking the network
        try:
            found = snapshot_download(str(source), allow_patterns=files, local_files_only=cached)
            return Path(found)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise ValueError(f"no folder {str(source)!r} and no such Hugging Face model: {reason}")


def read_kind(path: Path) -> tuple[str, dict[str, Any]]:
    """What a config.json says the model is, and all that it says."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{path} holds a {type(given).__name__}, not the settings of a model")
    kind = given.get("model_type", "bert")  # absent in the oldest checkpoints and in Oscar's
    if not isinstance(kind, str):
        raise ValueError(f"{path}: model_type {kind!r} is not a name")
    return kind, given


def read_config(folder: Path) -> EncoderConfig:
    """The shape that config.json describes."""
    path = folder / "config.json"
    kind, given = read_kind(path)
    if kind not in KINDS:
        raise ValueError(
            f"{path}: model_type {kind!r} has no fast encoder; known: {', '.join(KINDS)}"
        )
    if given.get("position_embedding_type", "absolute") != "absolute" or given.get("is_decoder"):
        raise ValueError(f"{path}: relative_key positions and decoders are not supported")
    offset = kind != "bert"  # the first token's position is the one after the padding's
    pad = None if kind == "mpnet" else given.get("pad_token_id")
    pad = int(offset) if pad is None else pad
    try:
        return EncoderConfig(
            vocab=given["vocab_size"],
            hidden=given["hidden_size"],
            layers=given["num_hidden_layers"],
            heads=given["num_attention_heads"],
            intermediate=given["intermediate_size"],
            positions=given["max_position_embeddings"],
            types=0 if kind == "mpnet" else given.get("type_vocab_size", 2),
            eps=given.get("layer_norm_eps", 1e-12),
            activation=given.get("hidden_act", "gelu"),
            pad=pad,
            position_offset=pad + 1 if offset else 0,
            relative_buckets=given.get("relative_attention_num_buckets", 32)
            if kind == "mpnet"
            else 0,
            dropout=given.get("hidden_dropout_prob", 0.0),
            kind=kind,
        )
    except KeyError as error:
        raise ValueError(f"{path} lacks {error}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def read_weights(folder: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """Our parameters, float32, from a checkpoint; what does not fit is listed by name."""
    path, found = read_tensors(folder)
    shapes, wrong = config.shapes(), []
    weights = {}
    for ours, layers in names(config):
        shape = list(
            shapes[ours] if len(layers) == 1 and ours not in _STACKED else shapes[ours][1:]
        )
        shape[0] //= len(layers[0])
        for name in (name for parts in layers for name in parts):
            if name not in found:
                wrong.append(f"{name} is missing")
            elif list(found[name].shape) != shape:
                wrong.append(f"{name} is {list(found[name].shape)}, not {shape}")
        if not wrong:
            whole = [torch.cat([found[n].float() for n in parts]) for parts in layers]
            weights[ours] = torch.stack(whole) if ours in _STACKED else whole[0]
    if wrong:
        more = f"; {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise ValueError(f"{path} does not fit its config.json: {'; '.join(wrong[:8])}{more}")
    return weights


def read_pooler(folder: Path, hidden: int) -> tuple[Tensor, Tensor] | None:
    """Weight and bias, float32, of the layer over the first token, where a checkpoint has one."""
    try:
        path, found = read_tensors(folder)
    except ValueError:  # in parts, as large models are: whoever loads the encoder says more
        return None
    weight, bias = (found.get(f"pooler.dense.{part}") for part in ("weight", "bias"))
    if weight is None or bias is None:
        return None
    if weight.shape != (hidden, hidden) or bias.shape != (hidden,):
        raise ValueError(f"{path}: pooler.dense.weight is {list(weight.shape)}, not {[hidden] * 2}")
    return weight.float(), bias.float()


_STACKED = {
    f"{part}_{kind}"
    for part in ("qkv", "out", "attention", "up", "down", "output")
    for kind in ("weight", "bias", "gain", "shift")
}


def read_tensors(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """All tensors under the names of the bare model: no `bert.` in front, no `gamma`, `beta`."""
    path = folder / "model.safetensors"
    try:
        if path.exists():
            found = load_file(path)
        else:
            path = folder / "pytorch_model.bin"
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{folder} has neither model.safetensors nor pytorch_model.bin") from None
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    anchor = "embeddings.word_embeddings.weight"
    prefix = next((name.removesuffix(anchor) for name in found if name.endswith(anchor)), "")
    renamed = {}
    for name, value in found.items():
        name = name.removeprefix(prefix)
        if name.endswith(("LayerNorm.gamma", "LayerNorm.beta")):  # checkpoints of 2018
            name = name.replace("gamma", "weight").replace("beta", "bias")
        renamed[name] = value
    return path, renamed
