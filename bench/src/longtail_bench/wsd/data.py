"""SemCor 3.0 and WordNet 3.0: where they are, how they are fetched, whether they are what they say.

What was fetched is checked: both archives against their checksums, `index.sense` and `data.*` of
WordNet file by file. Like files put there by hand, it is checked by the facts the paper states of
the data set made from both.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longtail.support.cache import cache_folder
from longtail.support.files import digest
from longtail_bench.downloads import DownloadError, Meter, Remote, fetch
from longtail_bench.wsd.corpus import (
    COUNTED_HERE,
    PAPER_FACTS,
    departure,
    differing,
    read_corpus,
)
from longtail_bench.wsd.semcor import open_tar
from longtail_bench.wsd.wordnet import FILES, dict_folder

SEMCOR = Remote(
    "semcor3.0.tar.gz",
    (
        "https://web.eecs.umich.edu/~mihalcea/downloads/semcor/semcor3.0.tar.gz",
        "http://web.eecs.umich.edu/~mihalcea/downloads/semcor/semcor3.0.tar.gz",
    ),
    # its publisher states none; this is the one CorpusLoaders.jl checks the same file against
    sha256="a8000014d6fc864f8bd9d83c62be601151cadd617c6554a39a1ad38b4b3f017b",
)
WORDNET = Remote(
    "WNdb-3.0.tar.gz",
    ("https://wordnetcode.princeton.edu/3.0/WNdb-3.0.tar.gz",),
    # its publisher states none; this is the one WordNet.jl checks the same file against
    sha256="658b1ba191f5f98c2e9bae3e25c186013158f30ef779f191d2a44e5d25046dc8",
)
WORDNET_SHA256 = {
    "index.sense": "ce997000ec806318ff1dfadf77d314ac527358e127d7bbe3d1f4e83a1c5c1c2b",
    "data.noun": "fea17d2f9656611334eac790e5d69e47645fa180c4aa481fb4cd9b3520754ca2",
    "data.verb": "adcf43e35b581e8036d8b5a52d63d9cd3d3b4870b2720d3c03c799df44777bc2",
    "data.adj": "c89120dfc1f046ddff4a631bf9b7e9fa1a36b5e86565a23bf82dbe14f30b88a7",
    "data.adv": "444a63bf3955080ab7524f5079cfc07ff9bc682cb98bdb1db73b0fb9829f1139",
}
DEEP = 4  # folders below the one given in which files are looked for
HINT = (
    "put SemCor 3.0 (folder with brown1, brown2, brownv, or semcor3.0.tar.gz) and WordNet 3.0's "
    "dict folder (index.sense, data.noun, data.verb, data.adj, data.adv) into it"
)


def locate(semcor: str = "", wordnet: str = "") -> tuple[Path, Path]:
    """Both sources: as given, or where `longtail data wsd` puts them."""
    folder = cache_folder("wsd")
    places = []
    for what, given, fetched in zip(
        ("SemCor", "WordNet"), (semcor, wordnet), find(folder), strict=True
    ):
        place = Path(given).expanduser() if given else fetched
        if place is None:
            raise ValueError(
                f"no {what} in {folder}: `longtail data wsd` fetches it; or give --semcor and "
                "--wordnet, --prepared, or --miniature"
            )
        if not place.exists():
            raise ValueError(f"No such file or folder: {place}")
        places.append(place)
    return places[0], places[1]


def files_of(semcor: Path, wordnet: Path) -> list[Path]:
    """The files of both that are read."""
    tag_files = [semcor]
    if semcor.is_dir():
        tag_files = sorted(path for path in semcor.rglob("tagfiles/*") if path.is_file())
    folder = dict_folder(wordnet)
    return [*tag_files, *(folder / name for name in FILES)]


def find(folder: Path) -> tuple[Path | None, Path | None]:
    """SemCor (folder or archive) and WordNet's dict folder in `folder`, None for what is not."""
    semcor = wordnet = None
    for path in _walk(folder, DEEP):
        if path.name == "tagfiles" and path.is_dir():
            semcor = semcor or path.parent.parent
        elif path.name == "index.sense":
            wordnet = wordnet or path.parent
    if semcor is None and folder.is_dir():
        semcor = next((p for p in sorted(folder.glob("semcor*.tar*")) if p.is_file()), None)
    return semcor, wordnet


