"""GGUF files of Llama-like models as a folder that `Llama` and transformers read.

    python -m longtail_bench.decoder.gguf SmolLM2-135M-Instruct.Q4_1.gguf smollm2

writes config.json, model.safetensors (dequantised to float32) and tokenizer.json into a folder of
that name in the cache (or into any other, where the name has a slash). transformers reads the file;
once written, the folder opens in a fraction of the time that dequantising takes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from longtail.support.cache import cache_folder
from longtail_bench.tokens import import_tokenizers

# transformers reads other kinds too, but splits the text of every byte-level tokeniser as GPT-2
# does, which is wrong for many of them.
KNOWN = {
    "general.architecture": ("llama",),
    "tokenizer.ggml.model": ("gpt2",),
    "tokenizer.ggml.pre": ("smollm", "gpt-2", "default"),
}
HEAD = "llama.attention.key_length"  # where it is not the hidden size over the number of heads


def convert(path: str | Path, folder: str | Path) -> None:
    """Write `folder` from a GGUF file; it appears whole or not at all."""
    path, folder = Path(path), Path(folder)
    about = _about(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = Path(place) / "model"
        made.mkdir()
        _write(path, about, made)
        folder.mkdir(exist_ok=True)
        # config.json last: it says "complete"
        for file in sorted(made.iterdir(), key=lambda f: f.name == "config.json"):
            os.replace(file, folder / file.name)


def _about(path: Path) -> dict[str, Any]:
    """What transformers does not ask the file; `ValueError` where it is of no known kind."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ValueError(
            f"{path.name} needs the package gguf: pip install 'longtail[gguf]'"
        ) from None
    try:
        fields = GGUFReader(path).fields
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a GGUF file: {error}") from None
    about = {name: fields[name].contents() for name in (*KNOWN, HEAD) if name in fields}
    for name, values in KNOWN.items():
        if about.get(name) not in values:
            found = about.get(name)
            raise ValueError(f"{path}: {name} is {found!r}; known here: {', '.join(values)}")
    return about


def _write(path: Path, about: dict[str, Any], folder: Path) -> None:
    try:
        import transformers
    except ImportError:
        raise ValueError(
            f"{path.name} needs the package transformers: pip install 'longtail[hf]'"
        ) from None
    from safetensors.torch import save_file

    given: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    more: dict[str, Any] = {"head_dim": about[HEAD]} if HEAD in about else {}
    # newer versions leave the weights quantised where the machine has kernels for that
    kind = getattr(transformers, "GgufConfig", None)
    if kind is not None:
        more["quantization_config"] = kind(dequantize=True)
    try:
        net = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, **given, **more
        )
        tokens = transformers.AutoTokenizer.from_pretrained(path.parent, **given)
    except (KeyError, IndexError, OSError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read: {why}") from None
    backend = tokens.backend_tokenizer
    if about["tokenizer.ggml.pre"] == "smollm":
        # digits are split off one by one, then as GPT-2 does
        steps = import_tokenizers(path.name).pre_tokenizers
        bytes_ = steps.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.pre_tokenizer = steps.Sequence([steps.Digits(individual_digits=True), bytes_])
    backend.save(str(folder / "tokenizer.json"))
    config, state = net.config.to_dict(), net.state_dict()
    for name in ("quantization_config", "_name_or_path"):  # they speak of the file it was
        config.pop(name, None)
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config |= {"architectures": [type(net).__name__], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m longtail_bench.decoder.gguf FILE.gguf NAME_OR_FOLDER")
    target = sys.argv[2]
    convert(sys.argv[1], target if "/" in target else cache_folder("models", target))
