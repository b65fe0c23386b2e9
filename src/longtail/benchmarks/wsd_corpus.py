"""WSD-CL before any tokeniser: sense-tagged sentences, and the senses each task chooses from.

A target is a ``<wf cmd=done>`` of SemCor with a sense number above zero. Its task is its lemma in
lower case, all parts of speech together; the candidates are all WordNet senses of that lemma, and
with one sentence pair per candidate

    pairs = Σ_targets senses(task of the target)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail.benchmarks.semcor import read_semcor
from longtail.benchmarks.wordnet import FILES, Sense, WordNet, dict_folder, read_wordnet

TRAIN_SHARE = 0.9
PACKAGES = ("nltk", "wn")
_EXAMPLES = re.compile(r'\s*[;:,]\s*".*$')


@dataclass(frozen=True)
class TaggedCorpus:
    """Tasks in alphabetical order; targets by task, within a task as in the corpus.

    Attributes:
        senses: the candidate senses of each task.
        sentences: each a list of words.
        task, sentence, position: of each target; the position counts words.
        gold: the numbers, among its task's candidates, of each target's senses.
    """

    lemmas: list[str]
    senses: list[list[Sense]]
    sentences: list[list[str]]
    task: np.ndarray
    sentence: np.ndarray
    position: np.ndarray
    gold: list[tuple[int, ...]]


def read_corpus(semcor: str | Path, wordnet: str | Path) -> TaggedCorpus:
    """Read the publishers' files.

    Args:
        semcor: SemCor 3.0's folder or archive.
        wordnet: WordNet 3.0's dict folder, or `nltk` or `wn` for the one of that package.
    """
    found = read_semcor(semcor)
    words = {target.lemma for target in found.targets}
    lexicon = read_senses(wordnet, words)
    lemmas = sorted(words)
    number = {lemma: i for i, lemma in enumerate(lemmas)}
    targets = sorted(found.targets, key=lambda target: number[target.lemma])
    gold = []
    for target in targets:
        candidates = lexicon.senses.get(target.lemma, [])
        senses = [lexicon.lookup(target.lemma, key, n) for key, n in target.senses]
        if not all(senses):
            missing = target.senses[senses.index(None)]
            raise ValueError(
                f"{target.place}: sense {missing[1]} ({missing[0]}) of {target.lemma!r} is not in "
                f"WordNet 3.0 ({wordnet}), which has {len(candidates)} senses of it"
            )
        gold.append(tuple(sorted({candidates.index(sense) for sense in senses if sense})))
    return TaggedCorpus(
        lemmas,
        [lexicon.senses[lemma] for lemma in lemmas],
        found.sentences,
        np.array([number[target.lemma] for target in targets], np.int32),
        np.array([target.sentence for target in targets], np.int32),
        np.array([target.position for target in targets], np.int32),
        gold,
    )


def read_senses(wordnet: str | Path, words: set[str]) -> WordNet:
    """The senses of `words`, from WordNet's folder or a package's (`nltk`, `wn`)."""
    return _packaged(str(wordnet), words) or read_wordnet(wordnet, words=words)


def fingerprint(semcor: str | Path, wordnet: str | Path) -> str:
    """A checksum of all files that `read_corpus` would read."""
    if not Path(semcor).exists():
        raise ValueError(f"No such file or folder: {semcor}")
    total = hashlib.sha256()
    for path in (*_semcor_files(Path(semcor)), *_wordnet_files(wordnet)):
        total.update(path.name.encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    if str(wordnet) in PACKAGES:
        total.update(str(wordnet).encode())
    return total.hexdigest()


def _semcor_files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return sorted(p for p in source.rglob("tagfiles/*") if p.is_file())


def _wordnet_files(source: str | Path) -> Iterator[Path]:
    if str(source) not in PACKAGES:
        folder = dict_folder(Path(source))
        yield from (folder / name for name in FILES)


def _packaged(name: str, words: set[str]) -> WordNet | None:
    reader = {"nltk": _from_nltk, "wn": _from_wn}.get(name)
    if reader is None or Path(name).is_dir():
        return None
    senses = reader(words)
    # a word's senses in the order of their keys, as `index.sense` lists them
    return WordNet({word: sorted(found, key=lambda s: s.key) for word, found in senses.items()})


def _from_nltk(words: set[str]) -> dict[str, list[Sense]]:
    try:
        from nltk.corpus import wordnet  # pyright: ignore[reportMissingImports]

        version = str(wordnet.get_version())
    except ImportError:
        raise ValueError("WordNet through nltk needs the package: pip install nltk") from None
    except LookupError:
        raise ValueError("nltk has no WordNet yet: nltk.download('wordnet') fetches it") from None
    if version != "3.0":
        raise ValueError(f"nltk has WordNet {version}; WSD-CL is made with 3.0")
    found: dict[str, list[Sense]] = {}
    for word in words:
        for pos in "nvar":  # one part of speech at a time, as senses are numbered within it
            for number, synset in enumerate(wordnet.synsets(word, pos), 1):
                lemma = _own_lemma(synset.lemmas(), word, lambda item: item.name())
                if lemma is not None:
                    key = lemma.key().partition("%")[2]
                    sense = Sense(word, key, number, lemma.count(), synset.definition())
                    found.setdefault(word, []).append(sense)
    return found


def _from_wn(words: set[str]) -> dict[str, list[Sense]]:
    try:
        import wn  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("WordNet through wn needs the package: pip install wn") from None
    if not wn.lexicons(lexicon="omw-en:1.4"):
        raise ValueError("wn has no WordNet 3.0 yet: python -m wn download omw-en:1.4 fetches it")
    english = wn.Wordnet("omw-en:1.4", normalizer=None, lemmatizer=None)  # Princeton WordNet 3.0
    found: dict[str, list[Sense]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for entry in english.words():
        word = entry.lemma().lower().replace(" ", "_")
        if word not in words:
            continue
        for sense in entry.senses():
            key = str(sense.metadata().get("identifier", "")).partition("%")[2]
            place = (word, "a" if entry.pos == "s" else entry.pos)
            numbers[place] = numbers.get(place, 0) + 1
            gloss = sense.synset().definition() or ""
            count = sum(int(c) for c in sense.counts())
            found.setdefault(word, []).append(Sense(word, key, numbers[place], count, gloss))
    return found


def _own_lemma(lemmas: list[Any], word: str, name: Callable[[Any], str]) -> Any:
    return next((lemma for lemma in lemmas if name(lemma).lower() == word), None)


def definition(sense: Sense) -> str:
    """The gloss without the examples that follow it in quotes."""
    return _EXAMPLES.sub("", sense.gloss).strip().rstrip(";").strip()


def facts(lemmas: list[str], task: np.ndarray, senses: np.ndarray) -> dict[str, Any]:
    """What the paper says of its data set, counted.

    Args:
        lemmas: the tasks.
        task: the task of each target.
        senses: how many candidates each task has.
    """
    targets = np.bincount(task, minlength=len(lemmas))
    train = np.floor(TRAIN_SHARE * targets + 1e-9).astype(np.int64)
    largest, widest = int(train.argmax()), int(senses.argmax())
    return {
        "tasks": len(lemmas),
        "zero_shot_tasks": int((targets < 2).sum()),
        "targets": int(targets.sum()),
        "pairs": int((targets * senses).sum()),
        "largest_task": lemmas[largest],
        "largest_task_train": int(train[largest]),
        "most_senses_task": lemmas[widest],
        "most_senses": int(senses[widest]),
        "mean_senses": float(senses.mean()),
        "mean_train_targets": float(train.mean()),
    }
