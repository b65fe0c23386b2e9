"""FS-Mol prepared once: each molecule's fingerprint once, and which of them each assay has.

=================== ==============================================================================
meta.json           what it was made of, names and folds of the assays, facts, checksums of arrays
offsets.npy         [T + 1]: assay i has the rows offsets[i] to offsets[i + 1]
molecule.npy        [N]: the molecule of each row
label.npy           [N]: whether it is active there
bit_ends.npy        [M + 1]: molecule j has the bits bit_ends[j] to bit_ends[j + 1]
bits.npy            places of the counts above 0, 16 bits each: some 50 of 2,048 in a molecule, so
                    that a list of them is half as long as the packed bits
counts.npy          the counts there, 8 bits each
=================== ==============================================================================

A machine that has neither the files nor RDKit can train on a copy of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail.benchmarks.fsmol.assays import WIDTH, Assay, BrokenLinesError
from longtail.benchmarks.fsmol.morgan import morgan

RULE = 1  # to be raised with any change to what is written
ARRAYS = {
    "offsets": np.int64,
    "molecule": np.int32,
    "label": np.uint8,
    "bit_ends": np.int64,
    "bits": np.uint16,
    "counts": np.uint8,
}


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
    """Write the folder, under its name only once it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".preparing-"))
    try:
        sums = {}
        for name, dtype in ARRAYS.items():
            array = np.ascontiguousarray(getattr(prepared, name), dtype)
            np.save(work / f"{name}.npy", array)
            sums[name] = _checksum(array)
        meta = {"rule": RULE, "names": prepared.names, "folds": prepared.folds, "sha256": sums}
        (work / "meta.json").write_text(json.dumps(meta), "utf-8")
        work.chmod(0o755)
        try:
            os.replace(work, folder)
        except OSError:
            if not (folder / "meta.json").is_file():  # else another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def load(folder: str | Path) -> Prepared:
    """Read a folder that `save` wrote, and check every array against its checksum."""
    folder = Path(folder).expanduser()
    meta = _meta(folder)
    arrays: dict[str, Any] = {}
    for name, dtype in ARRAYS.items():
        path = folder / f"{name}.npy"
        try:
            array = np.load(path, allow_pickle=False)
        except Exception as error:  # NumPy lets Python's tokeniser read a header
            raise ValueError(f"{path} cannot be read: {error}") from None
        if array.dtype != dtype or _checksum(array) != meta["sha256"].get(name):
            raise ValueError(f"{path} is damaged: delete {folder} and prepare it again")
        arrays[name] = array
    if not len(meta["names"]) == len(meta["folds"]) == len(arrays["offsets"]) - 1:
        raise ValueError(f"{folder / 'meta.json'} is damaged: it names other assays than there are")
    return Prepared(meta["names"], meta["folds"], **arrays)


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    try:
        meta = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder} is not a prepared FS-Mol: {error}") from None
    if not isinstance(meta, dict) or not {"rule", "names", "folds", "sha256"} <= meta.keys():
        raise ValueError(f"{path} is damaged: fields are missing")
    lists, sums = (meta["names"], meta["folds"]), meta["sha256"]
    if not isinstance(sums, dict) or not all(isinstance(found, list) for found in lists):
        raise ValueError(f"{path} is damaged: its names, folds or checksums are none")
    if meta["rule"] != RULE:
        raise ValueError(
            f"{folder} was prepared by rule {meta['rule']}, this version has rule {RULE}: "
            "prepare it again"
        )
    return meta


def _checksum(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
