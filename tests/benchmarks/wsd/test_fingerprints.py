"""Tables are those of the backbone that reads them, and are known by what is in them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import wsd_backbones

from longtail.benchmarks import wsd
from longtail.benchmarks.wsd.fingerprints import find_tables, tables_digest
from longtail.cli import main


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


def test_tables_are_found_by_their_content(tmp_path: Path) -> None:
    source, cache = wsd_backbones.backbone(tmp_path / "one"), tmp_path / "cache"
    prepared = wsd_backbones.tables(cache / "prepared-a", source)
    other = wsd_backbones.backbone(tmp_path / "other", words_first=1)
    digests = {tables_digest(prepared), tables_digest(wsd_backbones.tables(cache / "b", other))}
    for changed in (
        replace(prepared, lemmas=[*prepared.lemmas[:-1], "another"]),
        replace(prepared, sentences=np.array(prepared.sentences)[::-1]),
        replace(prepared, counts=prepared.counts + 1),
    ):
        digests.add(tables_digest(changed))
    assert len(digests) == 5
    wanted = tables_digest(prepared)
    shutil.move(cache / "prepared-a", cache / "prepared-c")
    (cache / "prepared-a").mkdir()
    (cache / "prepared-a" / "meta.json").write_text("{ cut off")
    assert find_tables(cache, wanted) == cache / "prepared-c"
    assert find_tables(cache, "0" * 16) is None
