"""Pretrained models' tokenisers: from a folder or a name, and damaged files are named."""

import json
from pathlib import Path

import pytest

from bench_helpers.wsd_files import tokenizer_json
from longtail_bench import tokens
from longtail_bench.tokens import digest_of, load_tokenizer


def test_texts_become_their_own_tokens_and_no_others(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json(tmp_path / "model", 1)))
    assert tokenizer.vocabulary == 18
    text = "cats chase mice . cats chase mice ."
    assert tokenizer.encode([text, "a"]) == [[9, 10, 11, 8] * 2, [5]]  # neither cut nor padded
    assert tokenizer.decode([[9, 10], [5]]) == ["cats chase", "a"]


def test_a_name_is_looked_up_once_and_its_tokeniser_read_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_json(tmp_path / "snapshot", 1)
    monkeypatch.setattr(tokens, "locate", lambda name: tmp_path / "snapshot")
    assert load_tokenizer("some/name").digest == digest_of(tmp_path / "snapshot")


def test_a_damaged_tokenizer_json_is_named(tmp_path: Path) -> None:
    path = tokenizer_json(tmp_path / "model", 1) / "tokenizer.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(ValueError, match=r"the tokenizer\.json of .*model is damaged: EOF"):
        load_tokenizer(str(path.parent))
    path.write_bytes(whole[:200] + b"\xff" + whole[200:])
    with pytest.raises(ValueError, match=r"model/tokenizer\.json is damaged: "):
        load_tokenizer(str(path.parent))
    with pytest.raises(ValueError, match=r"model/tokenizer\.json is damaged: "):
        digest_of(path.parent)


def test_an_older_vocabulary_is_read_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):  # no words at all
        load_tokenizer(str(tmp_path))
    assert digest_of(tmp_path) is None
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "table", "##s", "?"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    assert load_tokenizer(str(tmp_path)).encode(["Tables?"]) == [[5, 6, 7]]
