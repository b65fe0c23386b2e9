"""Use a finished WSD-CL run: rank the senses that a word of a sentence may have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

from longtail.benchmarks.wordnet import Sense
from longtail.benchmarks.wsd import Settings, make_model, prepared_of
from longtail.benchmarks.wsd_corpus import TaggedCorpus, definition, read_senses
from longtail.benchmarks.wsd_data import find
from longtail.benchmarks.wsd_pairs import PairTable
from longtail.benchmarks.wsd_prepared import Prepared, prepare
from longtail.benchmarks.wsd_tokens import (
    BackboneTokenizer,
    HashingTokenizer,
    Tokenizer,
    load_tokenizer,
)
from longtail.downloads import cache_folder
from longtail.machine import choose_device


@dataclass(frozen=True)
class Ranked:
    """A sense, with the model's score of its match with the sentence (a logit)."""

    key: str
    gloss: str
    score: float


def rank_senses(
    settings: Settings,
    weights: str | Path,
    sentence: str,
    word: str,
    lemma: str | None = None,
    *,
    wordnet: str | None = None,
    device: str = "cpu",
) -> list[Ranked]:
    """The senses of `word` in `sentence`, the likeliest first.

    Args:
        settings: of the benchmark, as the run had them.
        weights: the run's model.safetensors.
        sentence: plain text.
        word: as it stands in the sentence.
        lemma: its dictionary form, by default the word itself.
        wordnet: WordNet 3.0's dict folder, `nltk` or `wn`, for words not in the run's corpus; by
            default the run's, or what `longtail data wsd` has fetched.
        device: where to compute.
    """
    where = choose_device(device)
    known = prepared_of(settings)
    tokenizer = _tokenizer(settings)
    name = (lemma or word).lower().replace(" ", "_")
    senses = _senses(known, name, wordnet or settings.wordnet)
    words, position = _split(sentence, word)
    one = np.zeros(1, np.int32)
    corpus = TaggedCorpus([name], [senses], [words], one, one, one + position, [(0,)])
    table = PairTable(prepare(corpus, tokenizer), settings.longest).to(where)
    model = make_model(settings, known)(0)
    _load(model, Path(weights))
    model = model.to(where).eval()
    with torch.no_grad():
        scores = model(table[: len(table)][0]).float().cpu().tolist()
    ranked = [Ranked(s.key, definition(s), z) for s, z in zip(senses, scores, strict=True)]
    return sorted(ranked, key=lambda sense: -sense.score)


def _load(model: nn.Module, weights: Path) -> None:
    try:
        model.load_state_dict(safetensors.torch.load_file(weights))
    except safetensors.SafetensorError as error:
        raise ValueError(f"{weights} is damaged: {error}") from None
    except RuntimeError as error:  # torch names every tensor in a line of its own
        reason = " ".join(str(error).split("\n")[1:2]).strip()
        raise ValueError(f"{weights} is not of the model its config.toml says: {reason}") from None


def _tokenizer(settings: Settings) -> Tokenizer:
    if settings.miniature:
        return HashingTokenizer()
    kept = Path(settings.prepared).expanduser() / "tokenizer.json"
    if settings.prepared and kept.is_file():
        return BackboneTokenizer(kept.read_text("utf-8"), settings.prepared)
    return load_tokenizer(settings.backbone)


def _senses(known: Prepared, lemma: str, wordnet: str) -> list[Sense]:
    if lemma in known.lemmas:
        task = known.lemmas.index(lemma)
        rows = range(known.tasks[task], known.tasks[task + 1])
        return [
            Sense(lemma, known.senses[i][0], int(known.numbers[i]), int(known.counts[i]), gloss)
            for i in rows
            for gloss in [known.senses[i][1]]
        ]
    place = wordnet or find(cache_folder("wsd"))[1]
    if not place:
        raise ValueError(
            f"{lemma!r} is not one of the run's {len(known.lemmas):,} words: give its dictionary "
            "form with --lemma, or WordNet's folder with --wordnet (`longtail data wsd` fetches it)"
        )
    found = read_senses(place, {lemma}).senses.get(lemma)
    if not found:
        raise ValueError(f"WordNet has no {lemma!r}: give its dictionary form with --lemma")
    return found


def _split(sentence: str, word: str) -> tuple[list[str], int]:
    """Words and signs apart, as in the corpus; the place of the (first) word that is meant."""
    text = sentence.strip()
    match: Any = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{word!r} does not stand in the sentence {sentence!r}")
    before, after = (re.findall(r"\w+|[^\w\s]", part) for part in _around(text, match))
    return [*before, match[0], *after], len(before)


def _around(text: str, match: re.Match[str]) -> tuple[str, str]:
    return text[: match.start()], text[match.end() :]
