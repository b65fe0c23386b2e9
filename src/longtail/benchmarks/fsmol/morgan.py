"""Morgan fingerprints (radius 2, 2,048 counts) of molecules that come without, made by RDKit.

The same generator made the published ones: on assays that have both they agree count for count.
Some 1,300 molecules, phosphonates written [PH](=O)(=O), have a valence that RDKit has come to
refuse; these are read without that one check.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

import numpy as np

from longtail.benchmarks.fsmol.assays import WIDTH

RADIUS = 2


def morgan(
    smiles: Sequence[str], progress: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray] | None]:
    """For each molecule the bits that are set, and their counts; None where it cannot be read.

    Raises:
        ValueError: RDKit is not installed.
    """
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem import rdFingerprintGenerator
    except ImportError:
        raise ValueError(
            "these files have no fingerprints, and making them needs RDKit: "
            "pip install 'longtail[mol]'"
        ) from None
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=WIDTH)
    bar = Bar(len(smiles), "fingerprints") if progress else None
    # what RDKit has to say about a molecule would go to stderr, once for each
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for text in smiles:
            molecule = Chem.MolFromSmiles(text) or _lenient(text)
            yield None if molecule is None else _counts(generator, molecule)
            if bar is not None:
                bar.tick()
    finally:
        RDLogger.EnableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]


def _lenient(smiles: str) -> object | None:
    """The molecule without a check of valences; None where it is none even so."""
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        return None
    molecule.UpdatePropertyCache(strict=False)
    every = Chem.SanitizeFlags.SANITIZE_ALL ^ Chem.SanitizeFlags.SANITIZE_PROPERTIES
    failed = Chem.SanitizeMol(molecule, every, catchErrors=True)
    return None if failed != Chem.SanitizeFlags.SANITIZE_NONE else molecule


def _counts(generator: object, molecule: object) -> tuple[np.ndarray, np.ndarray]:
    found = generator.GetCountFingerprint(molecule).GetNonzeroElements()  # pyright: ignore
    places = np.fromiter(found.keys(), np.uint16, len(found))
    counts = np.minimum(np.fromiter(found.values(), np.int64, len(found)), 255).astype(np.uint8)
    order = np.argsort(places)
    return places[order], counts[order]


class Bar:
    """How far it is: one line that counts on a terminal, one line at the end in a pipe."""

    def __init__(self, total: int, what: str, stream: TextIO | None = None) -> None:
        self.total, self.what, self.stream = total, what, stream or sys.stderr
        self.done, self.begin, self.shown = 0, time.monotonic(), 0.0
        self.alive = self.stream.isatty()

    def tick(self) -> None:
        self.done += 1
        passed = time.monotonic() - self.begin
        if self.done < self.total and not (self.alive and passed - self.shown > 0.2):
            return
        self.shown = passed
        left = passed * (self.total - self.done) / self.done
        text = f"{self.what}: {self.done:,} of {self.total:,}, {passed:.0f} s"
        text += f", {left:.0f} s left" if self.done < self.total else ""
        start, end = ("\r", "\n" if self.done == self.total else "") if self.alive else ("", "\n")
        print(f"{start}{text:<60}" if self.alive else text, end=end, file=self.stream, flush=True)
