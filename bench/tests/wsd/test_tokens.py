"""Tokenisers for sentence pairs: a backbone lays them out its own way."""

from pathlib import Path

import pytest

from bench_helpers.wsd_files import tokenizer_json
from longtail_bench.wsd.tokens import load_tokenizer


def test_a_backbones_own_layout_of_pairs_is_used(tmp_path: Path) -> None:
    for separators in (1, 2):
        tokenizer = load_tokenizer(str(tokenizer_json(tmp_path / "backbone", separators)))
        assert tokenizer.template.middle == (2,) * separators
        assert (tokenizer.template.first, tokenizer.template.mark) == (1, 4)
        long = "cats chase mice . cats chase mice ."
        assert len(tokenizer.encode([long])[0][0]) == 8  # its own truncation is off


def test_a_tokeniser_without_a_layout_of_pairs_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tokenizer_json(tmp_path / "backbone", 1) / "tokenizer.json"
    fast = tokenizers.Tokenizer.from_file(str(path))
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B", special_tokens=[("[SEP]", 2)]
    )
    fast.save(str(path))
    with pytest.raises(ValueError, match=r"backbone lays out a pair as \[5, 2, 6\], not as"):
        load_tokenizer(str(path.parent))
