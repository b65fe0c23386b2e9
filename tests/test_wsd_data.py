"""WSD-CL's files: found, counted, tokenised once, cached; mistakes are named with their place."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from wordnet_files import write_wordnet

from longtail.benchmarks import wordnet, wsd, wsd_data, wsd_predict, wsd_tokens
from longtail.benchmarks.wsd_corpus import facts, fingerprint, read_corpus
from longtail.benchmarks.wsd_miniature import miniature
from longtail.benchmarks.wsd_prepared import ARRAYS, cache_name, load, prepare, save
from longtail.benchmarks.wsd_tokens import (
    BackboneTokenizer,
    HashingTokenizer,
    digest_of,
    load_tokenizer,
)
from longtail.cli import main

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    words = tmp_path / "wordnet"
    write_wordnet(words, GLOSSES, [(*line, 3) for line in LINES])
    monkeypatch.setattr(wordnet, "SENSES_OF_3_0", len(LINES))
    tags = tmp_path / "semcor3.0" / "brown1" / "tagfiles" / "br-a01"
    tags.parent.mkdir(parents=True)
    tags.write_text(TAGS, "latin-1")
    sums = {name: wsd_data.digest(words / name) for name in wordnet.FILES}
    monkeypatch.setattr(wsd_data, "WORDNET_SHA256", sums)
    monkeypatch.setattr(wsd_data, "PAPER_FACTS", FACTS)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_words_are_tasks_and_all_their_senses_candidates(folder: Path) -> None:
    corpus = read_corpus(folder / "semcor3.0", folder / "wordnet")
    assert corpus.lemmas == ["cat", "mouse"]
    assert [len(senses) for senses in corpus.senses] == [1, 3]
    assert corpus.gold == [(0,), (0, 1), (1,), (0,)]
    found = facts(corpus.lemmas, corpus.task, np.array([1, 3]))
    assert {name: found[name] for name in FACTS} == FACTS
    assert (found["largest_task"], found["largest_task_train"]) == ("mouse", 2)


def test_a_sense_that_wordnet_lacks_is_named_with_file_and_line(folder: Path) -> None:
    path = folder / "semcor3.0" / "brown1" / "tagfiles" / "br-a01"
    path.write_text(TAGS.replace("wnsn=1 lexsn=1:05:00::>Cats", "wnsn=7 lexsn=1:99:00::>Cats"))
    with pytest.raises(ValueError, match=r"brown1/tagfiles/br-a01, line 5: sense 7 .* of 'cat'"):
        read_corpus(folder / "semcor3.0", folder / "wordnet")


def test_check_prints_the_facts_and_fails_where_they_differ(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "wsd", "--check", str(folder)]) == 0
    assert "zero shot tasks" in capsys.readouterr().out
    assert main(["data", "wsd", "--check", "--dir", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["pairs"] == 10
    monkeypatch.setattr(wsd_data, "PAPER_FACTS", {**FACTS, "pairs": 11})
    assert main(["data", "wsd", "--check", str(folder), "--quiet"]) == 2
    assert "pairs is 10, expected 11" in capsys.readouterr().err


def test_missing_and_foreign_files_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = folder / "empty"
    empty.mkdir()
    assert main(["data", "wsd", "--check", str(empty)]) == 2
    assert "has no SemCor 3.0" in capsys.readouterr().err
    path = folder / "wordnet" / "data.adv"
    path.write_text(path.read_text() + "more\n")
    assert main(["data", "wsd", "--check", str(folder)]) == 2
    assert f"{path} is not WordNet 3.0's" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"no SemCor in .*longtail data wsd"):
        wsd_data.locate()


def test_prepared_tables_come_back_as_they_were(folder: Path) -> None:
    tokenizer = HashingTokenizer()
    corpus = read_corpus(folder / "semcor3.0", folder / "wordnet")
    made = prepare(corpus, tokenizer)
    save(made, folder / "prepared", tokenizer)
    again = load(folder / "prepared")
    for name in (*ARRAYS, "numbers", "counts"):
        assert np.array_equal(getattr(made, name), getattr(again, name)), name
    assert isinstance(again.sentences, np.memmap)
    assert (again.lemmas, again.senses) == (made.lemmas, made.senses)
    assert again.senses[2] == ("1:06:00::", "a device")  # examples are no part of a definition
    with pytest.raises(ValueError, match="is not a prepared WSD-CL"):
        load(folder)
    for name in ("senses.tsv", "gold.npy"):
        path = folder / "prepared" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:10])
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            load(folder / "prepared")
        path.write_bytes(whole)
    meta = folder / "prepared" / "meta.json"
    meta.write_text(meta.read_text().replace('"rule": 1', '"rule": 0'))
    with pytest.raises(ValueError, match="was prepared by rule 0"):
        load(folder / "prepared")


def test_the_cache_is_named_by_content(folder: Path) -> None:
    places = folder / "semcor3.0", folder / "wordnet"
    before = fingerprint(*places)
    assert fingerprint(*places) == before
    names = {cache_name(before, HashingTokenizer(n)) for n in (100, 200)}
    assert len(names) == 2
    path = folder / "semcor3.0" / "brown1" / "tagfiles" / "br-a01"
    path.write_text(TAGS.replace("chase", "hunt"))
    assert fingerprint(*places) != before


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


def test_a_backbones_own_layout_of_pairs_is_used(folder: Path) -> None:
    for separators in (1, 2):
        tokenizer = load_tokenizer(str(tokenizer_json(folder / "backbone", separators)))
        assert tokenizer.template.middle == (2,) * separators
        assert (tokenizer.template.first, tokenizer.template.mark) == (1, 4)
        long = "cats chase mice . cats chase mice ."
        assert len(tokenizer.encode([long])[0][0]) == 8  # its own truncation is off
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_tokenizer(str(folder / "semcor3.0"))


def test_a_corpus_is_prepared_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = str(tokenizer_json(folder / "backbone", 1))
    settings = wsd.Settings(
        semcor=str(folder / "semcor3.0"), wordnet=str(folder / "wordnet"), backbone=backbone
    )
    first = wsd.prepared_of(settings)
    assert len(list((folder / "cache" / "wsd").glob("prepared-*/meta.json"))) == 1
    wsd._from_corpus.cache_clear()
    monkeypatch.setattr(wsd, "prepare", None)  # would fail if it were called again
    again = wsd.prepared_of(settings)
    assert np.array_equal(first.sentences, again.sentences)
    sentence = again.sentences[: again.sentence_ends[1]]
    assert sentence.tolist() == [9, 10, 11, 8]
    assert again.targets[:2].tolist() == [[0, 0, 0, 1], [1, 0, 2, 3]]
    # a machine with the tables alone, told nothing but the backbone
    wsd._from_corpus.cache_clear()
    found = wsd.prepared_of(wsd.Settings(backbone=backbone))
    assert np.array_equal(first.sentences, found.sentences)


def test_without_any_files_no_tokenizer_is_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsd, "load_tokenizer", None)  # by name it would ask the network
    wsd._from_corpus.cache_clear()
    with pytest.raises(ValueError, match="longtail data wsd"):
        wsd.prepared_of(wsd.Settings(backbone="bert-base-uncased"))


def test_prepare_writes_what_another_machine_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = str(tokenizer_json(folder / "backbone", 1))
    sources = ["--semcor", str(folder / "semcor3.0"), "--wordnet", str(folder / "wordnet")]
    out = folder / "prepared"
    assert main(["wsd", "prepare", str(out), *sources, "--backbone", backbone]) == 0
    assert "10 pairs of 2 tasks" in capsys.readouterr().out
    assert wsd.prepared_of(wsd.Settings(prepared=str(out))).lemmas == ["cat", "mouse"]
    kept = (out / "tokenizer.json").read_text()
    assert BackboneTokenizer(kept, "it").template.first == 1
    assert main(["wsd", "prepare", str(folder), *sources, "--backbone", backbone]) == 2


def test_wordnet_through_nltk_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = read_corpus(folder / "semcor3.0", folder / "wordnet")

    def synset(word: str, key: str, gloss: str) -> types.SimpleNamespace:
        lemma = types.SimpleNamespace(
            name=lambda: word, key=lambda: f"{word}%{key}", count=lambda: 3
        )
        return types.SimpleNamespace(lemmas=lambda: [lemma], definition=lambda: gloss)

    found = {
        ("cat", "n"): [synset("cat", "1:05:00::", "an animal")],
        ("mouse", "n"): [
            synset("mouse", "1:05:00::", "a small rodent"),
            synset("mouse", "1:06:00::", "a device"),
        ],
        ("mouse", "v"): [synset("mouse", "2:38:00::", "go stealthily")],
    }
    fake = types.SimpleNamespace(
        get_version=lambda: "3.0", synsets=lambda word, pos: found.get((word, pos), [])
    )
    corpus_module = types.ModuleType("nltk.corpus")
    corpus_module.wordnet = fake  # pyright: ignore
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus_module)
    through = read_corpus(folder / "semcor3.0", "nltk")
    assert through.gold == files.gold
    assert [[s.key for s in senses] for senses in through.senses] == [
        [s.key for s in senses] for senses in files.senses
    ]
    fake.get_version = lambda: "3.1"
    with pytest.raises(ValueError, match=r"nltk has WordNet 3\.1"):
        read_corpus(folder / "semcor3.0", "nltk")


def test_packages_that_are_not_there_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nltk", "wn"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, "nltk.corpus", None)
        with pytest.raises(ValueError, match=f"pip install {name}"):
            read_corpus(folder / "semcor3.0", name)


def test_prediction_finds_the_wordnet_that_was_fetched(folder: Path) -> None:
    known = miniature()
    with pytest.raises(ValueError, match="longtail data wsd"):
        wsd_predict._senses(known, "mouse", "")
    place = folder / "cache" / "wsd" / "dict"
    place.parent.mkdir(parents=True)
    (folder / "wordnet").rename(place)
    keys = [sense.key for sense in wsd_predict._senses(known, "mouse", "")]
    assert keys == ["1:05:00::", "1:06:00::", "2:38:00::"]


def test_a_name_is_looked_up_once_and_its_tokeniser_read_from_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_json(folder / "snapshot", 1)
    monkeypatch.setattr(wsd_tokens, "locate", lambda name: folder / "snapshot")
    assert load_tokenizer("some/name").digest == digest_of(str(folder / "snapshot"))
