"""Token tables: made once and found again, and read only by the backbone they were made for."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_helpers import wsd_backbones
from bench_helpers.wsd_files import TAG_FILE, tokenizer_json, write_files
from longtail.cli import main
from longtail_bench import wsd
from longtail_bench.wsd.__main__ import main as prepare_tables
from longtail_bench.wsd.corpus import read_corpus
from longtail_bench.wsd.data import files_of
from longtail_bench.wsd.prepared import Prepared, find_prepared, load, prepare, save
from longtail_bench.wsd.tokens import HashingTokenizer

TOKENIZER = HashingTokenizer()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, monkeypatch)
    wsd._from_corpus.cache_clear()
    return tmp_path


@pytest.fixture
def made(folder: Path) -> Prepared:
    return prepare(read_corpus(folder / "semcor3.0", folder / "wordnet"), TOKENIZER)


def test_prepared_tables_come_back_as_they_were(folder: Path, made: Prepared) -> None:
    save(made, folder / "prepared")
    again = load(folder / "prepared")
    for name, value in vars(made).items():
        assert np.array_equal(getattr(again, name), value), name
    assert again.template == made.template
    assert again.senses[2] == ("1:06:00::", "a device")  # examples are no part of a definition
    with pytest.raises(ValueError, match="is not a prepared WSD-CL"):
        load(folder)


def test_the_newest_tables_of_a_tokeniser_are_taken(
    folder: Path, made: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = folder / "cache" / "wsd"
    assert find_prepared(cache, TOKENIZER.digest) is None
    other = replace(made, facts={**made.facts, "targets": 3})
    for when, (name, tables) in enumerate([("a", other), ("b", made)]):
        save(tables, cache / f"prepared-{name}")
        os.utime(cache / f"prepared-{name}" / "meta.json", (when, when))
    assert find_prepared(cache, "another") is None
    found = find_prepared(cache, TOKENIZER.digest)
    assert found is not None
    assert found.facts["targets"] == 4
    assert capsys.readouterr().err == ""
    os.utime(cache / "prepared-a" / "meta.json", (2, 2))
    found = find_prepared(cache, TOKENIZER.digest)
    assert found is not None
    assert found.facts["targets"] == 3
    assert "prepared-a is NOT the paper's data set" in capsys.readouterr().err


def test_a_corpus_is_prepared_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = str(tokenizer_json(folder / "backbone", 1))
    settings = wsd.Settings(
        semcor=str(folder / "semcor3.0"), wordnet=str(folder / "wordnet"), backbone=backbone
    )
    first = wsd.prepared_of(settings)
    assert len(list((folder / "cache" / "wsd").glob("prepared-*/meta.json"))) == 1
    wsd._from_corpus.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(wsd, "prepare", None)  # would fail if it were called again
        again = wsd.prepared_of(settings)
        assert np.array_equal(first.sentences, again.sentences)
        sentence = again.sentences[: again.sentence_ends[1]]
        assert sentence.tolist() == [9, 10, 11, 8]
        assert again.targets[:2].tolist() == [[0, 0, 0, 1], [1, 0, 2, 3]]
        # a machine with the tables alone, told nothing but the backbone
        wsd._from_corpus.cache_clear()
        found = wsd.prepared_of(wsd.Settings(backbone=backbone))
        assert np.array_equal(first.sentences, found.sentences)
    path = folder / TAG_FILE
    path.write_text(path.read_text().replace("chase", "small"))
    wsd._from_corpus.cache_clear()
    assert wsd.prepared_of(settings).sentences[1] == 15  # another corpus, tables of its own


def test_the_files_are_those_that_are_read(folder: Path) -> None:
    files = files_of(folder / "semcor3.0", folder / "wordnet")
    names = [path.relative_to(folder).as_posix() for path in files]
    assert names[:2] == [TAG_FILE, "wordnet/index.sense"]
    assert len(names) == 6


def test_without_any_files_no_tokenizer_is_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsd, "load_tokenizer", None)  # by name it would ask the network
    with pytest.raises(ValueError, match="longtail data wsd"):
        wsd.prepared_of(wsd.Settings(backbone="bert-base-uncased"))


def test_prepare_writes_what_another_machine_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = str(tokenizer_json(folder / "backbone", 1))
    sources = ["--semcor", str(folder / "semcor3.0"), "--wordnet", str(folder / "wordnet")]
    command = [str(folder / "prepared"), *sources, "--backbone", backbone]
    assert prepare_tables(command) == 0
    assert "10 pairs of 2 tasks" in capsys.readouterr().out
    settings = wsd.Settings(prepared=str(folder / "prepared"))
    assert wsd.prepared_of(settings).lemmas == ["cat", "mouse"]
    assert prepare_tables(command) == 2
    assert "prepared is there already and is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("shift", ["specials_first", "words_first"])
def test_tables_of_another_tokeniser_are_refused(
    shift: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has as many tokens or more, so nothing would be out of range."""
    wsd_backbones.tables(tmp_path / "tables", wsd_backbones.backbone(tmp_path / "one"))
    other = wsd_backbones.backbone(tmp_path / "other", **{shift: 3})
    given = ["--prepared", str(tmp_path / "tables"), "--backbone", str(other)]
    assert main(["run", "wsd", *given, "--tasks", "2", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"another tokeniser than that of {str(other)!r}" in said
    assert not (tmp_path / "run").exists()


def test_a_tokeniser_that_was_saved_again_or_is_missing_passes(tmp_path: Path) -> None:
    source = wsd_backbones.backbone(tmp_path / "one")
    prepared = wsd_backbones.tables(tmp_path / "tables", source)
    make = wsd.make_model(wsd.Settings(backbone=str(source)), prepared)
    make(0)
    path = source / "tokenizer.json"
    tree = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(tree, indent=7), "utf-8")
    wsd.make_model(wsd.Settings(backbone=str(source)), prepared)(0)
    path.unlink()
    wsd.make_model(wsd.Settings(backbone=str(source)), prepared)(0)


def test_a_backbone_with_fewer_tokens_or_places_is_refused(tmp_path: Path) -> None:
    """Also where it comes without a tokeniser to compare."""
    prepared = wsd_backbones.tables(tmp_path / "tables", wsd_backbones.backbone(tmp_path / "one"))
    vocab = prepared.template.vocab
    for changed, reason in (
        ({"vocab": vocab - 1}, f"knows {vocab - 1} tokens, the data were prepared with {vocab}"),
        ({"positions": 95}, "Invalid longest: 96, .* reads at most 95 tokens"),
    ):
        source = wsd_backbones.backbone(tmp_path / "other", **changed)
        (source / "tokenizer.json").unlink()
        with pytest.raises(ValueError, match=reason):
            wsd.make_model(wsd.Settings(backbone=str(source)), prepared)(0)
    source = wsd_backbones.backbone(tmp_path / "other", vocab=vocab, positions=96)
    wsd.make_model(wsd.Settings(backbone=str(source)), prepared)(0)
