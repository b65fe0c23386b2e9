"""FS-Mol's tables: each molecule's fingerprint once, and which of them each assay has.

names, folds        of the assays
offsets             [T + 1]: assay i has the rows offsets[i] to offsets[i + 1]
molecule            [N]: the molecule of each row
label               [N]: whether it is active there
bit_ends            [M + 1]: molecule j has the bits bit_ends[j] to bit_ends[j + 1]
bits                places of the counts above 0, 16 bits each: some 50 of 2,048 in a molecule, so
                    that a list of them is half as long as the packed bits
counts              the counts there, 8 bits each
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longtail_bench import prepared as tables
from longtail_bench.fsmol.assays import WIDTH, Assay, BrokenLinesError
from longtail_bench.fsmol.morgan import morgan

FORM = tables.Form("FS-Mol", rule=2)


@dataclass(frozen=True)
class Prepared:
    """The tables; offsets begin with 0."""

    names: list[str]
    folds: list[str]
    offsets: np.ndarray
    molecule: np.ndarray
    label: np.ndarray
    bit_ends: np.ndarray
    bits: np.ndarray
    counts: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Molecules of each assay."""
        return np.diff(self.offsets)

    @property
    def molecules(self) -> int:
        return len(self.bit_ends) - 1

    def packed(self) -> np.ndarray:
        """Which bits are set, uint8 [M, 256]; the first of a byte is its highest."""
        row = np.repeat(np.arange(self.molecules), np.diff(self.bit_ends))
        byte = row * (WIDTH // 8) + self.bits // 8
        # bits are in order, so those of one byte follow each other
        starts = np.flatnonzero(np.diff(byte, prepend=-1))
        found = np.zeros(self.molecules * (WIDTH // 8), np.uint8)
        values = np.right_shift(np.uint8(128), (self.bits % 8).astype(np.uint8))
        found[byte[starts]] = np.bitwise_or.reduceat(values, starts)
        return found.reshape(self.molecules, WIDTH // 8)

    def dense_counts(self) -> np.ndarray:
        """All counts, uint8 [M, 2048]."""
        row = np.repeat(np.arange(self.molecules), np.diff(self.bit_ends))
        found = np.zeros((self.molecules, WIDTH), np.uint8)
        found[row, self.bits] = self.counts
        return found


def prepare(assays: Iterable[Assay], progress: bool = True) -> Prepared:
    """Number the molecules by first appearance and give each its fingerprint.

    Published fingerprints are taken where they are; RDKit makes the others.
    """
    number: dict[str, int] = {}
    known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    names, folds, molecule, label = [], [], [], []
    for assay in assays:
        rows = [number.setdefault(smiles, len(number)) for smiles in assay.smiles]
        for row, found in zip(rows, assay.fingerprints or (), strict=False):
            known.setdefault(row, found)
        names.append(assay.name)
        folds.append(assay.fold)
        molecule.append(np.array(rows, np.int32))
        label.append(assay.labels.astype(np.uint8))
    unknown = [smiles for smiles, row in number.items() if row not in known]
    broken = []
    for smiles, found in zip(unknown, morgan(unknown, progress) if unknown else (), strict=True):
        if found is None:
            broken.append(f"SMILES that RDKit cannot read: {smiles}")
        else:
            known[number[smiles]] = found
    if broken:
        raise BrokenLinesError(broken)
    pairs = [known[row] for row in range(len(number))]
    return Prepared(
        names,
        folds,
        np.cumsum([0, *map(len, molecule)]),
        np.concatenate(molecule),
        np.concatenate(label),
        np.cumsum([0, *(len(bits) for bits, _ in pairs)]),
        np.concatenate([bits for bits, _ in pairs]),
        np.concatenate([counts for _, counts in pairs]),
    )


def save(prepared: Prepared, folder: Path) -> None:
    """Write the tables to a folder."""
    tables.save(FORM, folder, vars(prepared))


def load(folder: str | Path) -> Prepared:
    """Read a folder that `save` wrote."""
    return Prepared(**tables.load(FORM, Path(folder).expanduser()))
