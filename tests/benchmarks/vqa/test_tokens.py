"""Token ids are those of BERT's own tokenizer, joined as Oscar joins them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from longtail.benchmarks.vqa.tokens import WordPiece, compact, encode, split

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "is", "the", "table", "##s", "##top", "near", "?", ","),
    *("tab", "cafe", "a", "'", "s", "-", "un", "##able", "left", "of", "5", "中"),
]
TEXTS = [
    "Is the table near the tabletop?",
    "Tables, tables,tables",
    "  Café's\ttable-top\n unable ",
    "zebra table",
    "the 中 table\u200b \u00a0 5",
    "",
    "x" * 120,
]


def test_pieces_are_the_longest_known_ones() -> None:
    pieces = WordPiece(WORDS)
    spelled = [pieces.words[i] for i in pieces("Is the tabletop unable? zebra")]
    assert spelled == ["is", "the", "table", "##top", "un", "##able", "?", "[UNK]"]


def test_same_ids_as_the_tokenizers_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    theirs = tokenizers.BertWordPieceTokenizer(str(file))
    ours = WordPiece.from_folder(tmp_path)
    for text in TEXTS:
        assert ours(text) == theirs.encode(text, add_special_tokens=False).ids, text


def test_a_folder_with_tokenizer_json_only(tmp_path: Path) -> None:
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    packed = {"model": {"type": "WordPiece", "vocab": vocabulary}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(packed), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    pieces = WordPiece.from_folder(tmp_path)
    assert pieces("table") == [WORDS.index("table")]
    assert pieces("Table") == [pieces.unknown]


def test_other_tokenizers_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither vocab"):
        WordPiece.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}', encoding="utf-8")
    with pytest.raises(ValueError, match="is a BPE tokenizer"):
        WordPiece.from_folder(tmp_path)
    with pytest.raises(ValueError, match=r"no \[CLS\] or <s>"):
        WordPiece(["[PAD]", "[UNK]", "word"])


def test_a_row_is_question_then_tags() -> None:
    pieces = WordPiece(WORDS)
    ids, cut = encode(
        pieces, ["is the table?", "the?"], ["table left", ""], np.array([0, 1]), limit=16
    )
    spelled = [[pieces.words[i] for i in row] for row in ids]
    assert " ".join(spelled[0][:9]) == "[CLS] is the table ? [SEP] table left [SEP]"
    assert spelled[1] == ["[CLS]", "the", "?", "[SEP]"] + ["[PAD]"] * 12
    assert ids.shape == (2, 16)
    assert cut.tolist() == [6, 4]


def test_a_question_keeps_its_tokens_before_the_tags() -> None:
    pieces = WordPiece(WORDS)
    image = np.array([0])
    ids, cut = encode(pieces, ["is the table"], ["left of table near"], image, limit=8)
    spelled = " ".join(pieces.words[i] for i in ids[0])
    assert spelled == "[CLS] is the table [SEP] left of [SEP]"
    ids, cut = encode(pieces, ["table " * 20], ["left"], image, limit=8)
    assert [pieces.words[i] for i in ids[0]] == ["[CLS]", *["table"] * 6, "[SEP]"]
    assert cut.tolist() == [8]


def test_words_in_use_are_renumbered() -> None:
    ids = np.array([[9, 4, 0], [7, 9, 0]])
    new, kept = compact(ids, pad=0)
    assert kept.tolist() == [0, 4, 7, 9]
    assert kept[new].tolist() == ids.tolist()
    new, kept = compact(np.array([[5, 3, 1]]), pad=1)
    assert kept[0] == 1
    assert kept[new].tolist() == [[5, 3, 1]]


def test_a_vocabulary_of_the_words_at_hand() -> None:
    texts = ["Is the dog here?", "dog cat"]
    pieces = WordPiece.of_words(texts)
    assert split("Is the dog here?") == ["is", "the", "dog", "here", "?"]
    assert all(pieces.unknown not in pieces(text) for text in texts)
    assert len(pieces) == 4 + 6
