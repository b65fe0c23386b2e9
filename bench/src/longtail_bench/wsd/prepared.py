"""WSD-CL's token tables: every sentence and every gloss once.

lemmas              the tasks
tasks               [T + 1]: task t has the senses tasks[t] to tasks[t + 1]
senses              key and definition of every sense
numbers, counts     of every sense: its number within its part of speech, as WordNet orders them,
                    and how often WordNet says it was seen
glosses             tokens of "word : definition", gloss_ends: where each ends
sentences           tokens of the sentences, sentence_ends: where each ends
targets             [n, 4]: task, sentence, first token and token after the last
gold                [m, 2]: target, and one of its senses (counted within its task)
template            the ids around a pair
tokenizer           the digest of the tokeniser
facts               what the paper says of its data set, counted

Offsets begin with 0, so row i is values[ends[i]:ends[i + 1]].
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail_bench import prepared as tables
from longtail_bench.encoder.weights import locate
from longtail_bench.tokens import digest_of
from longtail_bench.wsd.corpus import TaggedCorpus, definition, differing
from longtail_bench.wsd.tokens import Encoded, PairTokenizer, Template, load_tokenizer

FORM = tables.Form("WSD-CL", rule=2)
SAMPLE = 256  # glosses that are encoded to tell two tokenisers apart


@dataclass(frozen=True)
class Prepared:
    """The tables, see above."""

    lemmas: list[str]
    tasks: np.ndarray
    senses: list[tuple[str, str]]
    numbers: np.ndarray
    counts: np.ndarray
    glosses: np.ndarray
    gloss_ends: np.ndarray
    sentences: np.ndarray
    sentence_ends: np.ndarray
    targets: np.ndarray
    gold: np.ndarray
    template: Template
    tokenizer: str
    facts: dict[str, Any]

    @property
    def senses_per_task(self) -> np.ndarray:
        return np.diff(self.tasks)


def prepare(corpus: TaggedCorpus, tokenizer: PairTokenizer) -> Prepared:
    """Tokenise every sentence and every sense's gloss, each once."""
    sentences = tokenizer.encode([" ".join(words) for words in corpus.sentences])
    senses = [sense for found in corpus.senses for sense in found]
    texts = [f"{s.lemma.replace('_', ' ')} : {definition(s)}" for s in senses]
    glosses = tokenizer.encode(texts)
    dtype = np.uint16 if tokenizer.template.vocab <= 1 << 16 else np.int32
    gloss_tokens, gloss_ends = _joined(glosses, dtype)
    sentence_tokens, sentence_ends = _joined(sentences, dtype)
    spans = _spans(corpus, sentences)
    gold = [(i, sense) for i, found in enumerate(corpus.gold) for sense in found]
    per_task = np.array([len(found) for found in corpus.senses])
    return Prepared(
        lemmas=corpus.lemmas,
        tasks=np.cumsum([0, *per_task]).astype(np.int32),
        senses=[(s.key, definition(s)) for s in senses],
        numbers=np.array([s.number for s in senses], np.int32),
        counts=np.array([s.count for s in senses], np.int32),
        glosses=gloss_tokens,
        gloss_ends=gloss_ends,
        sentences=sentence_tokens,
        sentence_ends=sentence_ends,
        targets=np.column_stack((corpus.task, corpus.sentence, spans)).astype(np.int32),
        gold=np.array(gold, np.int32).reshape(-1, 2),
        template=tokenizer.template,
        tokenizer=tokenizer.digest,
        facts=corpus.facts,
    )


def _joined(encoded: list[Encoded], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *(len(ids) for ids, _ in encoded)]).astype(np.int32)
    values = np.empty(ends[-1], dtype)
    for i, (ids, _) in enumerate(encoded):
        values[ends[i] : ends[i + 1]] = ids
    return values, ends


def _spans(corpus: TaggedCorpus, sentences: list[Encoded]) -> np.ndarray:
    """First token of each target and the token after its last: those that overlap its letters."""
    spans = np.empty((len(corpus.task), 2), np.int64)
    bounds: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for i, (number, position) in enumerate(zip(corpus.sentence, corpus.position, strict=True)):
        if number not in bounds:
            words = corpus.sentences[number]
            begins = np.cumsum([0, *(len(word) + 1 for word in words)])
            tokens = np.array(sentences[number][1]).reshape(-1, 2)
            bounds[number] = begins, tokens[:, 0], tokens[:, 1]
        begins, first, last = bounds[number]
        start = np.searchsorted(last, begins[position], "right")
        stop = np.searchsorted(first, begins[position + 1] - 1, "left")
        spans[i] = start, max(start, stop)
    return spans


def save(prepared: Prepared, folder: Path) -> None:
    """Write the tables to a folder."""
    tables.save(FORM, folder, {**vars(prepared), "template": asdict(prepared.template)})


def load(folder: str | Path) -> Prepared:
    """Read a folder that `save` wrote."""
    values = tables.load(FORM, Path(folder).expanduser())
    values["senses"] = [(key, text) for key, text in values["senses"]]
    template = values["template"]
    values["template"] = Template(**{**template, "middle": tuple(template["middle"])})
    return Prepared(**values)


def find_prepared(cache: Path, tokenizer: str) -> Prepared | None:
    """The newest tables in the cache that were made with this tokeniser (its digest)."""
    for folder in tables.find(FORM, cache):
        prepared = load(folder)
        if prepared.tokenizer == tokenizer:
            if differing(prepared.facts):
                print(f"longtail: {folder} is NOT the paper's data set", file=sys.stderr)
            return prepared
    return None


def check_backbone(prepared: Prepared, backbone: str) -> None:
    """Refuse a backbone whose tokeniser gives other tokens than the tables hold.

    A tokeniser that was saved again has another digest and the same tokens, so where digests differ
    some glosses are encoded. A backbone that comes without a tokeniser is taken at its word:
    tables are there for machines that have none.
    """
    folder = locate(backbone)
    if digest_of(folder) in (None, prepared.tokenizer):
        return
    tokenizer = load_tokenizer(str(folder))
    if not _lays_out_alike(prepared, tokenizer) or not _encodes_alike(prepared, tokenizer):
        raise ValueError(
            f"the tables hold the tokens of another tokeniser than that of {backbone!r}: give the "
            "backbone they were prepared for, or prepare them for this one (`python -m "
            "longtail_bench.wsd`)"
        )


def _lays_out_alike(prepared: Prepared, tokenizer: PairTokenizer) -> bool:
    # a token that was added later changes no text's tokens
    return replace(tokenizer.template, vocab=0) == replace(prepared.template, vocab=0)


def _encodes_alike(prepared: Prepared, tokenizer: PairTokenizer) -> bool:
    chosen = np.unique(np.linspace(0, len(prepared.senses) - 1, SAMPLE).astype(np.int64))
    tasks = np.searchsorted(prepared.tasks, chosen, "right") - 1
    lemmas = [prepared.lemmas[task].replace("_", " ") for task in tasks]
    texts = [f"{x} : {prepared.senses[i][1]}" for x, i in zip(lemmas, chosen, strict=True)]
    ends = prepared.gloss_ends
    held = [prepared.glosses[ends[i] : ends[i + 1]].tolist() for i in chosen]
    return held == [ids for ids, _ in tokenizer.encode(texts)]
