"""Use a finished WSD-CL run: rank the senses that a word of a sentence may have.

What that takes is looked for where the run had it, and never made anew: the encoder's shape and its
tokeniser (`backbone`), and the senses, from the token tables, or else from WordNet. A relative path
is one of the folder the run was started in (timing.json); tables are known by their digest
(summary.json), so the cache has them whatever became of the corpus.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

from longtail.benchmarks.wsd import Settings, make_model
from longtail.benchmarks.wsd.corpus import TaggedCorpus, definition, read_senses
from longtail.benchmarks.wsd.data import find
from longtail.benchmarks.wsd.fingerprints import find_tables
from longtail.benchmarks.wsd.miniature import miniature
from longtail.benchmarks.wsd.pairs import PairTable
from longtail.benchmarks.wsd.prepared import Prepared, find_prepared, load, prepare
from longtail.benchmarks.wsd.tokens import (
    BackboneTokenizer,
    HashingTokenizer,
    Tokenizer,
    digest_of,
    load_tokenizer,
    read_text,
)
from longtail.benchmarks.wsd.wordnet import Sense
from longtail.benchmarks.wsd.wordnet_packages import is_package
from longtail.models.encoder.weights import locate
from longtail.support.devices import choose_device
from longtail.support.downloads import cache_folder
from longtail.support.files import parse_json


@dataclass(frozen=True)
class Ranked:
    """A sense, and the model's score of its match with the sentence: a logit (no sigmoid yet)."""

    key: str  # WordNet's, lemma and all: mouse%1:05:00::
    gloss: str
    score: float


def rank_senses(
    settings: Settings,
    weights: str | Path,
    sentence: str,
    word: str,
    lemma: str | None = None,
    *,
    occurrence: int = 1,
    wordnet: str | None = None,
    device: str = "cpu",
) -> list[Ranked]:
    """The senses of `word` in `sentence`, the likeliest first.

    Args:
        settings: of the benchmark, as the run had them.
        weights: model.safetensors in the run's folder.
        sentence: plain text.
        word: as it stands in the sentence.
        lemma: its dictionary form, by default the word itself.
        occurrence: which of several, from 1 on, where the word stands there more than once.
        wordnet: WordNet 3.0's dict folder, `nltk` or `wn`, for words not in the run's corpus; by
            default the run's, or what `longtail data wsd` has fetched.
        device: where to compute.
    """
    where = choose_device(device)
    words, position = _split(sentence, word, occurrence)
    settings = _found_again(settings, Path(weights).parent)
    known, tokenizer = _tables(settings, Path(weights).parent)
    name = (lemma or word).strip().lower().replace(" ", "_")
    senses = _senses(known, name, wordnet or _still_there(settings.wordnet))
    one = np.zeros(1, np.int32)
    corpus = TaggedCorpus([name], [senses], [words], one, one, one + position, [(0,)])
    prepared = prepare(corpus, tokenizer)
    table = PairTable(prepared, settings.longest).to(where)
    model = make_model(settings, prepared)(0)
    _load(model, Path(weights))
    model = model.to(where).eval()
    with torch.no_grad():
        scores = model(table[: len(table)][0]).float().cpu().tolist()
    ranked = [
        Ranked(f"{s.lemma}%{s.key}", definition(s), z) for s, z in zip(senses, scores, strict=True)
    ]
    return sorted(ranked, key=lambda sense: -sense.score)


def occurrences(sentence: str, word: str) -> list[re.Match[str]]:
    """Where the word stands in the sentence, in upper or lower case, on its own."""
    if not word.strip():
        raise ValueError("no word is given: it should be one of the sentence's")
    pattern = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    return list(re.finditer(pattern, sentence.strip(), re.IGNORECASE))


def _found_again(settings: Settings, run: Path) -> Settings:
    """Settings whose relative paths hold here too, where the run's timing.json tells from where."""
    recorded = _noted(run / "timing.json", "directory")
    if recorded is None:
        return settings
    found = {}
    for name in ("prepared", "backbone", "wordnet"):
        given = getattr(settings, name)
        if given and (place := run.resolve() / recorded / given).exists():
            found[name] = str(place)
    return dataclasses.replace(settings, **found)


def _noted(path: Path, key: str) -> str | None:
    """What a file of the run says, where it is there and says so: older ones do not."""
    try:
        value = parse_json(path, dict).get(key)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, str) else None


def _tables(settings: Settings, run: Path) -> tuple[Prepared | None, Tokenizer]:
    """The run's tables, if they are anywhere, and the tokeniser they were made with."""
    if settings.miniature:
        return miniature(), HashingTokenizer()
    folder = Path(settings.prepared).expanduser() if settings.prepared else None
    if folder is None or not folder.is_dir():
        cache, digest = cache_folder("wsd"), _noted(run / "summary.json", "tables")
        folder = find_tables(cache, digest) if digest else None
        if folder is None:
            made = digest_of(str(locate(settings.backbone)))
            folder = find_prepared(cache, made) if made else None
    if folder is None:
        return None, load_tokenizer(settings.backbone)
    kept = folder / "tokenizer.json"
    if kept.is_file():
        return load(folder), BackboneTokenizer(read_text(kept), str(folder))
    return load(folder), load_tokenizer(settings.backbone)


def _load(model: nn.Module, weights: Path) -> None:
    try:
        model.load_state_dict(safetensors.torch.load_file(weights))
    except safetensors.SafetensorError as error:
        raise ValueError(f"{weights} is damaged: {error}") from None
    except RuntimeError as error:  # torch names every tensor in a line of its own
        reason = " ".join(str(error).split("\n")[1:2]).strip()
        raise ValueError(f"{weights} is not of the model its config.toml says: {reason}") from None


def _senses(known: Prepared | None, lemma: str, wordnet: str) -> list[Sense]:
    if known is not None and lemma in known.lemmas:
        task = known.lemmas.index(lemma)
        rows = range(known.tasks[task], known.tasks[task + 1])
        return [
            Sense(lemma, known.senses[i][0], int(known.numbers[i]), int(known.counts[i]), gloss)
            for i in rows
            for gloss in [known.senses[i][1]]
        ]
    place = wordnet or find(cache_folder("wsd"))[1]
    if not place:
        missing = (
            "the run's token tables are not in the cache: give"
            if known is None
            else f"{lemma!r} is not one of the run's {len(known.lemmas):,} words: give its "
            "dictionary form with --lemma, or"
        )
        raise ValueError(
            f"{missing} WordNet's folder with --wordnet (`longtail data wsd` fetches it)"
        )
    found = read_senses(place, {lemma}).senses.get(lemma)
    if not found:
        raise ValueError(f"WordNet has no {lemma!r}: give its dictionary form with --lemma")
    return found


def _still_there(wordnet: str) -> str:
    """The run's WordNet: a package by its name, or a folder that has not gone since."""
    return wordnet if is_package(wordnet) or Path(wordnet).expanduser().exists() else ""


def _split(sentence: str, word: str, occurrence: int) -> tuple[list[str], int]:
    """Words and signs apart, as in the corpus; the place of the word that is meant."""
    text, found = sentence.strip(), occurrences(sentence, word)
    if not found:
        raise ValueError(f"{word!r} does not stand in the sentence {sentence!r}")
    if not 1 <= occurrence <= len(found):
        raise ValueError(
            f"Invalid occurrence: {occurrence}, {word!r} stands in the sentence {len(found)} times"
        )
    match = found[occurrence - 1]
    parts = text[: match.start()], text[match.end() :]
    before, after = (re.findall(r"\w+|[^\w\s]", part) for part in parts)
    return [*before, match[0], *after], len(before)
