"""WSD-CL before any tokeniser: sense-tagged sentences, and the senses each task chooses from.

A target is a ``<wf cmd=done>`` of SemCor with a sense number above zero. Its task is its lemma in
lower case, all parts of speech together; the candidates are all WordNet senses of that lemma, and
with one sentence pair per candidate

    pairs = Σ_targets senses(task of the target)
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail_bench.wsd.semcor import TAG_FILES, read_semcor
from longtail_bench.wsd.wordnet import Sense, read_wordnet

TRAIN_SHARE = 0.9
PAPER_FACTS: dict[str, Any] = {
    "tasks": 20_399,
    "zero_shot_tasks": 8_566,
    "targets": 226_036,
    "pairs": 2_021_762,
    "largest_task": "be",
    "largest_task_train": 14_204,
    "most_senses_task": "break",
    "most_senses": 75,
    "mean_senses": 2.84,
}
COUNTED_HERE = ("targets", "pairs")  # the paper does not state them; its buffer is 1% of the pairs
_EXAMPLES = re.compile(r'\s*[;:,]\s*".*$')


@dataclass(frozen=True)
class TaggedCorpus:
    """Tasks in alphabetical order; targets by task, within a task as in the corpus.

    Attributes:
        senses: the candidate senses of each task.
        sentences: each a list of words.
        task, sentence, position: of each target; the position counts words.
        gold: the numbers, among its task's candidates, of each target's senses.
        files: how many of SemCor's tag files it was read from.
    """

    lemmas: list[str]
    senses: list[list[Sense]]
    sentences: list[list[str]]
    task: np.ndarray
    sentence: np.ndarray
    position: np.ndarray
    gold: list[tuple[int, ...]]
    files: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        return facts(self.lemmas, self.task, np.array([len(found) for found in self.senses]))


def read_corpus(semcor: str | Path, wordnet: str | Path, *, warn: bool = True) -> TaggedCorpus:
    """Read the publishers' files.

    Args:
        semcor: SemCor 3.0's folder or archive.
        wordnet: WordNet 3.0's dict folder.
        warn: say on stderr where this is not the paper's data set.
    """
    found = read_semcor(semcor)
    words = {target.lemma for target in found.targets}
    lexicon = read_wordnet(wordnet, words=words)
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
    corpus = TaggedCorpus(
        lemmas,
        [lexicon.senses[lemma] for lemma in lemmas],
        found.sentences,
        np.array([number[target.lemma] for target in targets], np.int32),
        np.array([target.sentence for target in targets], np.int32),
        np.array([target.position for target in targets], np.int32),
        gold,
        found.files,
    )
    if warn and (said := departure(corpus)):
        print(f"longtail: {semcor} is not the paper's data set: {said}", file=sys.stderr)
    return corpus


def departure(corpus: TaggedCorpus) -> str:
    """How a corpus differs from the paper's, in words; nothing where it does not."""
    found = corpus.facts
    said = [
        f"{name.replace('_', ' ')} is {found[name]}, expected {PAPER_FACTS[name]}"
        for name in differing(found)[:1]
    ]
    if said and corpus.files != TAG_FILES:
        said.append(f"it has {corpus.files} of SemCor's {TAG_FILES} tag files")
    return "; ".join(said)


def differing(found: dict[str, Any]) -> list[str]:
    """The names of the facts that are not the paper's; its mean has two decimals."""

    def agrees(value: Any, wanted: Any) -> bool:
        return round(value, 2) == wanted if isinstance(wanted, float) else value == wanted

    return [name for name, wanted in PAPER_FACTS.items() if not agrees(found[name], wanted)]


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
