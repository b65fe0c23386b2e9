"""Tokenisers for sentence pairs: a backbone lays them out its own way; damaged files are named."""

from pathlib import Path

import pytest
from helpers.wsd_files import tokenizer_json

from longtail.benchmarks.wsd import tokens as wsd_tokens
from longtail.benchmarks.wsd.tokens import digest_of, load_tokenizer


def test_a_backbones_own_layout_of_pairs_is_used(tmp_path: Path) -> None:
    for separators in (1, 2):
        tokenizer = load_tokenizer(str(tokenizer_json(tmp_path / "backbone", separators)))
        assert tokenizer.template.middle == (2,) * separators
        assert (tokenizer.template.first, tokenizer.template.mark) == (1, 4)
        long = "cats chase mice . cats chase mice ."
        assert len(tokenizer.encode([long])[0][0]) == 8  # its own truncation is off
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_tokenizer(str(tmp_path / "empty"))


def test_a_name_is_looked_up_once_and_its_tokeniser_read_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_json(tmp_path / "snapshot", 1)
    monkeypatch.setattr(wsd_tokens, "locate", lambda name: tmp_path / "snapshot")
    assert load_tokenizer("some/name").digest == digest_of(str(tmp_path / "snapshot"))


def test_a_damaged_tokenizer_json_is_named(tmp_path: Path) -> None:
    path = tokenizer_json(tmp_path / "backbone", 1) / "tokenizer.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(ValueError, match=r"the tokenizer\.json of .*backbone is damaged: EOF"):
        load_tokenizer(str(path.parent))
    path.write_bytes(whole[:200] + b"\xff" + whole[200:])
    for use in (load_tokenizer, digest_of):
        with pytest.raises(ValueError, match=r"backbone/tokenizer\.json is damaged: "):
            use(str(path.parent))
