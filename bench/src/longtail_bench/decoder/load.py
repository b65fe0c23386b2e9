"""Pretrained models by path or name, and LoRA adapters on them."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from longtail.support.cache import cache_folder
from longtail.support.files import digest
from longtail_bench.decoder.answers import AnswerModel
from longtail_bench.decoder.gguf import convert
from longtail_bench.decoder.hf import TransformersLM
from longtail_bench.decoder.llama import Llama, is_llama


def load(name: str, rank: int = 0) -> AnswerModel:
    """A pretrained model by path or name.

    Llama-like checkpoints in a folder, and GGUF files, run in our own `Llama`; whatever else
    transformers knows runs through it.

    Args:
        name: a folder with config.json, a .gguf file, or a name of the Hugging Face hub; see
            `model_folder`.
        rank: rank of LoRA adapters on every linear layer, which alone are trained; 0 for none.
    """
    folder = model_folder(name)
    if is_llama(folder):
        model: AnswerModel = Llama.from_pretrained(folder)
    else:
        model = TransformersLM.from_pretrained(str(folder) if folder.exists() else name)
    return with_adapters(model, rank) if rank else model


def model_folder(name: str) -> Path:
    """Where a model lies: a folder, one of that name in the cache; a GGUF file is converted once.

    What was converted is known by its content, as many a file is called `model.gguf`. A name that
    is none of these comes back as it is, for transformers to look up.
    """
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"no such file: {path}")
        folder = cache_folder("models", f"{path.stem}-{digest(path)[:12]}")
        if not (folder / "config.json").exists():
            convert(path, folder)
        return folder
    cached = cache_folder("models", name)
    return cached if not path.exists() and (cached / "config.json").exists() else path


def with_adapters(model: AnswerModel, rank: int) -> AnswerModel:
    """The model with LoRA adapters (Hu et al., 2022) on its linear layers, the rest frozen."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError("lora needs the package peft: pip install 'longtail[lora]'") from None
    linear = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=sorted(linear - {"lm_head"})
    )
    inject_adapter_in_model(config, model)
    return model
