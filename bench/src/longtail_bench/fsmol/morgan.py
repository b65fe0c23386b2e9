"""Morgan fingerprints (radius 2, 2,048 counts) of molecules that come without, made by RDKit.

The same generator made the published ones: on assays that have both they agree count for count.
Some 1,300 molecules, phosphonates written [PH](=O)(=O), have a valence that RDKit has come to
refuse; these are read without that one check. All 227,830 molecules take 80 s, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from longtail_bench.fsmol.assays import WIDTH

RADIUS = 2

Counts = tuple[np.ndarray, np.ndarray]


def morgan(smiles: Sequence[str], progress: bool = True) -> Iterator[Counts | None]:
    """For each molecule the bits that are set, and their counts; None where it cannot be read.

    Args:
        smiles: the molecules.
        progress: show a bar.

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
    # what RDKit has to say about a molecule would go to stderr, once for each
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    bar = track(smiles, "fingerprints", console=Console(stderr=True), disable=not progress)
    for text in bar:
        molecule = Chem.MolFromSmiles(text) or _lenient(Chem, text)
        yield None if molecule is None else _counts(generator, molecule)


def _lenient(chem: Any, smiles: str) -> Any:
    """The molecule without a check of valences; None where it is none even so."""
    molecule = chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        return None
    molecule.UpdatePropertyCache(strict=False)
    every = chem.SanitizeFlags.SANITIZE_ALL ^ chem.SanitizeFlags.SANITIZE_PROPERTIES
    failed = chem.SanitizeMol(molecule, every, catchErrors=True)
    return None if failed != chem.SanitizeFlags.SANITIZE_NONE else molecule


def _counts(generator: Any, molecule: Any) -> Counts:
    found = generator.GetCountFingerprint(molecule).GetNonzeroElements()
    places = np.fromiter(found.keys(), np.uint16, len(found))
    counts = np.minimum(np.fromiter(found.values(), np.int64, len(found)), 255).astype(np.uint8)
    order = np.argsort(places)
    return places[order], counts[order]
