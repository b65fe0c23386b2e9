"""A made-up WordNet for tests: dictionary files with a few senses."""

from collections.abc import Iterable, Mapping
from pathlib import Path

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
