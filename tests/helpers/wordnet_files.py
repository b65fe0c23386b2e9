"""A made-up WordNet for tests: dictionary files with a few senses, and nltk's way to offer them."""

import io
import sys
import types
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import pytest

Line = tuple[str, str, str, int, int, int]
"""Lemma, lexical sense, part of speech, number of its gloss, sense number, tag count."""


def write_wordnet(
    folder: Path, glosses: Mapping[str, Iterable[str]], lines: Iterable[Line]
) -> None:
    """`data.*` with one synset a gloss, and `index.sense` with one line a sense."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets: dict[str, list[int]] = {}
    for pos, found in glosses.items():
        text = "  1 licence\n"
        for gloss in found:
            offsets.setdefault(pos, []).append(len(text))
            text += f"{len(text):08d} 05 n 01 word 0 000 | {gloss}  \n"
        (folder / f"data.{pos}").write_text(text)
    rows = [f"{word}%{key} {offsets[p][i]:08d} {n} {seen}" for word, key, p, i, n, seen in lines]
    (folder / "index.sense").write_text("\n".join(rows) + "\n")


class Pointer:
    """nltk's path pointer: a place in a folder or an archive that has to be there."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        if name not in self._names():
            raise OSError(f"No such file or directory: {name!r}")

    def _names(self) -> list[str]:
        if self.root.suffix == ".zip":
            return zipfile.ZipFile(self.root).namelist()
        return [path.name for path in self.root.iterdir()]

    def open(self) -> BinaryIO:
        if self.root.suffix == ".zip":
            return io.BytesIO(zipfile.ZipFile(self.root).read(self.name))
        return (self.root / self.name).open("rb")


class NltkWordNet:
    """`nltk.corpus.wordnet`, as far as its files go; its `synsets` is not there to be asked."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version

    def get_version(self) -> str:
        if not self.root.exists():
            raise LookupError("Resource wordnet not found.")
        return self.version

    def abspath(self, name: str) -> Pointer:
        return Pointer(self.root, name)


def install_nltk(monkeypatch: pytest.MonkeyPatch, root: Path, version: str = "3.0") -> None:
    """Let `from nltk.corpus import wordnet` find the dictionary files in `root`."""
    corpus = types.ModuleType("nltk.corpus")
    corpus.wordnet = NltkWordNet(root, version)  # pyright: ignore
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
