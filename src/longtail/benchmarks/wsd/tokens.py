"""Tokenisers for sentence pairs: the backbone's own, or a built-in one that needs nothing.

A pair is laid out as the backbone saw pairs when it was pretrained. BERT's is

    [CLS] sentence with " target " marked [SEP] word : gloss [SEP]

and MPNet's and RoBERTa's have two separators in the middle. The mark is a quotation mark on either
side of the target, as in GlossBERT, so no token has to be learned from nothing.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from longtail.models.encoder.weights import locate

Encoded = tuple[list[int], list[tuple[int, int]]]
"""Token ids of a text, and where in the text each begins and ends."""


@dataclass(frozen=True)
class Template:
    """The ids around the two parts of a pair, the padding and the mark of the target."""

    first: int
    middle: tuple[int, ...]
    last: int
    pad: int
    mark: int
    vocab: int

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "middle": list(self.middle)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Template:
        return cls(**{**values, "middle": tuple(values["middle"])})


class Tokenizer(Protocol):
    template: Template
    digest: str  # the same for tokenisers that give the same tokens

    def encode(self, texts: list[str]) -> list[Encoded]: ...


class HashingTokenizer:
    """Words and signs, lower-cased, each numbered by a hash: no vocabulary, no file, no package.

    Words that share a number cannot be told apart; with a few thousand numbers that is rare.
    """

    def __init__(self, vocab: int = 4096) -> None:
        self.template = Template(first=1, middle=(2,), last=2, pad=0, mark=3, vocab=vocab)
        self.digest = f"hashing-{vocab}"

    def encode(self, texts: list[str]) -> list[Encoded]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Encoded:
        found = list(re.finditer(r"\w+|[^\w\s]", text))
        free = self.template.vocab - 4
        ids = [4 + zlib.crc32(match[0].lower().encode()) % free for match in found]
        return ids, [match.span() for match in found]


class BackboneTokenizer:
    """The tokeniser of a pretrained encoder, from its `tokenizer.json`."""

    def __init__(self, content: str, name: str) -> None:
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError:
            raise ValueError(
                f"tokenising for {name} needs the package tokenizers: pip install 'longtail[hf]'"
            ) from None
        self.content = content
        self.digest = _digest(content)
        try:
            self._fast = Fast.from_str(content)
        except Exception as error:  # the package raises nothing more special
            raise ValueError(f"the tokenizer.json of {name} is damaged: {error}") from None
        self._fast.no_truncation()  # some come with a length of their own
        self._fast.no_padding()
        self.template = self._template(name)

    def encode(self, texts: list[str]) -> list[Encoded]:
        found = self._fast.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in found]

    def _template(self, name: str) -> Template:
        """Read off a pair of words that the tokeniser lays out itself."""
        one, two = (self._fast.encode(word, add_special_tokens=False).ids for word in ("a", "b"))
        ids = self._fast.encode("a", "b").ids
        start = _find(ids, one, 0)
        second = _find(ids, two, start + len(one)) if start >= 0 else -1
        if start != 1 or second < 0 or len(ids) != second + len(two) + 1:
            raise ValueError(
                f"the tokeniser of {name} lays out a pair as {ids}, not as "
                "[CLS] sentence [SEP] gloss [SEP]"
            )
        pad = next(
            (i for t in ("[PAD]", "<pad>") if (i := self._fast.token_to_id(t)) is not None), 0
        )
        mark = self._fast.encode('"', add_special_tokens=False).ids[-1]
        middle = tuple(ids[start + len(one) : second])
        return Template(ids[0], middle, ids[-1], pad, mark, self._fast.get_vocab_size())


def _find(ids: list[int], part: list[int], start: int) -> int:
    places = (i for i in range(start, len(ids)) if ids[i : i + len(part)] == part)
    return next(places, -1)


def digest_of(backbone: str) -> str | None:
    """The digest of a folder's tokeniser, without the package that would read it."""
    path = Path(backbone).expanduser() / "tokenizer.json"
    return _digest(read_text(path)) if path.is_file() else None


def read_text(path: Path) -> str:
    """A file's text; `ValueError` names one that is none."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def load_tokenizer(backbone: str) -> BackboneTokenizer:
    """From a folder with `tokenizer.json`, or by a Hugging Face name."""
    path = Path(backbone).expanduser() / "tokenizer.json"
    if path.is_file():
        return BackboneTokenizer(read_text(path), backbone)
    if Path(backbone).expanduser().is_dir():
        raise ValueError(f"{backbone} has no tokenizer.json")
    # The whole checkpoint at once, where it is not there yet: transformers would ask for file after
    # file, and without a network repeat that for a minute.
    folder = locate(backbone)
    if (folder / "tokenizer.json").is_file():
        return BackboneTokenizer(read_text(folder / "tokenizer.json"), backbone)
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(
            f"the tokeniser of {backbone!r} has no tokenizer.json, to make it needs transformers: "
            "pip install 'longtail[hf]'"
        ) from None
    try:
        fast = AutoTokenizer.from_pretrained(folder, use_fast=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"no tokeniser for the backbone {backbone!r}: {reason}") from None
    if not getattr(fast, "is_fast", False):
        raise ValueError(f"the tokeniser of {backbone!r} has no fast version (tokenizer.json)")
    return BackboneTokenizer(fast.backend_tokenizer.to_str(), backbone)
