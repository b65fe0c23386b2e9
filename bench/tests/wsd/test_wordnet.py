"""WordNet's dictionary files: every sense with its gloss; other versions and cut files refused."""

from pathlib import Path

import pytest

from bench_helpers.wordnet_files import write_wordnet
from longtail_bench.wsd import wordnet
from longtail_bench.wsd.wordnet import read_wordnet

GLOSSES = {
    "noun": ["a small rodent", "a hand-operated device"],
    "verb": ["go stealthily"],
    "adj": ["all taken one by one"],
    "adv": ["not at all"],
}


LINES = [
    ("each", "5:00:00:all:00", "adj", 0, 1, 9),
    ("mouse", "1:05:00::", "noun", 0, 1, 14),
    ("mouse", "1:06:00::", "noun", 1, 4, 0),
    ("mouse", "2:38:00::", "verb", 0, 1, 0),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_wordnet(tmp_path, GLOSSES, LINES)
    monkeypatch.setattr(wordnet, "SENSES_OF_3_0", len(LINES))
    return tmp_path


def test_senses_come_with_their_glosses(folder: Path) -> None:
    senses = read_wordnet(folder).senses["mouse"]
    assert [s.gloss for s in senses] == [
        "a small rodent",
        "a hand-operated device",
        "go stealthily",
    ]
    assert [s.pos for s in senses] == ["noun", "noun", "verb"]
    assert len(read_wordnet(folder, words={"each"})) == 1


def test_lookup_forgives_markers_and_falls_back_to_the_number(folder: Path) -> None:
    words = read_wordnet(folder)
    marked = words.lookup("each", "5:00:00:all(a):00", 1)
    assert marked is not None
    assert marked.gloss == "all taken one by one"
    by_number = words.lookup("mouse", "1:99:99::", 4)
    assert by_number is not None
    assert by_number.key == "1:06:00::"
    assert words.lookup("mouse", "4:02:00::", 1) is None


def test_wrong_versions_and_broken_files_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (folder / "data.noun").read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in (len(lines[0] + lines[1]), len(whole) - 12):  # a line short; within the last gloss
        (folder / "data.noun").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"data\.noun, line 3: no synset at byte .* cut off"):
            read_wordnet(folder)
    (folder / "data.noun").write_bytes(whole.replace(b"licence", b"license!"))
    with pytest.raises(ValueError, match=r"data\.noun, line 1: no synset at byte 12, which"):
        read_wordnet(folder)
    (folder / "data.noun").write_bytes(whole)
    senses = (folder / "index.sense").read_bytes()
    (folder / "index.sense").write_bytes(senses.replace(b"mouse%2", b"mou\xffe%2"))
    with pytest.raises(ValueError, match=r"index\.sense, line 4: not text"):
        read_wordnet(folder)
    (folder / "index.sense").write_bytes(senses)
    monkeypatch.setattr(wordnet, "SENSES_OF_3_0", 5)
    with pytest.raises(ValueError, match="has 4 senses"):
        read_wordnet(folder)
    (folder / "index.sense").write_text("mouse 12\n")
    with pytest.raises(ValueError, match=r"index\.sense, line 1"):
        read_wordnet(folder)
    (folder / "data.adv").unlink()
    with pytest.raises(ValueError, match=r"lacks data\.adv"):
        read_wordnet(folder)
    with pytest.raises(ValueError, match="No such folder"):
        read_wordnet(folder / "absent")
