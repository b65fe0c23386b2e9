"""A made-up SemCor and WordNet for tests: two words, four targets, ten pairs."""

from pathlib import Path

import pytest

from bench_helpers.wordnet_files import write_wordnet
from longtail_bench.wsd import data as wsd_data
from longtail_bench.wsd import wordnet
from longtail_bench.wsd.corpus import PAPER_FACTS

GLOSSES = {
    "noun": ["a small rodent", 'a device; "he clicked the mouse"', "an animal"],
    "verb": ["go stealthily"],
    "adj": ["all of them"],
    "adv": ["not at all"],
}
LINES = [("cat", "1:05:00::", "noun", 2, 1), ("each", "5:00:00:all:00", "adj", 0, 1),
         ("mouse", "1:05:00::", "noun", 0, 1), ("mouse", "1:06:00::", "noun", 1, 4),
         ("mouse", "2:38:00::", "verb", 0, 1)]  # fmt: skip
TAGS = """<contextfile concordance=brown>
<context filename=br-a01 paras=yes>
<p pnum=1>
<s snum=1>
<wf cmd=done pos=NN lemma=cat wnsn=1 lexsn=1:05:00::>Cats</wf>
<wf cmd=ignore pos=VB>chase</wf>
<wf cmd=done pos=NN lemma=mouse wnsn=1;4 lexsn=1:05:00::;1:06:00::>mice</wf>
<punc>.</punc>
</s>
<s snum=2>
<wf cmd=done pos=NN lemma=mouse wnsn=4 lexsn=1:06:00::>Mouse</wf>
<wf cmd=done pos=NN lemma=mouse wnsn=1 lexsn=1:05:00::>mouse</wf>
</s>
</p>
</context>
</contextfile>
"""
FACTS = {"tasks": 2, "zero_shot_tasks": 1, "targets": 4, "pairs": 10}
TAG_FILE = "semcor3.0/brown1/tagfiles/br-a01"


def write_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`semcor3.0` and `wordnet` in `folder`, held to be the published ones, and an empty cache."""
    words = folder / "wordnet"
    write_wordnet(words, GLOSSES, [(*line, 3) for line in LINES])
    monkeypatch.setattr(wordnet, "SENSES_OF_3_0", len(LINES))
    (folder / TAG_FILE).parent.mkdir(parents=True)
    (folder / TAG_FILE).write_text(TAGS, "latin-1")
    sums = {name: wsd_data.digest(words / name) for name in wordnet.FILES}
    monkeypatch.setattr(wsd_data, "WORDNET_SHA256", sums)
    for name in list(PAPER_FACTS):
        monkeypatch.delitem(PAPER_FACTS, name)
    for name, value in FACTS.items():
        monkeypatch.setitem(PAPER_FACTS, name, value)
    monkeypatch.setenv("LONGTAIL_CACHE", str(folder / "cache"))


def tokenizer_json(folder: Path, separators: int) -> Path:
    """A small tokeniser of the usual kind, saved as a backbone's folder has it."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", '"', "a", "b", ":", ".", "cats", "chase", "mice",
             "mouse", "an", "animal", "small", "rodent", "device"]  # fmt: skip
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    fast = tokenizers.Tokenizer(model)
    fast.normalizer = tokenizers.normalizers.Lowercase()
    fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    middle = " ".join(["[SEP]:0"] * separators)
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A {middle} $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    fast.enable_truncation(4)
    folder.mkdir(exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    return folder
