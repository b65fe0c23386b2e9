"""Token tables: made once, kept whole, found again; what is not theirs is never deleted."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.wsd_files import tokenizer_json, write_files

from longtail.benchmarks import wsd
from longtail.benchmarks.wsd import prepared as wsd_prepared
from longtail.benchmarks.wsd.corpus import fingerprint, read_corpus
from longtail.benchmarks.wsd.prepared import (
    ARRAYS,
    FILES,
    Prepared,
    cache_name,
    find_prepared,
    load,
    prepare,
    save,
)
from longtail.benchmarks.wsd.tokens import BackboneTokenizer, HashingTokenizer
from longtail.cli import main

TOKENIZER = HashingTokenizer()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def made(folder: Path) -> Prepared:
    return prepare(read_corpus(folder / "semcor3.0", folder / "wordnet"), TOKENIZER)


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_prepared_tables_come_back_as_they_were(folder: Path, made: Prepared) -> None:
    save(made, folder / "prepared", TOKENIZER)
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


def test_tables_of_the_wrong_size_are_named(folder: Path, made: Prepared) -> None:
    place = folder / "prepared"
    save(made, place, TOKENIZER)
    for name in ARRAYS:
        whole = np.load(place / f"{name}.npy")
        for wrong in (whole[:-1], whole[:0], whole[None]):
            np.save(place / f"{name}.npy", wrong)
            # where two tables do not fit together, either may be the damaged one
            pair = {"gloss_ends": "(gloss_ends|glosses)", "sentence_ends": "sentence(s|_ends)"}
            with pytest.raises(ValueError, match=rf"/{pair.get(name, name)}\.npy is damaged: .*"):
                load(place)
        np.save(place / f"{name}.npy", whole)
    load(place)
    for name in ("lemmas.txt", "senses.tsv"):
        text = (place / name).read_text()
        for wrong in (text.rpartition("\n")[0], text + "\nmore", text.replace("\t3\t", "\tx\t")):
            if wrong != text:
                (place / name).write_text(wrong)
                with pytest.raises(ValueError, match=f"{name} is damaged"):
                    load(place)
        (place / name).write_bytes(text.encode() + b"\xff")
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            load(place)
        (place / name).write_text(text)
    meta = json.loads((place / "meta.json").read_text())
    for wrong in (
        [1],
        {},
        {**meta, "template": {}},
        {**meta, "template": 1},
        {**meta, "facts": {}},
    ):
        (place / "meta.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=r"meta\.json is damaged"):
            load(place)


def test_a_folder_that_is_not_ours_is_left_alone(
    folder: Path, made: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = ["--semcor", str(folder / "semcor3.0"), "--wordnet", str(folder / "wordnet")]
    backbone = str(tokenizer_json(folder / "backbone", 1))
    ours = folder / "ours"
    save(made, ours, TOKENIZER)
    (folder / "file").write_text("mine")
    for case in ("app", "more", "below", "null", "file"):
        place = folder / case
        if case in ("app", "null"):
            place.mkdir()
            (place / "meta.json").write_text("null" if case == "null" else '{"rule": 1, "a": 2}')
        if case in ("more", "below"):
            shutil.copytree(ours, place)
        if case == "more":
            (place / "thesis.txt").write_text("years of work")
        if case == "below":
            (place / "thesis").mkdir()
        before = content(folder)
        assert main(["wsd", "prepare", str(place), *sources, "--backbone", backbone]) == 2, case
        said = capsys.readouterr().err
        assert f"{place} is there already" in said
        assert said.count("\n") == 1
        with pytest.raises(ValueError, match="is there already"):
            save(made, place, TOKENIZER)
        assert content(folder) == before
    (folder / "empty").mkdir()
    save(made, folder / "empty", TOKENIZER)
    assert content(folder / "empty") == content(ours)
    (folder / "link").symlink_to(ours)
    for place in (ours, folder / "link"):
        assert main(["wsd", "prepare", str(place), *sources, "--backbone", backbone]) == 0
        assert (ours / "tokenizer.json").is_file()
        save(made, place, TOKENIZER)
        assert {path.name for path in ours.iterdir()} == FILES
    assert (folder / "link").is_symlink()


@pytest.mark.parametrize("old", [False, True])
def test_what_fails_half_way_leaves_things_as_they_were(
    folder: Path, made: Prepared, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    place = folder / "tables" / "prepared"
    if old:
        save(made, place, HashingTokenizer(100))
    before = content(folder)
    real: Any = os.replace
    seen: list[set[str]] = []

    def fail(*args: Any, **more: Any) -> None:
        raise OSError("no space left")

    def fail_at_last(source: Path, target: Path) -> None:
        if Path(target) == place and Path(source).name == "new":
            seen.append({path.name for path in Path(source).iterdir()})
            assert not place.exists()
            raise OSError("no space left")
        real(source, target)

    for module, name, broken in (
        (wsd_prepared.np, "save", fail),
        (wsd_prepared.json, "dumps", fail),
        (wsd_prepared.os, "replace", fail_at_last),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            with pytest.raises(OSError, match="no space left"):
                save(made, place, TOKENIZER)
        assert content(folder) == before
        left = list(place.parent.iterdir()) if place.parent.exists() else []
        assert left == ([place] if old else [])
    assert seen == [FILES]  # complete before it gets its name
    save(made, place, TOKENIZER)
    load(place)


def with_facts(made: Prepared, folder: Path, when: int, **facts: int) -> None:
    save(made, folder, TOKENIZER)
    meta = json.loads((folder / "meta.json").read_text())
    meta["facts"].update(facts)
    (folder / "meta.json").write_text(json.dumps(meta))
    os.utime(folder / "meta.json", (when, when))


def test_the_papers_tables_are_preferred_to_newer_ones(
    folder: Path, made: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = folder / "cache" / "wsd"
    assert find_prepared(cache, TOKENIZER.digest) is None
    with_facts(made, cache / "prepared-c", 300, targets=3)
    assert find_prepared(cache, "another") is None
    assert find_prepared(cache, TOKENIZER.digest) == cache / "prepared-c"
    assert "prepared-c is taken, NOT the paper's" in capsys.readouterr().err
    with_facts(made, cache / "prepared-b", 100)
    with_facts(made, cache / "prepared-a", 200)
    assert find_prepared(cache, TOKENIZER.digest) == cache / "prepared-a"
    told = capsys.readouterr().err
    assert f"of 3 prepared tables in {cache} prepared-a is taken, the paper's" in told
    for name in ("a", "c"):
        shutil.rmtree(cache / f"prepared-{name}")
    assert find_prepared(cache, TOKENIZER.digest) == cache / "prepared-b"
    assert capsys.readouterr().err == ""
    (cache / "prepared-b" / "meta.json").write_text('{"rule": "')
    with pytest.raises(ValueError, match=r"prepared-b/meta\.json is damaged: Unterminated"):
        find_prepared(cache, TOKENIZER.digest)


def test_the_name_in_the_cache_is_made_of_files_and_tokeniser(folder: Path) -> None:
    sources = fingerprint(folder / "semcor3.0", folder / "wordnet")
    names = {cache_name(sources, HashingTokenizer(n)) for n in (100, 200)}
    assert len(names | {cache_name("other", HashingTokenizer(100))}) == 3


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
