"""One molecule's Morgan fingerprint, by RDKit; as a program, those of many for another process.

    python rdkit_counts.py RADIUS WIDTH

reads a number n and then n SMILES, a line each, again and again, and answers each time with the
numbers of bits of the n molecules (int32, -1 for one that cannot be read), then all their places
(uint16), then all their counts (uint8). It imports nothing of the package, which would take longer
than thousands of molecules do.
"""

import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from rdkit import Chem, RDLogger
from rdkit.Chem import rdFingerprintGenerator

Counts = tuple[np.ndarray, np.ndarray]


def counter(radius: int, width: int) -> Callable[[str], Counts | None]:
    """A function that gives a molecule's bits and their counts; None where it cannot be read."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=width)
    # what RDKit has to say about a molecule would go to stderr, once for each
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]

    def count(smiles: str) -> Counts | None:
        molecule = Chem.MolFromSmiles(smiles) or _lenient(smiles)
        return None if molecule is None else _counts(generator, molecule)

    return count


def _lenient(smiles: str) -> Any:
    """The molecule without a check of valences; None where it is none even so."""
    molecule = Chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        return None
    molecule.UpdatePropertyCache(strict=False)
    every = Chem.SanitizeFlags.SANITIZE_ALL ^ Chem.SanitizeFlags.SANITIZE_PROPERTIES
    failed = Chem.SanitizeMol(molecule, every, catchErrors=True)
    return None if failed != Chem.SanitizeFlags.SANITIZE_NONE else molecule


def _counts(generator: Any, molecule: Any) -> Counts:
    found = generator.GetCountFingerprint(molecule).GetNonzeroElements()
    places = np.fromiter(found.keys(), np.uint16, len(found))
    counts = np.minimum(np.fromiter(found.values(), np.int64, len(found)), 255).astype(np.uint8)
    order = np.argsort(places)
    return places[order], counts[order]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks will end this
    count = counter(int(sys.argv[1]), int(sys.argv[2]))
    lines, answer = sys.stdin.buffer, sys.stdout.buffer
    for head in lines:
        found = [count(lines.readline().decode().rstrip("\n")) for _ in range(int(head))]
        sizes = [-1 if pair is None else len(pair[0]) for pair in found]
        answer.write(np.array(sizes, np.int32).tobytes())
        for column in (0, 1):
            answer.writelines(pair[column].tobytes() for pair in found if pair is not None)
        answer.flush()


if __name__ == "__main__":
    main()
