"""A made-up FS-Mol that needs no files: 120 assays, sizes with a long tail.

A molecule is one of 40 scaffolds, each with bits of its own, and a few groups, single bits that any
scaffold may carry. Whether it is active in an assay follows a score of its bits,

    s = (common + own_assay) · x        active: s above the assay's median

so that assays share something and each has something of its own, as real ones do.
"""

from __future__ import annotations

import functools

import numpy as np

from longtail.support.random import integers, normal, permutation, uniform
from longtail_bench.fsmol.assays import WIDTH
from longtail_bench.fsmol.prepared import Prepared

ASSAYS, MOLECULES, SCAFFOLDS = 120, 1500, 40
PER_SCAFFOLD, GROUPS, CARRIED = 24, 256, 20
SMALLEST, LARGEST, EXPONENT = 32, 400, 1.3
SHARED = 0.7  # how much of an assay's score is common to all


@functools.lru_cache(maxsize=1)
def miniature() -> Prepared:
    """The same numbers everywhere."""
    bits = _molecules()
    u = 1.0 - uniform(ASSAYS, 0, "sizes").numpy()
    sizes = np.minimum(SMALLEST * u ** (-1 / EXPONENT), LARGEST).astype(np.int64)
    common = normal(WIDTH, 0, "common").numpy()
    own = normal(ASSAYS * WIDTH, 0, "own").view(ASSAYS, WIDTH).numpy()
    dense = np.zeros((MOLECULES, WIDTH), np.float32)
    for i, found in enumerate(bits):
        dense[i, found] = 1.0
    molecule, label = [], []
    for i, size in enumerate(sizes):
        chosen = permutation(MOLECULES, 0, "chosen", i).numpy()[:size]
        score = dense[chosen] @ (SHARED * common + (1 - SHARED) * own[i])
        molecule.append(chosen.astype(np.int32))
        label.append((score > np.median(score)).astype(np.uint8))
    ends = np.cumsum([0, *map(len, bits)])
    return Prepared(
        [f"MADE{i}" for i in range(ASSAYS)],
        ["train"] * ASSAYS,
        np.cumsum([0, *sizes]),
        np.concatenate(molecule),
        np.concatenate(label),
        ends,
        np.concatenate(bits).astype(np.uint16),
        (1 + integers(3, int(ends[-1]), 0, "counts").numpy()).astype(np.uint8),
    )


def _molecules() -> list[np.ndarray]:
    """The bits of each molecule, in order."""
    scaffold = integers(SCAFFOLDS, MOLECULES, 0, "scaffold").numpy()
    places = permutation(WIDTH, 0, "places").numpy()
    groups, rest = places[:GROUPS], places[GROUPS:]
    found = []
    for i in range(MOLECULES):
        start = int(scaffold[i]) * PER_SCAFFOLD
        carried = groups[permutation(GROUPS, 0, "carried", i).numpy()[:CARRIED]]
        found.append(np.sort(np.concatenate((rest[start : start + PER_SCAFFOLD], carried))))
    return found
