"""Encoders of ours as checkpoints in Hugging Face's format."""

import json
from pathlib import Path

from safetensors.torch import save_file

from longtail_bench.encoder.plain import Encoder
from longtail_bench.encoder.weights import _STACKED, names


def write_checkpoint(encoder: Encoder, folder: Path) -> Path:
    """config.json and model.safetensors: the inverse of `Encoder.from_pretrained`."""
    config, tensors = encoder.config, {}
    for ours, layers in names(config):
        value = encoder.get_parameter(ours).detach().cpu()
        for parts, layer in zip(layers, value if ours in _STACKED else [value], strict=True):
            for name, part in zip(parts, layer.chunk(len(parts)), strict=True):
                tensors[name] = part.contiguous().clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    given = {
        "model_type": config.kind,
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.intermediate,
        "max_position_embeddings": config.positions,
        "layer_norm_eps": config.eps,
        "hidden_act": config.activation,
        "pad_token_id": config.pad,
        "hidden_dropout_prob": config.dropout,
        "type_vocab_size": config.types,
    }
    (folder / "config.json").write_text(json.dumps(given), encoding="utf-8")
    return folder
