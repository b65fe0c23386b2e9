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
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail.benchmarks.wsd.corpus import TaggedCorpus, definition, differing
from longtail.benchmarks.wsd.tokens import (
    BackboneTokenizer,
    Encoded,
    Template,
    Tokenizer,
    read_text,
)

RULE = 1  # to be raised with any change to what is written below
ARRAYS = ("tasks", "glosses", "gloss_ends", "sentences", "sentence_ends", "targets", "gold")
FILES = {*(f"{name}.npy" for name in ARRAYS), "lemmas.txt", "senses.tsv", "meta.json"}
OPTIONAL = {"tokenizer.json"}


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
            "facts": corpus.facts,
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


def check_replaceable(folder: Path) -> None:
    """Refuse to write where something lies that `save` has not written: it would be deleted."""
    if not folder.exists():
        return
    other = f"{folder} is there already and holds something else than prepared tables"
    if not folder.is_dir():
        raise ValueError(f"{folder} is there already and is not a folder")
    held = {path.name for path in folder.iterdir()}
    if not held:
        return
    foreign = sorted(held - FILES - OPTIONAL)
    if foreign:
        raise ValueError(f"{other} ({foreign[0]}): give another folder")
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
    except (OSError, ValueError):
        meta = None
    if not isinstance(meta, dict) or not {"rule", "template"} <= set(meta):
        raise ValueError(f"{other} (no meta.json of theirs): give another folder")


def save(prepared: Prepared, folder: Path, tokenizer: Tokenizer) -> None:
    """Write the folder; it appears under its name, or takes the old one's place, when complete."""
    folder = folder.resolve()  # what a link points to is replaced, not the link
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        _write(prepared, new, tokenizer)
        if folder.exists():
            os.replace(folder, old)
        try:
            os.replace(new, folder)
        except BaseException:
            if old.exists():
                os.replace(old, folder)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(prepared: Prepared, folder: Path, tokenizer: Tokenizer) -> None:
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(prepared, name))
    (folder / "lemmas.txt").write_text("\n".join(prepared.lemmas), "utf-8")
    rows = zip(prepared.senses, prepared.numbers, prepared.counts, strict=True)
    lines = [f"{key}\t{number}\t{count}\t{text}" for (key, text), number, count in rows]
    (folder / "senses.tsv").write_text("\n".join(lines), "utf-8")
    if isinstance(tokenizer, BackboneTokenizer):  # for sentences yet to come
        (folder / "tokenizer.json").write_text(tokenizer.content, "utf-8")
    meta = {**prepared.meta, "template": prepared.template.as_dict()}
    (folder / "meta.json").write_text(json.dumps(meta, indent=2), "utf-8")
    folder.chmod(0o755)


def load(folder: str | Path) -> Prepared:
    """Open a folder that `save` wrote; the arrays stay on disk until they are read."""
    folder = Path(folder).expanduser()
    try:
        meta = _meta(folder / "meta.json")
        if meta["rule"] != RULE:
            raise ValueError(
                f"{folder} was prepared by rule {meta['rule']}, this version has rule {RULE}: "
                "prepare it again from --semcor and --wordnet"
            )
        arrays = {name: _array(folder / f"{name}.npy") for name in ARRAYS}
        lemmas, lines = (
            read_text(folder / name).split("\n") for name in ("lemmas.txt", "senses.tsv")
        )
    except OSError as error:
        raise ValueError(f"{folder} is not a prepared WSD-CL: {error}") from None
    try:
        template = Template.from_dict(meta["template"])
        sizes = int(meta["facts"]["tasks"]), int(meta["facts"]["targets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # 1e400 is infinite
        raise ValueError(f"{folder / 'meta.json'} is damaged: {error!r}") from None
    fields = [line.split("\t", 3) for line in lines]
    try:
        if any(len(f) != 4 or not f[1].isdigit() or not f[2].isdigit() for f in fields):
            raise ValueError
        numbers, counts = (np.array([int(f[i]) for f in fields], np.int32) for i in (1, 2))
    except (ValueError, OverflowError):  # a number may also be of too many digits
        raise ValueError(f"{folder / 'senses.tsv'} is damaged: prepare {folder} again") from None
    senses = [(f[0], f[3]) for f in fields]
    ranks = {"numbers": numbers, "counts": counts}
    found = Prepared(meta, template, lemmas, **arrays, **ranks, senses=senses)
    _check_sizes(found, folder, *sizes)
    return found


def _check_sizes(found: Prepared, folder: Path, tasks: int, targets: int) -> None:
    """Every table has the rows that the others point to; `meta.json` says how many begin it."""

    def check(name: str, rows: np.ndarray | list[Any], *expected: int) -> None:
        shape = rows.shape if isinstance(rows, np.ndarray) else (len(rows),)
        if shape != expected:
            has, wanted = (" x ".join(map(str, sizes)) for sizes in (shape, expected))
            raise ValueError(
                f"{folder / name} is damaged: its size is {has}, expected {wanted}; "
                f"prepare {folder} again"
            )

    check("lemmas.txt", found.lemmas, tasks)
    check("tasks.npy", found.tasks, tasks + 1)
    check("senses.tsv", found.senses, int(found.tasks[-1]))
    check("gloss_ends.npy", found.gloss_ends, len(found.senses) + 1)
    check("glosses.npy", found.glosses, int(found.gloss_ends[-1]))
    check("targets.npy", found.targets, targets, 4)
    check("sentence_ends.npy", found.sentence_ends, max(1, found.sentence_ends.size))
    check("sentences.npy", found.sentences, int(found.sentence_ends[-1]))
    last = int(found.targets[:, 1].max(initial=-1))
    check("sentence_ends.npy", found.sentence_ends, max(last + 2, len(found.sentence_ends)))
    check("gold.npy", found.gold, max(targets, len(found.gold)), 2)
    with_gold = len(np.unique(found.gold[:, 0]))
    if with_gold != targets:
        raise ValueError(
            f"{folder / 'gold.npy'} is damaged: {with_gold} of {targets} targets have a sense; "
            f"prepare {folder} again"
        )


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(meta, dict) or "rule" not in meta:
        raise ValueError(f"{path} is damaged: it has no rule")
    return meta


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise
    except Exception as error:  # NumPy lets Python's tokeniser read a header, and raise its errors
        raise ValueError(f"{path} is damaged: {error}") from None


def find_prepared(cache: Path, tokenizer: str) -> Path | None:
    """The folder in the cache that was made with this tokeniser (its digest).

    Of several the newest that holds the paper's data set, by its facts; which one is said.
    """
    made: list[tuple[bool, float, Path]] = []
    for path in cache.glob("prepared-*/meta.json"):
        meta = _meta(path)
        if meta["rule"] == RULE and meta.get("tokenizer") == tokenizer:
            papers = not differing(meta.get("facts", {}))
            made.append((papers, path.stat().st_mtime, path.parent))
    if not made:
        return None
    papers, _, folder = max(made)
    if len(made) > 1 or not papers:
        count = f"of {len(made)} prepared tables in {cache} " if len(made) > 1 else ""
        what = "the paper's data set" if papers else "NOT the paper's data set"
        print(f"longtail: {count}{folder.name} is taken, {what}", file=sys.stderr)
    return folder
