"""WordNet through nltk and wn is the WordNet of the dictionary files."""

import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers.wordnet_files import install_nltk, write_wordnet

from longtail.benchmarks.wsd import wordnet
from longtail.benchmarks.wsd.wordnet import WordNet, read_wordnet
from longtail.benchmarks.wsd.wordnet_packages import digest_of_package, is_package, read_package

GLOSSES = {
    "noun": [
        "the month following February",
        'a steady advance; "the march of science"; "the march of time"',
        "genre of music written for marching",
        "the 3rd planet from the sun",
        "a line that is not crossed",
        "an electric current that reverses",
        "a radioactive element",
    ],
    "verb": ["walk fast"],
    "adj": ['from an earlier place; "the above sum"- Liam O\'Flaherty'],
    "adv": ["at an earlier place"],
}
LINES = [
    ("above", "4:02:00::", "adv", 0, 1, 32),
    ("above", "5:00:00:preceding:00", "adj", 0, 1, 13),
    ("ac", "1:19:00::", "noun", 5, 2, 0),
    ("ac", "1:27:00::", "noun", 6, 1, 4),
    ("bound", "1:15:00::", "noun", 4, 1, 2),
    ("bounds", "1:15:00::", "noun", 4, 1, 3),
    ("earth", "1:17:00::", "noun", 3, 1, 21),
    ("march", "1:04:00::", "noun", 1, 1, 0),
    ("march", "1:10:00::", "noun", 2, 3, 0),
    ("march", "1:28:00::", "noun", 0, 2, 0),
    ("march", "2:38:00::", "verb", 0, 1, 30),
]
WORDS = {"above", "ac", "bounds", "earth", "march"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WordNet:
    write_wordnet(tmp_path / "dict", GLOSSES, LINES)
    monkeypatch.setattr(wordnet, "SENSES_OF_3_0", len(LINES))
    return read_wordnet(tmp_path / "dict", words=WORDS)


def test_nltk_gives_what_its_files_say(
    files: WordNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nltk(monkeypatch, tmp_path / "dict")
    found = read_package("nltk", WORDS)
    # `bounds` without the senses of `bound`, `above` with its count, quotations whole
    assert found.senses == files.senses
    assert [s.count for s in found.senses["above"]] == [32, 13]
    before = digest_of_package("nltk")
    archive = tmp_path / "wordnet.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted((tmp_path / "dict").iterdir()):
            packed.write(path, path.name)
    install_nltk(monkeypatch, archive)
    assert read_package("nltk", WORDS).senses == files.senses
    assert digest_of_package("nltk") == before
    path = tmp_path / "dict" / "data.adv"
    path.write_text(path.read_text() + " ")
    install_nltk(monkeypatch, tmp_path / "dict")
    assert digest_of_package("nltk") != before


def test_what_is_wrong_with_nltks_wordnet_is_said(
    files: WordNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nltk(monkeypatch, tmp_path / "dict", "3.1")
    with pytest.raises(ValueError, match=r"nltk has WordNet 3\.1"):
        read_package("nltk", WORDS)
    install_nltk(monkeypatch, tmp_path / "absent")
    with pytest.raises(ValueError, match=r"nltk\.download"):
        read_package("nltk", WORDS)
    (tmp_path / "dict" / "index.sense").unlink()
    install_nltk(monkeypatch, tmp_path / "dict")
    with pytest.raises(ValueError, match=r"nltk's WordNet in .*dict lacks index\.sense"):
        read_package("nltk", WORDS)


class Entry:
    """`wn.Word`; an entry is one way to write a word, its senses come in WordNet's order."""

    def __init__(self, text: str, pos: str, senses: list[Any]) -> None:
        self.text, self.pos, self.found = text, pos, senses

    def lemma(self) -> str:
        return self.text

    def senses(self) -> list[Any]:
        return self.found


def sense(key: str, synset: str, gloss: str, *counts: int) -> types.SimpleNamespace:
    """`wn.Sense`, of the synset that nltk calls `synset`; never seen, it has no count at all."""
    node = types.SimpleNamespace(
        definition=lambda: gloss, metadata=lambda: {"identifier": synset} if synset else {}
    )
    return types.SimpleNamespace(
        id=f"omw-en-{key}",
        metadata=lambda: {"identifier": key},
        synset=lambda: node,
        counts=lambda: list(counts),
    )


def install_wn(monkeypatch: pytest.MonkeyPatch, entries: list[Entry]) -> None:
    fake = types.ModuleType("wn")

    def open_lexicon(lexicon: str, *, normalizer: Any, lemmatizer: Any) -> Any:
        assert (lexicon, normalizer, lemmatizer) == ("omw-en:1.4", None, None)
        return types.SimpleNamespace(words=lambda: entries)

    fake.lexicons = lambda lexicon: [lexicon] if entries else []  # pyright: ignore
    fake.Wordnet = open_lexicon  # pyright: ignore
    monkeypatch.setitem(sys.modules, "wn", fake)


def of_omw() -> list[Entry]:
    adj = 'from an earlier place; "the above sum"- Liam O\'Flaherty'
    line = "a line that is not crossed"
    planet = sense("earth%1:17:00::", "Earth.n.01", "the 3rd planet from the sun", 21)
    return [
        Entry("AC", "n", [sense("ac%1:19:00::", "", "an electric current that reverses")]),
        Entry("Ac", "n", [sense("ac%1:27:00::", "actinium.n.01", "a radioactive element", 4)]),
        Entry("Earth", "n", [planet]),
        Entry("March", "n", [sense("march%1:28:00::", "", "the month following February")]),
        Entry("above", "a", [sense("above%5:00:00:preceding:00", "above.s.01", adj, 13)]),
        Entry("above", "r", [sense("above%4:02:00::", "above.r.01", "at an earlier place", 32)]),
        Entry("bound", "n", [sense("bound%1:15:00::", "boundary.n.01", line, 2)]),
        Entry("bounds", "n", [sense("bounds%1:15:00::", "boundary.n.01", line, 3)]),
        Entry("earth", "n", [planet]),
        Entry(
            "march",
            "n",
            [
                sense("march%1:04:00::", "march.n.01", "a steady advance"),
                sense("march%1:10:00::", "", "genre of music written for marching"),
            ],
        ),
        Entry("march", "v", [sense("march%2:38:00::", "march.v.01", "walk fast", 30)]),
    ]


def test_wn_gives_keys_counts_and_numbers_over_all_spellings(
    files: WordNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_wn(monkeypatch, of_omw())
    found = read_package("wn", WORDS)
    assert set(found.senses) == WORDS

    def facts(words: WordNet) -> list[tuple[str, str, int, int]]:
        return [(s.lemma, s.key, s.number, s.count) for w in sorted(WORDS) for s in words.senses[w]]

    assert facts(found) == facts(files)
    glosses = [s.gloss for s in found.senses["march"]]
    assert glosses[0] == "a steady advance"
    assert found.senses["above"][1].gloss == files.senses["above"][1].gloss


def test_what_is_wrong_with_wns_wordnet_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    install_wn(monkeypatch, [])
    with pytest.raises(ValueError, match=r"python -m wn download omw-en:1\.4"):
        read_package("wn", WORDS)
    install_wn(monkeypatch, [Entry("earth", "n", [sense("", "", "a planet")])])
    with pytest.raises(ValueError, match="no sense key for 'earth'"):
        read_package("wn", WORDS)


def test_packages_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nltk", "wn"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, "nltk.corpus", None)
        with pytest.raises(ValueError, match=f"pip install {name}"):
            read_package(name, WORDS)


def test_a_folder_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_package("nltk")
    assert is_package(Path("wn"))
    assert not is_package("dict")
    Path("nltk").mkdir()
    assert not is_package("nltk")
