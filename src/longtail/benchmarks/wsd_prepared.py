"""WSD-CL as token tables: every sentence and every gloss once, in memory-mapped files.

Prepared once per corpus and tokeniser and kept under a name made of both, so that a machine that
has neither the corpus nor a tokeniser can train on a copy of the folder.

=================== ====================================================================
meta.json           what it was made of, the counts, the ids around a pair
lemmas.txt          the tasks; tasks.npy: where the senses of each begin
senses.tsv          key, number, count and definition of every sense
glosses.npy         tokens of "word : definition", gloss_ends.npy: where each ends
sentences.npy       tokens of the sentences, sentence_ends.npy: where each ends
targets.npy         [n, 4]: task, sentence, first token and token after the last
gold.npy            [m, 2]: target, and one of its senses (counted within its task)
=================== ====================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail.benchmarks.wsd_corpus import TaggedCorpus, definition, facts
from longtail.benchmarks.wsd_tokens import BackboneTokenizer, Encoded, Template, Tokenizer

RULE = 1  # to be raised with any change to what is written below
ARRAYS = ("tasks", "glosses", "gloss_ends", "sentences", "sentence_ends", "targets", "gold")


@dataclass(frozen=True)
class Prepared:
    """The tables; offsets begin with 0, so row i is ``values[ends[i]:ends[i + 1]]``."""

    meta: dict[str, Any]
    template: Template
    lemmas: list[str]
    tasks: np.ndarray  # [T + 1]
    glosses: np.ndarray
    gloss_ends: np.ndarray
    sentences: np.ndarray
    sentence_ends: np.ndarray
    targets: np.ndarray  # [n, 4]
    gold: np.ndarray  # [m, 2]
    numbers: np.ndarray  # of each sense within its part of speech, as WordNet orders them
    counts: np.ndarray  # how often WordNet says each sense was seen
    senses: list[tuple[str, str]]  # key and definition

    @property
    def senses_per_task(self) -> np.ndarray:
        return np.diff(self.tasks)


def prepare(corpus: TaggedCorpus, tokenizer: Tokenizer) -> Prepared:
    """Tokenise every sentence and every sense's gloss, each once."""
    sentences = tokenizer.encode([" ".join(words) for words in corpus.sentences])
    senses = [sense for found in corpus.senses for sense in found]
    texts = [f"{s.lemma.replace('_', ' ')} : {definition(s)}" for s in senses]
    glosses = tokenizer.encode(texts)
    dtype = np.uint16 if tokenizer.template.vocab <= 1 << 16 else np.int32
    spans = _spans(corpus, sentences)
    targets = np.column_stack((corpus.task, corpus.sentence, spans)).astype(np.int32)
    gold = [(i, sense) for i, found in enumerate(corpus.gold) for sense in found]
    per_task = np.array([len(found) for found in corpus.senses])
    return Prepared(
        {
            "rule": RULE,
            "tokenizer": tokenizer.digest,
            "facts": facts(corpus.lemmas, corpus.task, per_task),
            "targets_without_a_token": int((spans[:, 0] == spans[:, 1]).sum()),
        },
        tokenizer.template,
        corpus.lemmas,
        np.cumsum([0, *per_task]).astype(np.int32),
        *_joined(glosses, dtype),
        *_joined(sentences, dtype),
        targets,
        np.array(gold, np.int32).reshape(-1, 2),
        np.array([s.number for s in senses], np.int32),
        np.array([s.count for s in senses], np.int32),
        [(s.key, definition(s)) for s in senses],
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


def cache_name(sources: str, tokenizer: Tokenizer) -> str:
    """The folder's name: twelve digits of the sources', the tokeniser's and the rule's digest."""
    text = f"{RULE}\n{sources}\n{tokenizer.digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def save(prepared: Prepared, folder: Path, tokenizer: Tokenizer) -> None:
    """Write the folder; it appears under its name only when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for name in ARRAYS:
            np.save(work / f"{name}.npy", getattr(prepared, name))
        (work / "lemmas.txt").write_text("\n".join(prepared.lemmas), "utf-8")
        rows = zip(prepared.senses, prepared.numbers, prepared.counts, strict=True)
        lines = [f"{key}\t{number}\t{count}\t{text}" for (key, text), number, count in rows]
        (work / "senses.tsv").write_text("\n".join(lines), "utf-8")
        if isinstance(tokenizer, BackboneTokenizer):  # for sentences yet to come
            (work / "tokenizer.json").write_text(tokenizer.content, "utf-8")
        meta = {**prepared.meta, "template": prepared.template.as_dict()}
        (work / "meta.json").write_text(json.dumps(meta, indent=2), "utf-8")
        os.chmod(work, 0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def load(folder: str | Path) -> Prepared:
    """Open a folder that `save` wrote; the arrays stay on disk until they are read."""
    folder = Path(folder).expanduser()
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta["rule"] != RULE:
            raise ValueError(
                f"{folder} was prepared by rule {meta['rule']}, this version has rule {RULE}: "
                "prepare it again from --semcor and --wordnet"
            )
        template = Template.from_dict(meta["template"])
        arrays = {name: _array(folder / f"{name}.npy") for name in ARRAYS}
        lemmas = (folder / "lemmas.txt").read_text("utf-8").split("\n")
        lines = (folder / "senses.tsv").read_text("utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"{folder} is not a prepared WSD-CL: {error}") from None
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{folder / 'meta.json'} is damaged: {error}") from None
    fields = [line.split("\t", 3) for line in lines]
    if len(fields) != arrays["tasks"][-1] or any(len(f) != 4 for f in fields):
        raise ValueError(f"{folder / 'senses.tsv'} is damaged: prepare {folder} again")
    numbers, counts = (np.array([int(f[i]) for f in fields], np.int32) for i in (1, 2))
    senses = [(f[0], f[3]) for f in fields]
    ranks = {"numbers": numbers, "counts": counts}
    return Prepared(meta, template, lemmas, **arrays, **ranks, senses=senses)


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def find_prepared(cache: Path, tokenizer: str) -> Path | None:
    """The newest folder in the cache that was made with this tokeniser (its digest)."""
    made: list[Path] = []
    for path in cache.glob("prepared-*/meta.json"):
        meta = json.loads(path.read_text("utf-8"))
        if meta.get("rule") == RULE and meta.get("tokenizer") == tokenizer:
            made.append(path)
    return max(made, key=lambda path: path.stat().st_mtime).parent if made else None
