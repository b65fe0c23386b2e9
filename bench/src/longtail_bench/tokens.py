"""Pretrained models' tokenisers, through the package `tokenizers`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from longtail_bench.encoder.weights import locate

FILE = "tokenizer.json"


class PretrainedTokenizer:
    """A tokeniser that neither cuts nor pads, and adds no special tokens of its own.

    Args:
        content: of its `tokenizer.json`.
        name: of the model, for errors.

    Attributes:
        fast: the `tokenizers.Tokenizer`.
        digest: the same for tokenisers of the same content.
    """

    def __init__(self, content: str, name: str) -> None:
        fast = import_tokenizers(name).Tokenizer
        try:
            self.fast = fast.from_str(content)
        except Exception as error:  # the package raises nothing more special
            raise ValueError(f"the {FILE} of {name} is damaged: {error}") from None
        self.fast.no_truncation()  # some come with a length of their own
        self.fast.no_padding()
        self.digest = _digest(content)

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return self.fast.get_vocab_size()

    def encode(self, texts: list[str]) -> list[list[int]]:
        found = self.fast.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, rows: list[list[int]]) -> list[str]:
        return self.fast.decode_batch(rows, skip_special_tokens=True)


def load_tokenizer(source: str) -> PretrainedTokenizer:
    """From a model's folder, or by its Hugging Face name.

    What has no `tokenizer.json` is read by transformers, which can make one of other files.
    """
    # The whole checkpoint at once, where it is not there yet: transformers would ask for file after
    # file, and without a network repeat that for a minute.
    folder = locate(source)
    path = folder / FILE
    content = _read(path) if path.is_file() else _made_by_transformers(folder, source)
    return PretrainedTokenizer(content, source)


def digest_of(folder: Path) -> str | None:
    """The digest of a folder's tokeniser, without the package that would read it."""
    path = folder / FILE
    return _digest(_read(path)) if path.is_file() else None


def import_tokenizers(what: str) -> Any:
    """The package, which only pretrained models need."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            f"tokenising for {what} needs the package tokenizers: pip install 'longtail[hf]'"
        ) from None
    return tokenizers


def _made_by_transformers(folder: Path, source: str) -> str:
    if not any([*folder.glob("vocab.*"), *folder.glob("*.model")]):
        # transformers would make one that knows its special tokens and no word
        raise ValueError(f"{source} has no {FILE}")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(
            f"the tokeniser of {source!r} has no {FILE}, to make it needs transformers: "
            "pip install 'longtail[hf]'"
        ) from None
    try:
        made = AutoTokenizer.from_pretrained(folder, use_fast=True, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{source!r} has no tokeniser that can be read: {reason}") from None
    if not getattr(made, "is_fast", False):
        raise ValueError(f"the tokeniser of {source!r} has no fast version ({FILE})")
    return made.backend_tokenizer.to_str()


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
