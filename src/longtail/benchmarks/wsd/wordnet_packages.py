"""WordNet 3.0 out of the Python packages nltk and wn, for those who have one of them installed.

nltk keeps Princeton's own files, and they are read as such: nltk's lookup of a word also finds the
senses of its base forms (``bounds`` those of ``bound``, some twice), leaves parts of quotations in
definitions and misses the counts of satellite adjectives. So it gives what a dict folder gives.

wn keeps what the Open Multilingual Wordnet 1.4 made of them. It has keys, counts, and glosses up to
their examples, but one entry for every way to write a word (AC, Ac), with the senses in order
within an entry. A sense's number over all of them is

1. what its synset's name says (``march.n.01``), where the word is the first of the synset,
2. else the next free one in the order of the counts, as WordNet numbers by count.

Senses of two entries that were never counted have no order in wn: 125 of the 155,287 pairs of a
word and a part of speech (37 of WSD-CL's 20,399 words) are numbered in another order than in
WordNet. That matters to the baseline `wordnet_first_sense` alone; data and pairs are the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from longtail.benchmarks.wsd.wordnet import FILES, POS_OF_TYPE, Sense, WordNet, parse_wordnet

PACKAGES = ("nltk", "wn")
LEXICON = "omw-en:1.4"
_WN_RULE = 2  # to be raised with any change to what `_from_wn` makes of the lexicon


def is_package(source: str | Path) -> bool:
    """Whether a package is meant; a folder of that name goes first."""
    return str(source) in PACKAGES and not Path(source).is_dir()


def read_package(name: str, words: set[str]) -> WordNet:
    """The senses of `words`, in the order of their keys, as `index.sense` lists them."""
    if name == "nltk":
        corpus = _nltk()
        return parse_wordnet(lambda file: _nltk_file(corpus, file), Path(str(corpus.root)), words)
    return WordNet(_from_wn(words))


def digest_of_package(name: str) -> str:
    """A checksum of what `read_package` would read."""
    if name == "wn":
        return hashlib.sha256(f"wn {LEXICON} {_WN_RULE}".encode()).hexdigest()
    total, corpus = hashlib.sha256(), _nltk()
    for file in FILES:
        total.update(hashlib.sha256(_nltk_file(corpus, file)).digest())
    return total.hexdigest()


def _nltk() -> Any:
    try:
        from nltk.corpus import wordnet  # pyright: ignore[reportMissingImports]

        version = str(wordnet.get_version())
    except ImportError:
        raise ValueError("WordNet through nltk needs the package: pip install nltk") from None
    except LookupError:
        raise ValueError("nltk has no WordNet yet: nltk.download('wordnet') fetches it") from None
    if version != "3.0":
        raise ValueError(f"nltk has WordNet {version}; WSD-CL is made with 3.0")
    return wordnet


def _nltk_file(corpus: Any, name: str) -> bytes:
    """A file of nltk's WordNet, which may lie in a folder or in a zip archive."""
    try:
        with corpus.abspath(name).open() as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"nltk's WordNet in {corpus.root} lacks {name}: {error}") from None


def _from_wn(words: set[str]) -> dict[str, list[Sense]]:
    try:
        import wn  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("WordNet through wn needs the package: pip install wn") from None
    if not wn.lexicons(lexicon=LEXICON):
        raise ValueError(f"wn has no WordNet 3.0 yet: python -m wn download {LEXICON} fetches it")
    # by word and part of speech, then by key: two spellings may share a synset, and so a key
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in wn.Wordnet(LEXICON, normalizer=None, lemmatizer=None).words():
        word = _plain(entry.lemma())
        if word not in words:
            continue
        for sense in entry.senses():
            key = str(sense.metadata().get("identifier", "")).partition("%")[2]
            if key[:1] not in POS_OF_TYPE:
                raise ValueError(f"wn's {LEXICON} has no sense key for {word!r} ({sense.id})")
            rows.setdefault((word, POS_OF_TYPE[key[0]]), {}).setdefault(key, sense)
    found: dict[str, list[Sense]] = {}
    for (word, _), senses in rows.items():
        numbers = _numbers(word, senses)
        for key, sense in senses.items():
            gloss = sense.synset().definition() or ""
            one = Sense(word, key, numbers[key], sum(sense.counts()), gloss)
            found.setdefault(word, []).append(one)
    return {word: sorted(senses, key=lambda s: s.key) for word, senses in found.items()}


def _numbers(word: str, senses: dict[str, Any]) -> dict[str, int]:
    """The number of each sense, by its key, over all spellings of a word."""
    numbers: dict[str, int] = {}
    for key, sense in senses.items():
        name, _, number = str(sense.synset().metadata().get("identifier", "")).rpartition(".")
        if _plain(name.rpartition(".")[0]) == word and number.isdigit():
            numbers[key] = int(number)
    taken = set(numbers.values())
    free = (n for n in range(1, len(senses) + 1) if n not in taken)
    rest = [key for key in senses if key not in numbers]
    # a stable sort: senses of one entry stay in their order
    for key in sorted(rest, key=lambda key: -sum(senses[key].counts())):
        numbers[key] = next(free)
    return numbers


def _plain(text: str) -> str:
    return text.lower().replace(" ", "_")
