"""How a pair of sentences is laid out in tokens, and a built-in tokeniser that needs nothing.

A pair is laid out as the backbone saw pairs when it was pretrained. BERT's is

    [CLS] sentence with " target " marked [SEP] word : gloss [SEP]

and MPNet's and RoBERTa's have two separators in the middle. The mark is a quotation mark on either
side of the target, as in GlossBERT, so no token has to be learned from nothing.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Protocol

from longtail_bench import tokens
from longtail_bench.tokens import PretrainedTokenizer

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


class PairTokenizer(Protocol):
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
    """The tokeniser of a pretrained encoder.

    Args:
        tokenizer: as `load_tokenizer` of all benchmarks gives it.
        name: of the encoder, for errors.
    """

    def __init__(self, tokenizer: PretrainedTokenizer, name: str) -> None:
        self._fast, self.digest = tokenizer.fast, tokenizer.digest
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
        pads = [self._fast.token_to_id(token) for token in ("[PAD]", "<pad>")]
        pad = next((number for number in pads if number is not None), 0)
        mark = self._fast.encode('"', add_special_tokens=False).ids[-1]
        middle = tuple(ids[start + len(one) : second])
        return Template(ids[0], middle, ids[-1], pad, mark, self._fast.get_vocab_size())


def _find(ids: list[int], part: list[int], start: int) -> int:
    places = (i for i in range(start, len(ids)) if ids[i : i + len(part)] == part)
    return next(places, -1)


def load_tokenizer(backbone: str) -> BackboneTokenizer:
    """From a folder, or by a Hugging Face name."""
    return BackboneTokenizer(tokens.load_tokenizer(backbone), backbone)
