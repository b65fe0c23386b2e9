"""FS-Mol's files: where they are, how they are fetched, whether they are what they say.

The published archive has no published checksum. It must be whole, and what is in it is checked:
the numbers of assays, labels, molecules and actives, the sizes, and a checksum over all labels, for
the 5,131 assays that were counted here. Four more belong to the benchmark, and may be there or not.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from longtail.support.cache import cache_folder
from longtail_bench import prepared as tables
from longtail_bench.downloads import ChecksumError, DownloadError, Meter, Remote, fetch
from longtail_bench.fsmol.assays import (
    FOLDS,
    LIST,
    SUFFIXES,
    BrokenLinesError,
    is_source,
    read_assays,
)
from longtail_bench.fsmol.prepared import FORM, Prepared, load, prepare, save


def refuse_cut_archive(path: Path) -> None:
    """Raise `ChecksumError` where a tar archive ends before its last file does.

    Behind its last file a whole archive has at least one block of zeros.
    """
    try:
        with tarfile.open(path, "r:") as tar, open(path, "rb") as file:
            tar.getmembers()
            file.seek(tar.offset)
            whole = file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except tarfile.TarError as error:
        raise ChecksumError(f"{path} is not a whole tar archive: {error}") from None
    if not whole:
        raise ChecksumError(f"{path} is not a whole tar archive: it ends in the middle")


ARCHIVE = Remote(
    "fsmol.tar",
    ("https://figshare.com/ndownloader/files/31345321",),
    check=refuse_cut_archive,
)
TASK_LIST = Remote(
    LIST,
    (f"https://raw.githubusercontent.com/microsoft/FS-Mol/main/datasets/{LIST}",),
    # of the file in its authors' repository, which has one version of it
    sha256="f8d0e4d6031d47c82c7aef34c33b554c13648e5cb5c3fb7050070f4e79b23cf8",
)
UNCOUNTED = ("CHEMBL1613776", "CHEMBL1613829", "CHEMBL1613930", "CHEMBL1614213")
FACTS: dict[str, Any] = {
    "tasks": 5131,
    "train": 4935,
    "valid": 39,
    "test": 157,
    "labels": 482_933,
    "molecules": 227_830,
    "actives": 225_045,
    "largest": 3594,
    "median": 46,
    "smallest": 32,
    "checksum": "e32174eb0004bb39",
}
HINT = "put FS-Mol (a folder with train, valid and test, or fsmol.tar) into it"


def facts(prepared: Prepared) -> dict[str, Any]:
    """What `FACTS` says, of these files, without the assays that were not counted."""
    known = [i for i, name in enumerate(prepared.names) if name not in UNCOUNTED]
    rows = np.concatenate([np.arange(*prepared.offsets[i : i + 2]) for i in known])
    sizes, folds = prepared.sizes[known], [prepared.folds[i] for i in known]
    return {
        "tasks": len(known),
        **{fold: folds.count(fold) for fold in FOLDS},
        "labels": len(rows),
        "molecules": len(np.unique(prepared.molecule[rows])),
        "actives": int(prepared.label[rows].sum()),
        "largest": int(sizes.max()),
        "median": int(np.median(sizes)),
        "smallest": int(sizes.min()),
        "checksum": label_checksum(prepared, known),
    }


def label_checksum(prepared: Prepared, assays: list[int]) -> str:
    """Over names and labels, assays in the order of their names."""
    total = hashlib.sha256()
    for i in sorted(assays, key=lambda i: prepared.names[i]):
        first, last = prepared.offsets[i : i + 2]
        total.update(prepared.names[i].encode() + b":" + prepared.label[first:last].tobytes())
    return total.hexdigest()[:16]


def find(folder: Path) -> Path | None:
    """The files in a folder: itself, or what is in it."""
    if not folder.is_dir():
        return None
    if is_source(folder):
        return folder
    inside = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "prep"))]
    return next((path for path in inside if is_source(path)), None)


@functools.lru_cache(maxsize=1)
def prepared_from(source: str) -> Prepared:
    """The tables made from files, from the cache where these were prepared before."""
    cache = cache_folder("fsmol")
    place = Path(source).expanduser() if source else find(cache)
    if place is None:
        made = tables.find(FORM, cache)
        if made:  # a machine that was given the tables and not the files
            return load(made[0])
        raise ValueError(
            f"no FS-Mol in {cache}: `longtail data fsmol` fetches it; or give --source, "
            "--prepared, or --miniature"
        )
    return load(prepare_into(cache, place))


def prepare_into(cache: Path, source: Path, quiet: bool = False) -> Path:
    """The prepared folder of these files, made now unless it is there."""
    files, names = _files(source)
    folder = cache / f"prepared-{tables.key(FORM, names, tables.fingerprint(files))}"
    if not tables.complete(folder):
        if not quiet:
            print(f"longtail: preparing {source}, once", file=sys.stderr)
        save(prepare(read_assays(source), progress=not quiet), folder)
    return folder


def _files(source: Path) -> tuple[list[Path], list[str]]:
    """What is read, and the names by which it is known wherever it lies."""
    if source.is_dir():
        inside = sorted(path for path in source.rglob("*") if path.is_file())
        files = [path for path in inside if path.name.endswith((*SUFFIXES, LIST))]
        return files, [path.relative_to(source).as_posix() for path in files]
    if not source.is_file():
        raise ValueError(f"no such folder or archive: {source}")
    files = [path for path in (source, source.parent / LIST) if path.is_file()]
    return files, [path.name for path in files]


def data_command(args: argparse.Namespace) -> int:
    """`longtail data fsmol`: fetch what is missing, prepare it, count what is known of it."""
    cache = cache_folder("fsmol")
    folder = Path(args.dir).expanduser() if args.dir else cache
    source = folder if folder.is_file() else find(folder)
    if source is None and not args.check:
        source = _fetch(folder, None if args.quiet or args.json else Meter())
    if source is None:
        raise ValueError(f"{folder} has no FS-Mol: {HINT}")
    try:
        prepared = load(prepare_into(cache, source, quiet=args.quiet or args.json))
    except BrokenLinesError as error:
        for line in error.lines if not args.json else ():
            print(f"longtail: {line}", file=sys.stderr)
        raise ValueError(f"{source} has {len(error.lines)} broken lines: {error}") from None
    found = facts(prepared)
    differ = [name for name, value in FACTS.items() if found[name] != value]
    if args.json:
        content = {"benchmark": "fsmol", "source": str(source), "facts": found}
        print(json.dumps({**content, "expected": FACTS, "differ": differ}))
    elif not args.quiet:
        _print(source, prepared, found, differ)
    if differ:
        said = "; ".join(f"{k} is {found[k]}, expected {FACTS[k]}" for k in differ[:3])
        raise ValueError(f"{source} is not FS-Mol as it was counted here: {said}")
    return 0


def _print(source: Path, prepared: Prepared, found: dict[str, Any], differ: list[str]) -> None:
    print(f"FS-Mol  {source}\n")
    print(f"{'':12}{'here':>18}{'expected':>18}")
    for name, wanted in FACTS.items():
        mark = "   differs" if name in differ else ""
        print(f"{name:12}{found[name]:>18}{wanted:>18}{mark}")
    more = [name for name in UNCOUNTED if name in prepared.names]
    print(f"\n{len(more)} of the benchmark's 4 further assays are there as well")


def _fetch(folder: Path, progress: Meter | None) -> Path:
    try:
        fetch(TASK_LIST, folder, progress=progress)
        return fetch(ARCHIVE, folder, progress=progress)
    except DownloadError as error:
        raise ValueError(f"{error}. To do it by hand: {HINT} ({folder})") from None
