"""WSD-CL's files: found, fetched, checked against what the paper says; mistakes are named."""

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bench_helpers.wsd_files import TAG_FILE, TAGS, write_files
from longtail.cli import main
from longtail_bench.wsd import data as wsd_data
from longtail_bench.wsd.__main__ import main as prepare_tables
from longtail_bench.wsd.corpus import PAPER_FACTS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, monkeypatch)
    return tmp_path


def test_check_prints_the_facts_and_fails_where_they_differ(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "wsd", "--check", str(folder)]) == 0
    assert "zero shot tasks" in capsys.readouterr().out
    assert main(["data", "wsd", "--check", "--dir", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["pairs"] == 10
    monkeypatch.setitem(PAPER_FACTS, "pairs", 11)
    assert main(["data", "wsd", "--check", str(folder), "--quiet"]) == 2
    assert "pairs is 10, expected 11" in capsys.readouterr().err


def test_check_counts_the_tag_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / TAG_FILE).write_text(TAGS.replace("wnsn=4 lex", "wnsn=0 lex"))
    assert main(["data", "wsd", "--check", str(folder), "--json"]) == 2
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["differ"] == ["targets", "pairs"]
    assert "targets is 3, expected 4; it has 1 of SemCor's 352 tag files" in told.err
    assert told.err.count("\n") == 1


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
    with pytest.raises(ValueError, match=r"No such file or folder: .*absent"):
        wsd_data.locate(str(folder / "semcor3.0"), str(folder / "absent"))


def test_what_is_no_archive_or_a_damaged_one_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "semcor.txt"
    path.write_text("no archive")
    sources = ["--semcor", str(path), "--wordnet", str(folder / "wordnet")]
    assert prepare_tables([str(folder / "out"), *sources]) == 2
    said = capsys.readouterr().err
    assert f"{path} is not a readable tar archive" in said
    assert said.count("\n") == 1
    (folder / "noise").write_bytes(random.Random(0).randbytes(20_000))
    archive = folder / "WNdb.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / "noise", "dict/index.sense")
    content = bytearray(archive.read_bytes())
    content[9_000:9_064] = bytes(64)
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"WNdb\.tar\.gz is not a readable tar archive: "):
        wsd_data._unpack(archive, folder / "unpacked")
    assert not (folder / "unpacked").exists()


def test_unpacking_that_was_broken_off_is_begun_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, place = folder / "WNdb.tar.gz", folder / "unpacked"
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("index.sense", "data.noun", "data.verb", "data.adj", "data.adv"):
            packed.add(folder / "wordnet" / name, f"dict/{name}")
    write, written = tarfile.TarFile.makefile, []

    def full(self: tarfile.TarFile, *args: Any) -> None:
        written.append(args)
        if len(written) == 4:
            raise OSError("No space left on device")
        write(self, *args)

    monkeypatch.setattr(tarfile.TarFile, "makefile", full)
    with pytest.raises(OSError, match="No space left"):
        wsd_data._unpack(archive, place)
    assert not place.exists()
    assert not any(folder.glob(".unpacking-*"))
    assert wsd_data._unpack(archive, place) == place / "dict"
    assert len([*(place / "dict").iterdir()]) == 5
