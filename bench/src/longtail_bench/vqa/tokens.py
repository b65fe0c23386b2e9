"""Questions and object tags as token ids.

A row is what Oscar reads: [CLS] question [SEP] tags [SEP], padded to one width for all rows, and
`cut`, where the tags begin (their token type is 1).
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from longtail.support.files import parse_json
from longtail_bench.encoder.weights import locate
from longtail_bench.tokens import PretrainedTokenizer, import_tokenizers, load_tokenizer

ROUND = 8  # widths are multiples of it


class Words(Protocol):
    """What turns texts into numbers."""

    pad: int
    first: int
    separator: int

    def encode(self, texts: list[str]) -> list[list[int]]: ...

    def name(self, number: int) -> str:
        """What a number stands for."""
        ...


class OwnWords:
    """All words of some texts, lower-cased: for a small encoder without weights.

    Example:
        >>> words = OwnWords(["Is the table here?"])
        >>> [words.name(number) for number in words.encode(["The table?"])[0]]
        ['the', 'table', '?']
    """

    pad, first, separator = range(3)

    def __init__(self, texts: Iterable[str]) -> None:
        words = {word for text in texts for word in split(text)}
        self._names = ["[PAD]", "[CLS]", "[SEP]", *sorted(words)]
        self._numbers = {word: number for number, word in enumerate(self._names)}

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[self._numbers[word] for word in split(text)] for text in texts]

    def name(self, number: int) -> str:
        return self._names[number]


class PretrainedWords:
    """The tokens of a pretrained encoder."""

    def __init__(self, tokenizer: PretrainedTokenizer, source: str) -> None:
        self._tokenizer, self._source = tokenizer, source
        self.pad = self._special("[PAD]", "<pad>")
        self.first = self._special("[CLS]", "<s>")
        self.separator = self._special("[SEP]", "</s>")

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer.encode(texts)

    def name(self, number: int) -> str:
        return self._tokenizer.fast.id_to_token(number)

    def _special(self, *spellings: str) -> int:
        for spelling in spellings:
            number = self._tokenizer.fast.token_to_id(spelling)
            if number is not None:
                return number
        raise ValueError(f"the tokeniser of {self._source} has no {' or '.join(spellings)}")


def pretrained_words(source: str) -> PretrainedWords:
    """Those of a folder or of a Hugging Face name."""
    folder = locate(source)
    vocabulary, settings = folder / "vocab.txt", folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").is_file() or not vocabulary.is_file():
        return PretrainedWords(load_tokenizer(source), source)
    # BERT's, as Oscar's checkpoints come with it; transformers is not told there what it is
    lower = not settings.is_file() or parse_json(settings, dict).get("do_lower_case", True)
    made_of = import_tokenizers(source).BertWordPieceTokenizer
    try:
        made = made_of(str(vocabulary), lowercase=lower)
    except Exception as error:  # the package raises nothing more special
        raise ValueError(f"{vocabulary} is not BERT's vocabulary: {error}") from None
    return PretrainedWords(PretrainedTokenizer(made.to_str(), source), source)


def split(text: str) -> list[str]:
    """Words and signs, lower-cased."""
    return re.findall(r"[^\W_]+|[^\w\s]|_", text.lower())


def encode(
    words: Words, questions: Sequence[str], tags: Sequence[str], images: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of token ids [N, T] and where the tags begin [N]; T is at most `limit`.

    A question keeps its tokens before the tags get the rest, as in Oscar; `tags[images[n]]` is the
    text of row n's tags.
    """
    if limit < ROUND:
        raise ValueError(f"Invalid tokens: {limit}, should be at least {ROUND}")
    of_tags = words.encode(list(tags))
    rows, cuts = [], np.empty(len(questions), np.int64)
    asked = words.encode(list(questions))
    for n, (question, image) in enumerate(zip(asked, images.tolist(), strict=True)):
        row = [words.first, *question[: limit - 2], words.separator]
        cuts[n] = len(row)
        room = limit - len(row) - 1
        if room > 0 and of_tags[image]:
            row += [*of_tags[image][:room], words.separator]
        rows.append(row)
    lengths = np.array([len(row) for row in rows], np.int64)
    longest = int(lengths.max(initial=1))
    width = min(limit, -(-longest // ROUND) * ROUND)
    ids = np.full((len(rows), width), words.pad, np.int32)
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
