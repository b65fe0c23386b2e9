"""FS-Mol's files as their publishers ship them: one file an assay, one line a molecule.

    {train,valid,test}/CHEMBL1006005.jsonl.gz      or .jsonl, in a folder or in a tar archive

Of a line's fields three are read: `SMILES`, `Property` (1.0 for active) and, where it is there,
`fingerprints`, the 2,048 counts of Morgan's algorithm. The published archive holds more assays than
the benchmark has; the file `fsmol-0.1.json` of its authors, beside the archive or the three
folders, says which ones are meant. A line that cannot be read is named by file and number, all of
them at once.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

FOLDS = ("train", "valid", "test")
SUFFIXES = (".jsonl", ".jsonl.gz")
LIST = "fsmol-0.1.json"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
WIDTH = 2048  # counts in a fingerprint
SHOWN = 5  # broken lines that an error's text names; it holds all


class BrokenLinesError(ValueError):
    """Lines that are not what they should be; `lines` names each, with what is wrong."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        more = f"; and {len(lines) - SHOWN} more broken lines" if len(lines) > SHOWN else ""
        super().__init__("; ".join(lines[:SHOWN]) + more)


@dataclass(frozen=True)
class Assay:
    """One file: which molecules, by SMILES, are active.

    Attributes:
        name: its ChEMBL number.
        fold: train, valid or test, as published (for meta-learning; here all are tasks).
        smiles: one per line.
        labels: bool [n].
        fingerprints: per line the bits that are set and their counts; None where the file has none.
    """

    name: str
    fold: str
    smiles: list[str]
    labels: np.ndarray
    fingerprints: list[tuple[np.ndarray, np.ndarray]] | None


def read_assays(source: str | Path) -> Iterator[Assay]:
    """The assays of a folder or archive, by fold and name; raises `BrokenLinesError` at the end."""
    broken: list[str] = []
    with _opened(Path(source).expanduser()) as (names, read):
        chosen = _chosen(source, names, read)
        for fold, name in sorted(chosen, key=lambda key: (FOLDS.index(key[0]), key[1])):
            path = chosen[fold, name]
            content = read(path)
            try:
                text = gzip.decompress(content) if path.endswith(".gz") else content
                lines = text.decode("utf-8").splitlines()
            except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
                broken.append(f"{path}: {error}")
                continue
            found = _assay(path, fold, name, lines, broken)
            if found is not None and not broken:
                yield found
    if broken:
        raise BrokenLinesError(broken)


def is_source(path: Path) -> bool:
    """Whether this looks like FS-Mol: an archive by that name, or a folder with a fold in it."""
    if path.is_file():
        return path.name.startswith(("fsmol", "fs-mol")) and path.name.endswith(ARCHIVES)
    return any((path / fold).is_dir() for fold in FOLDS)


Read = Any  # (path) -> bytes


@contextmanager
def _opened(source: Path) -> Iterator[tuple[Iterable[str], Read]]:
    """The names of a source's files, and a function that reads one."""
    if source.is_dir():
        names = [p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()]
        yield names, lambda name: (source / name).read_bytes()
        return
    if not source.is_file():
        raise ValueError(f"no such folder or archive: {source}")
    try:
        with tarfile.open(source) as tar:
            members = {m.name: m for m in tar.getmembers() if m.isfile()}

            def read(name: str) -> bytes:
                file: IO[bytes] | None = tar.extractfile(members[name])
                return b"" if file is None else file.read()

            # a compressed archive is read from front to back: all at once, in its own order
            held = {n: read(n) for n in members} if not _seekable(source) else None
            yield list(members), (read if held is None else held.__getitem__)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{source} is not a whole tar archive: {error}") from None


def _seekable(archive: Path) -> bool:
    return archive.suffix == ".tar"


def _chosen(source: str | Path, names: Iterable[str], read: Read) -> dict[tuple[str, str], str]:
    """The files of assays by fold and name; those on the authors' list where it is there."""
    found: dict[tuple[str, str], str] = {}
    beside = Path(source).expanduser().parent / LIST
    listed: dict[str, list[str]] | None = None
    if Path(source).expanduser().is_file() and beside.is_file():
        listed = _listed(beside.read_bytes(), beside)
    for path in names:
        parts = PurePosixPath(path)
        if parts.name == LIST:
            listed = _listed(read(path), path)
            continue
        suffix = next((s for s in reversed(SUFFIXES) if parts.name.endswith(s)), None)
        if suffix is None or parts.parent.name not in FOLDS or parts.name.startswith("."):
            continue
        key = parts.parent.name, parts.name.removesuffix(suffix)
        if key in found:
            raise ValueError(f"{source} has an assay twice: {found[key]} and {path}")
        found[key] = path
    if not found:
        raise ValueError(
            f"{source} has no assays: expected train, valid and test with files such as "
            "CHEMBL1006005.jsonl.gz"
        )
    if listed is None:
        return found
    wanted = {(fold, name) for fold in FOLDS for name in listed.get(fold, ())}
    return {key: path for key, path in found.items() if key in wanted}


def _listed(content: bytes, place: str | Path) -> dict[str, list[str]]:
    """The names of the benchmark's assays by fold."""
    try:
        found = json.loads(content)
        return {fold: [str(name) for name in found.get(fold, ())] for fold in FOLDS}
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise ValueError(f"{place} is not a list of assays by fold: {error}") from None


def _assay(path: str, fold: str, name: str, lines: list[str], broken: list[str]) -> Assay | None:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(line, name))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            what = f"no field {error}" if isinstance(error, KeyError) else error
            broken.append(f"{path}:{number}: {what}")
    if not rows:
        broken.append(f"{path}: no molecules")
        return None
    with_bits = [bits for _, _, bits in rows if bits is not None]
    if with_bits and len(with_bits) < len(rows):
        broken.append(f"{path}: {len(rows) - len(with_bits)} of {len(rows)} have no fingerprints")
    smiles, labels, _ = zip(*rows, strict=True)
    return Assay(name, fold, list(smiles), np.array(labels, bool), with_bits or None)


def _row(line: str, name: str) -> tuple[str, bool, tuple[np.ndarray, np.ndarray] | None]:
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise ValueError(f"a {type(entry).__name__}, not a molecule")
    smiles = entry["SMILES"]
    if not isinstance(smiles, str) or not smiles:
        raise ValueError(f"SMILES is {smiles!r}")
    label = float(entry["Property"])
    if label not in (0.0, 1.0):
        raise ValueError(f"Property is {entry['Property']!r}, not 0.0 or 1.0")
    if entry.get("Assay_ID", name) != name:
        raise ValueError(f"Assay_ID is {entry['Assay_ID']!r} in the file of {name}")
    counts = entry.get("fingerprints")
    return smiles, label == 1.0, None if counts is None else sparse(counts)


def sparse(counts: Any) -> tuple[np.ndarray, np.ndarray]:
    """The places of counts above 0 and the counts there, of which 255 is the largest kept."""
    dense = np.asarray(counts)
    if dense.shape != (WIDTH,) or dense.dtype.kind not in "iu" or dense.min() < 0:
        raise ValueError(f"fingerprints of shape {dense.shape} are not {WIDTH} counts")
    places = np.flatnonzero(dense)
    return places.astype(np.uint16), np.minimum(dense[places], 255).astype(np.uint8)
