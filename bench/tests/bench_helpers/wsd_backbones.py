"""Small backbones with tokenisers of their own, and the miniature prepared for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bench_helpers.checkpoints import write_checkpoint
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.miniature import sentences
from longtail_bench.wsd.prepared import Prepared, load, prepare, save
from longtail_bench.wsd.tokens import load_tokenizer

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", '"', "a", "b", ":"]


def words() -> list[str]:
    corpus = sentences()
    texts = [" ".join(sentence) for sentence in corpus.sentences]
    texts += [f"{sense.lemma} {sense.gloss}" for found in corpus.senses for sense in found]
    return sorted(set(re.findall(r"\w+|[^\w\s]", " ".join(texts).lower())) - set(SPECIAL))


def tokeniser(folder: Path, *, specials_first: int = 0, words_first: int = 0) -> Path:
    """Write tokenizer.json, with unused tokens before the special ones, or before the words."""
    tokenizers = pytest.importorskip("tokenizers")
    unused = [f"[unused{i}]" for i in range(specials_first + words_first)]
    listed = [*unused[:specials_first], *SPECIAL, *unused[specials_first:], *words()]
    ids = {word: i for i, word in enumerate(listed)}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    fast.normalizer = tokenizers.normalizers.Lowercase()
    fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    folder.mkdir(exist_ok=True, parents=True)
    fast.save(str(folder / "tokenizer.json"))
    return folder


def backbone(folder: Path, *, vocab: int = 4000, positions: int = 96, **shift: int) -> Path:
    """A random BERT of two narrow layers, saved as transformers would."""
    tokeniser(folder, **shift)
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab, hidden=16, layers=2, heads=2, intermediate=24, positions=positions
    )
    return write_checkpoint(Encoder(config), folder)


def tables(folder: Path, source: Path) -> Prepared:
    """The miniature's sentences in the tokens of a backbone, in a folder."""
    tokenizer = load_tokenizer(str(source))
    save(prepare(sentences(), tokenizer), folder)
    return load(folder)
