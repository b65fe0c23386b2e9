"""Prepared tables: what goes in comes out, and RDKit is asked only if needed."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.fsmol_files import write_assay
from longtail.cli import main
from longtail_bench.fsmol import data
from longtail_bench.fsmol.assays import WIDTH, Assay
from longtail_bench.fsmol.miniature import miniature
from longtail_bench.fsmol.prepared import load, prepare, save


def assays(bits: bool = True) -> list[Assay]:
    """Two assays that share a molecule."""
    known = {
        "CCO": (np.array([1, 80, 807], np.uint16), np.array([1, 2, 300 - 45], np.uint8)),
        "CCN": (np.array([0, 7, 2047], np.uint16), np.array([1, 1, 1], np.uint8)),
        "CCC": (np.array([33], np.uint16), np.array([2], np.uint8)),
    }
    lists = {"CHEMBL1": (["CCO", "CCN"], [1, 0]), "CHEMBL2": (["CCC", "CCO"], [0, 0])}
    return [
        Assay(
            name, "train", smiles, np.array(y, bool), [known[s] for s in smiles] if bits else None
        )
        for name, (smiles, y) in lists.items()
    ]


def test_each_molecule_is_kept_once() -> None:
    found = prepare(assays())
    assert found.molecule.tolist() == [0, 1, 2, 0]
    assert found.label.tolist() == [1, 0, 0, 0]
    assert found.offsets.tolist() == [0, 2, 4]
    bits = np.unpackbits(found.packed(), axis=1)
    assert bits.shape == (3, WIDTH)
    assert [np.flatnonzero(row).tolist() for row in bits] == [[1, 80, 807], [0, 7, 2047], [33]]
    counts = found.dense_counts()
    assert counts[0, [1, 80, 807, 808]].tolist() == [1, 2, 255, 0]
    assert np.array_equal(counts > 0, bits > 0)


def test_saved_and_loaded_tables_are_the_same(tmp_path: Path) -> None:
    saved = miniature()
    save(saved, tmp_path / "mini")
    found = load(tmp_path / "mini")
    for name, value in vars(saved).items():
        assert np.array_equal(getattr(found, name), value), name


def test_without_fingerprints_and_rdkit_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert prepare(assays()).molecules == 3  # published ones need nothing
    with pytest.raises(ValueError, match=r"longtail\[mol\]"):
        prepare(assays(bits=False))


def test_rdkit_makes_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    found = prepare(assays(bits=False))
    assert "fingerprints" in capsys.readouterr().err
    assert found.bits[: found.bit_ends[1]].tolist() == [80, 222, 294, 807, 1057, 1410]
    strange = Assay("A", "train", ["N[PH](=O)(=O)O", "CC("], np.array([True, False]), None)
    with pytest.raises(ValueError, match=r"^SMILES that RDKit cannot read: CC\($"):
        prepare([strange], progress=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two assays in published form, with the facts to be expected, and a cache of its own."""
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    for assay in assays():
        write_assay(assay, tmp_path / "files")
    data.prepared_from.cache_clear()
    monkeypatch.setattr(data, "FACTS", data.facts(prepare(assays())))
    return tmp_path / "files"


def test_check_prints_the_facts_and_fails_where_they_differ(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fsmol", "--check", str(folder)]) == 0
    assert "actives                      1" in capsys.readouterr().out
    assert main(["data", "fsmol", "--check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["labels"] == 4
    labels = data.FACTS["checksum"]
    data.FACTS["checksum"] = "another"
    assert main(["data", "fsmol", "--check", str(folder), "--quiet"]) == 2
    assert f"checksum is {labels}, expected another" in capsys.readouterr().err


def test_a_flipped_label_changes_the_checksum() -> None:
    one, other = assays(), assays()
    other[1].labels[:] = [True, False]
    other[0].labels[:] = [False, False]
    found = [data.facts(prepare(x)) for x in (one, other)]
    assert found[0]["actives"] == found[1]["actives"]
    assert found[0]["checksum"] != found[1]["checksum"]


def test_check_names_all_broken_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test").mkdir()
    (folder / "test/CHEMBL3.jsonl").write_text("\n".join("{}" for _ in range(12)))
    assert main(["data", "fsmol", "--check", str(folder)]) == 2
    said = capsys.readouterr().err
    assert all(f"test/CHEMBL3.jsonl:{i}: no field 'SMILES'\n" in said for i in range(1, 13))


def test_a_machine_with_the_prepared_folder_alone_can_train(folder: Path, tmp_path: Path) -> None:
    assert main(["data", "fsmol", "--check", str(folder), "--quiet"]) == 0
    assert data.prepared_from("").names == ["CHEMBL1", "CHEMBL2"]
    data.prepared_from.cache_clear()


def test_missing_files_are_told_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    data.prepared_from.cache_clear()
    assert main(["run", "fsmol", "--out", str(tmp_path / "out")]) == 2
    assert "`longtail data fsmol` fetches it" in capsys.readouterr().err
    assert main(["data", "fsmol", "--check"]) == 2
    assert "has no FS-Mol" in capsys.readouterr().err
