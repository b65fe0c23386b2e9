"""What a run of WSD-CL has to beat, and its results by kind of task.

=================== ==========================================================================
chance              one of the candidates at random
most_frequent_sense the sense that the task's training targets have most often
wordnet_first_sense the sense that WordNet lists first; it leaks, as WordNet's counts come from
                    SemCor, test targets included
=================== ==========================================================================

Where several senses are equally good for a baseline it gets the mean over them: what guessing among
them would give. So a zero-shot task's most frequent sense is chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from longtail.metrics import ScoreMatrix, curve, size_groups, summary
from longtail_bench.wsd.tasks import WordTasks

LATE = 0.75  # evaluation points after this share of the tasks are averaged


def describe(matrix: ScoreMatrix, words: WordTasks) -> dict[str, Any]:
    """Polysemous tasks alone, by size too; the late evaluation points; the baselines."""
    many = words.senses > 1
    found: dict[str, Any] = {"polysemous": {"tasks": int(many.sum())}}
    if words.test_sizes[many].sum():
        found["polysemous"] |= {**summary(matrix, many), **_by_size(matrix, words, many)}
    after, rp = curve(matrix)
    late = after + 1 >= LATE * len(words)
    if late.any():
        alone = _polysemous(words, after, rp)
        found["late"] = {
            "RP": _number(rp[..., late].mean(-1)),
            "polysemous_RP": _number(alone[..., late].mean(-1)),
            "points": int(late.sum()),
        }
    found["baselines"] = baselines(words)
    return found | {"targets_cut": words.pairs.targets.cut}


def _by_size(matrix: ScoreMatrix, words: WordTasks, many: np.ndarray) -> dict[str, Any]:
    found = {}
    for name, tasks in size_groups(matrix.trained, words.train_sizes).items():
        chosen = many & np.isin(np.arange(len(words)), tasks)
        if words.test_sizes[chosen].sum():
            found[name] = summary(matrix, chosen)
    return found


def _number(value: np.ndarray) -> Any:
    return value if value.ndim else float(value)


def _polysemous(words: WordTasks, after: np.ndarray, rp: np.ndarray) -> np.ndarray:
    """RP without the tasks that have one sense, of which every target is right."""
    total = np.cumsum(words.test_sizes)[after]
    sure = np.cumsum(words.test_sizes * (words.senses == 1))[after]
    return (rp * total - sure) / np.maximum(total - sure, 1)


def baselines(words: WordTasks) -> dict[str, dict[str, float]]:
    """Accuracy of each baseline: overall (RP), of polysemous tasks, and by size of the task."""
    task = np.repeat(np.arange(len(words)), words.test_sizes)
    groups = {"polysemous": np.flatnonzero(words.senses > 1)}
    groups |= size_groups(words.train_sizes > 0, words.train_sizes)
    test = words.targets("test", range(len(words)))
    found: dict[str, dict[str, float]] = {}
    for name, weight in _weights(words).items():
        score = _expected(words, test, weight)
        found[name] = {"RP": float(score.mean())}
        for group, tasks in groups.items():
            inside = np.isin(task, tasks)
            if inside.any():
                found[name][group] = float(score[inside].mean())
    return found


def _weights(words: WordTasks) -> dict[str, np.ndarray]:
    """For each baseline a number per sense; among a target's candidates the largest is chosen."""
    prepared, known = words.prepared, words.pairs.targets
    kinds = ("train",) if words.segments("validation") is None else ("train", "validation")
    parts = [words.targets(kind, range(len(words))) for kind in kinds]
    # replicas part the same targets into training and validation in different ways
    train = np.concatenate([part if part.ndim == 1 else part[0] for part in parts])
    pairs = known.pairs_of(train)
    seen = np.bincount(known.sense[pairs][known.gold[pairs]], minlength=len(prepared.counts))
    # WordNet numbers the senses of a part of speech by how often they were seen
    first = prepared.counts - prepared.numbers / (1.0 + prepared.numbers.max())
    return {
        "chance": np.zeros(len(prepared.counts)),
        "most_frequent_sense": seen,
        "wordnet_first_sense": first,
    }


def _expected(words: WordTasks, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The share of each target's heaviest senses that are gold."""
    known = words.pairs.targets
    pairs = known.pairs_of(targets)
    sizes = known.senses[targets]
    starts = np.cumsum(sizes) - sizes
    heavy = weight[known.sense[pairs]]
    best = heavy == np.repeat(np.maximum.reduceat(heavy, starts), sizes)
    right = np.add.reduceat((best & known.gold[pairs]).astype(np.float64), starts)
    return right / np.add.reduceat(best.astype(np.float64), starts)