def _walk(folder: Path, deep: int) -> Iterator[Path]:
    if deep < 0 or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # what a process that was killed had begun to unpack
            continue
        yield path
        if path.is_dir() and path.name != "tagfiles":
            yield from _walk(path, deep - 1)


def data_command(args: argparse.Namespace) -> int:
    """`longtail data wsd`: fetch what is missing, then count what the paper counts."""
    folder = Path(args.dir).expanduser() if args.dir else cache_folder("wsd")
    semcor, wordnet = find(folder)
    if not args.check:
        progress = None if args.quiet or args.json else Meter()
        if semcor is None:
            semcor = _fetch(SEMCOR, folder, progress)
        if wordnet is None:
            wordnet = _unpack(_fetch(WORDNET, folder, progress), folder)
    for what, place in (("SemCor", semcor), ("WordNet", wordnet)):
        if place is None:
            raise ValueError(f"{folder} has no {what} 3.0: {HINT}")
    assert semcor is not None
    assert wordnet is not None
    _verify_wordnet(dict_folder(wordnet))
    corpus = read_corpus(semcor, wordnet, warn=False)
    found = corpus.facts
    if args.json:
        content = {"benchmark": "wsd", "semcor": str(semcor), "wordnet": str(wordnet)}
        content |= {"facts": found, "expected": PAPER_FACTS, "differ": differing(found)}
        print(json.dumps(content))
    elif not args.quiet:
        _print(semcor, wordnet, found)
    if said := departure(corpus):
        raise ValueError(f"the files in {folder} are not the paper's: {said}")
    return 0


def _print(semcor: Path, wordnet: Path, found: dict[str, Any]) -> None:
    print(f"SemCor   {semcor}\nWordNet  {wordnet}\n")
    print(f"{'':24}{'here':>12}{'expected':>12}")
    wrong = differing(found)
    for name, wanted in PAPER_FACTS.items():
        value = f"{found[name]:.2f}" if isinstance(found[name], float) else f"{found[name]}"
        mark = "   differs" if name in wrong else ""
        note = " *" if name in COUNTED_HERE else ""
        print(f"{name.replace('_', ' ') + note:24}{value:>12}{wanted:>12}{mark}")
    print("\n* not stated in the paper, counted from the files that give its other numbers")


def _fetch(remote: Remote, folder: Path, progress: Meter | None) -> Path:
    try:
        return fetch(remote, folder, progress=progress)
    except DownloadError as error:
        raise ValueError(f"{error}. To do it by hand: {HINT} ({folder})") from None


def _unpack(archive: Path, folder: Path) -> Path:
    """WordNet's dict folder, under its name only once it is whole."""
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as work:
        with open_tar(archive) as tar:
            tar.extractall(work, filter="data")
        found = find(Path(work))[1]
        if found is None:
            raise ValueError(f"{archive} has no index.sense")
        place = folder / found.name
        place.mkdir(parents=True, exist_ok=True)
        # by index.sense a folder is known for WordNet's: after all others
        for path in sorted(found.iterdir(), key=lambda path: path.name == "index.sense"):
            os.replace(path, place / path.name)
    return place


def _verify_wordnet(folder: Path) -> None:
    """Names the first file that is not WordNet 3.0's."""
    for name in FILES:
        path = folder / name
        if digest(path) != WORDNET_SHA256[name]:
            raise ValueError(
                f"{path} is not WordNet 3.0's: its sha256 is {digest(path)}, "
                f"expected {WORDNET_SHA256[name]}"
            )
