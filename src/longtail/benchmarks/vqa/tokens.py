"""Questions and object tags as token ids: WordPiece as BERT has it, in plain Python.

A row is what Oscar reads: [CLS] question [SEP] tags [SEP], padded to one width for all rows, and
`cut`, where the tags begin (their token type is 1). A word is looked up once and remembered, so a
million questions take seconds, and a machine with nothing but PyTorch can prepare them.
"""

import unicodedata
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from longtail.support.files import parse_json

LONGEST_WORD = 100  # characters; longer ones are unknown, as in BERT
ROUND = 8  # widths are multiples of it
_SPECIAL = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "first": ("[CLS]", "<s>"),
    "separator": ("[SEP]", "</s>"),
}


class WordPiece:
    """Splits at spaces and punctuation, then each word greedily into the longest known pieces.

    Example:
        >>> pieces = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "table", "##s", "?"])
        >>> pieces("Tables?")
        [4, 5, 6]
    """

    def __init__(self, words: Sequence[str], lower: bool = True) -> None:
        self.words, self.lower = list(words), lower
        self.number = {word: i for i, word in enumerate(self.words)}
        found = {}
        for name, spellings in _SPECIAL.items():
            numbers = [self.number[s] for s in spellings if s in self.number]
            if not numbers:
                raise ValueError(f"the vocabulary has no {' or '.join(spellings)}")
            found[name] = numbers[0]
        self.pad, self.unknown = found["pad"], found["unknown"]
        self.first, self.separator = found["first"], found["separator"]
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def from_folder(cls, folder: Path) -> "WordPiece":
        """The vocabulary of a pretrained encoder: `vocab.txt`, or `tokenizer.json`."""
        lower = _option(folder / "tokenizer_config.json", "do_lower_case", True)
        plain, packed = folder / "vocab.txt", folder / "tokenizer.json"
        if plain.exists():
            return cls(plain.read_text(encoding="utf-8").rstrip("\n").split("\n"), lower)
        if not packed.exists():
            raise ValueError(f"{folder} has neither vocab.txt nor tokenizer.json")
        model = parse_json(packed, dict).get("model")
        if not isinstance(model, dict):
            raise ValueError(f"{packed} describes no model")
        if model.get("type", "WordPiece") != "WordPiece":
            raise ValueError(
                f"{packed} is a {model['type']} tokenizer; longtail reads WordPiece (BERT, MiniLM, "
                "MPNet, Oscar)"
            )
        words = model.get("vocab")
        if not isinstance(words, dict) or any(type(n) is not int for n in words.values()):
            raise ValueError(f"{packed} has no vocabulary of words and their numbers")
        return cls(sorted(words, key=words.__getitem__), lower)

    @classmethod
    def of_words(cls, texts: Sequence[str]) -> "WordPiece":
        """A vocabulary of all words of the texts: for a small encoder without weights."""
        words = {word for text in texts for word in split(text)}
        return cls(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(words)])

    def __call__(self, text: str) -> list[int]:
        found: list[int] = []
        for word in text.split():  # most words come again and again, punctuation included
            numbers = self._known.get(word)
            if numbers is None:
                parts = split(word, self.lower)
                numbers = self._known[word] = [n for part in parts for n in self._pieces(part)]
            found += numbers
        return found

    def _pieces(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self.unknown]
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for stop in range(len(word), start, -1):
                number = self.number.get(prefix + word[start:stop])
                if number is not None:
                    break
            else:
                return [self.unknown]
            found.append(number)
            start = stop
        return found


def split(text: str, lower: bool = True) -> list[str]:
    """Words and punctuation marks; lower-cased and without accents where `lower`."""
    if lower:
        text = unicodedata.normalize("NFD", text.lower())
    out: list[str] = []
    for char in text:
        kind = unicodedata.category(char)
        if char in "\t\n\r" or kind == "Zs":
            out.append(" ")
        elif kind[0] == "C" or char == "\ufffd" or (lower and kind == "Mn"):
            continue
        elif _is_mark(char, kind):
            out.append(f" {char} ")
        else:
            out.append(char)
    return "".join(out).split()


def _is_mark(char: str, kind: str) -> bool:
    """Punctuation, ASCII symbols, and ideographs: each is a word of its own."""
    code = ord(char)
    ascii_mark = code < 128 and not char.isalnum()
    return ascii_mark or kind[0] == "P" or 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF


def encode(
    pieces: WordPiece, questions: Sequence[str], tags: Sequence[str], images: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of token ids [N, T] and where the tags begin [N]; T is at most `limit`.

    A question keeps its tokens before the tags get the rest, as in Oscar; `tags[images[n]]` is the
    text of row n's tags.
    """
    if limit < ROUND:
        raise ValueError(f"Invalid tokens: {limit}, should be at least {ROUND}")
    words = [pieces(text) for text in tags]
    rows, cuts = [], np.empty(len(questions), np.int64)
    for n, (question, image) in enumerate(zip(questions, images.tolist(), strict=True)):
        row = [pieces.first, *pieces(question)[: limit - 2], pieces.separator]
        cuts[n] = len(row)
        room = limit - len(row) - 1
        if room > 0 and words[image]:
            row += [*words[image][:room], pieces.separator]
        rows.append(row)
    lengths = np.array([len(row) for row in rows], np.int64)
    longest = int(lengths.max(initial=1))
    width = min(limit, -(-longest // ROUND) * ROUND)
    ids = np.full((len(rows), width), pieces.pad, np.int32)
    found = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
    ids[np.arange(width) < lengths[:, None]] = found
    return ids, cuts


def compact(ids: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids renumbered to those in use, and which they were, `pad` first: `kept[new] = old`.

    Words that no row has get no gradient and change no output, so a model may do without them.
    """
    used = np.unique(ids)
    kept = np.concatenate([[pad], used[used != pad]])
    place = np.zeros(int(kept.max()) + 1, np.int32)
    place[kept] = np.arange(len(kept))
    return place[ids], kept


def _option(path: Path, name: str, default: bool) -> bool:
    if not path.exists():
        return default
    return bool(parse_json(path, dict).get(name, default))
