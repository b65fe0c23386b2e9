"""Rows of token ids as Oscar reads them, by a small encoder's own words or a pretrained one's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from longtail_bench.vqa.tokens import OwnWords, compact, encode, pretrained_words, split

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "is", "the", "table", "##s", "##top", "near", "?"),
]


def spelled(words: OwnWords, ids: np.ndarray) -> str:
    return " ".join(words.name(number) for number in ids.tolist())


@pytest.fixture
def oscar(tmp_path: Path) -> Path:
    """A folder as Oscar's checkpoints come: BERT's words, and no word of its kind."""
    pytest.importorskip("tokenizers")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return tmp_path


def test_the_words_of_an_oscar_checkpoint(oscar: Path) -> None:
    words = pretrained_words(str(oscar))
    (ids,) = words.encode(["Is the  Tabletops zebra?"])
    names = [words.name(number) for number in ids]
    assert names == ["is", "the", "table", "##top", "##s", "[UNK]", "?"]
    assert (words.pad, words.first, words.separator) == (0, 2, 3)
    (oscar / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    assert pretrained_words(str(oscar)).encode(["Table"]) == [[VOCABULARY.index("[UNK]")]]


def test_the_words_of_tokenizer_json_come_first(oscar: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "unk", "a"])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "unk"}
    content = {"version": "1.0", "added_tokens": [], "model": model}
    (oscar / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    words = pretrained_words(str(oscar))
    assert (words.pad, words.first, words.separator) == (1, 0, 2)
    assert words.encode(["a"]) == [[4]]


def test_a_tokeniser_without_separators_is_refused(oscar: Path) -> None:
    (oscar / "vocab.txt").write_text("[PAD]\n[UNK]\nword\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab\.txt is not BERT's vocabulary: sep_token"):
        pretrained_words(str(oscar))
    content = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}}}
    content["model"]["merges"] = []
    (oscar / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"has no \[PAD\] or <pad>"):
        pretrained_words(str(oscar))


def test_a_row_is_question_then_tags() -> None:
    words = OwnWords(["is the table?", "table left"])
    ids, cut = encode(
        words, ["is the table?", "the?"], ["table left", ""], np.array([0, 1]), limit=16
    )
    assert spelled(words, ids[0][:9]) == "[CLS] is the table ? [SEP] table left [SEP]"
    assert spelled(words, ids[1]) == " ".join(["[CLS]", "the", "?", "[SEP]"] + ["[PAD]"] * 12)
    assert ids.shape == (2, 16)
    assert cut.tolist() == [6, 4]


def test_a_question_keeps_its_tokens_before_the_tags() -> None:
    words = OwnWords(["is the table", "left of table near"])
    image = np.array([0])
    ids, cut = encode(words, ["is the table"], ["left of table near"], image, limit=8)
    assert spelled(words, ids[0]) == "[CLS] is the table [SEP] left of [SEP]"
    ids, cut = encode(words, ["table " * 20], ["left"], image, limit=8)
    assert spelled(words, ids[0]) == "[CLS] table table table table table table [SEP]"
    assert cut.tolist() == [8]


def test_words_in_use_are_renumbered() -> None:
    ids = np.array([[9, 4, 0], [7, 9, 0]])
    new, kept = compact(ids, pad=0)
    assert kept.tolist() == [0, 4, 7, 9]
    assert kept[new].tolist() == ids.tolist()
    new, kept = compact(np.array([[5, 3, 1]]), pad=1)
    assert kept[0] == 1
    assert kept[new].tolist() == [[5, 3, 1]]


def test_words_and_signs_are_split_and_lower_cased() -> None:
    assert split("Is the T-shirt here?") == ["is", "the", "t", "-", "shirt", "here", "?"]
