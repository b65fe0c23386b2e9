"""The published files: every form of them is read alike, every broken line is named."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from helpers.fsmol_files import write_assay
from longtail_bench.fsmol.assays import (
    LIST,
    WIDTH,
    Assay,
    BrokenLinesError,
    read_assays,
)


def made(name: str, fold: str = "train", n: int = 4, bits: bool = True) -> Assay:
    rng = np.random.default_rng(len(name) + n)
    found = []
    for _ in range(n):
        places = np.sort(rng.choice(WIDTH, 5, replace=False)).astype(np.uint16)
        found.append((places, rng.integers(1, 9, 5).astype(np.uint8)))
    smiles = [f"C{'C' * i}O" for i in range(n)]
    return Assay(name, fold, smiles, rng.random(n) < 0.5, found if bits else None)


def same(a: Assay, b: Assay) -> bool:
    plain = (a.name, a.fold, a.smiles) == (b.name, b.fold, b.smiles)
    bits = (a.fingerprints is None) == (b.fingerprints is None) and all(
        np.array_equal(x, y)
        for one, other in zip(a.fingerprints or (), b.fingerprints or (), strict=True)
        for x, y in zip(one, other, strict=True)
    )
    return plain and bits and np.array_equal(a.labels, b.labels)


ASSAYS = [made("CHEMBL1"), made("CHEMBL20", bits=False), made("CHEMBL3", "valid", n=3)]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("archive", ["", "tar", "tar.gz", "tar.xz"])
def test_folder_and_archive_give_the_same_assays(
    tmp_path: Path, compressed: bool, archive: str
) -> None:
    folder = tmp_path / "fs-mol"
    for assay in ASSAYS:
        write_assay(assay, folder, compressed)
    source = folder
    if archive:
        source = tmp_path / f"fsmol.{archive}"
        with tarfile.open(source, f"w:{archive[4:]}") as tar:
            tar.add(folder, "fs-mol")
    found = list(read_assays(source))
    assert len(found) == 3
    assert all(same(a, b) for a, b in zip(found, ASSAYS, strict=True))


def test_the_authors_list_chooses(tmp_path: Path) -> None:
    for assay in ASSAYS:
        write_assay(assay, tmp_path)
    (tmp_path / LIST).write_text(json.dumps({"train": ["CHEMBL20", "CHEMBL9"], "valid": []}))
    assert [assay.name for assay in read_assays(tmp_path)] == ["CHEMBL20"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Expecting property name"),
        ("[]", "a list, not a molecule"),
        ('{"Property": "1.0"}', "no field 'SMILES'"),
        ('{"SMILES": "", "Property": "1.0"}', "SMILES is ''"),
        ('{"SMILES": "C", "Property": "0.5"}', "Property is '0.5', not 0.0 or 1.0"),
        ('{"SMILES": "C", "Property": "yes"}', "could not convert string to float: 'yes'"),
        ('{"SMILES": "C", "Property": "1.0", "Assay_ID": "B"}', "Assay_ID is 'B' in the file of"),
        ('{"SMILES": "C", "Property": "1.0", "fingerprints": [1]}', "not 2048 counts"),
    ],
)
def test_every_broken_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    first = write_assay(made("CHEMBL1", bits=False), tmp_path, compressed=False)
    other = write_assay(made("CHEMBL2", bits=False), tmp_path, compressed=False)
    first.write_text(first.read_text() + line + "\n")
    other.write_text(line + "\n" + other.read_text())
    with pytest.raises(BrokenLinesError) as caught:
        list(read_assays(tmp_path))
    assert [text.rpartition(": ")[0].count(".jsonl:") for text in caught.value.lines] == [1, 1]
    assert "train/CHEMBL1.jsonl:5: " in caught.value.lines[0]
    assert "train/CHEMBL2.jsonl:1: " in caught.value.lines[1]
    assert said in str(caught.value)


def test_what_is_no_fsmol_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no assays"):
        list(read_assays(tmp_path))
    with pytest.raises(ValueError, match="no such folder or archive"):
        list(read_assays(tmp_path / "nowhere"))
    (tmp_path / "fsmol.tar").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not a whole tar archive"):
        list(read_assays(tmp_path / "fsmol.tar"))
    for compressed in (True, False):
        write_assay(made("CHEMBL1"), tmp_path / "twice", compressed)
    with pytest.raises(ValueError, match="has an assay twice"):
        list(read_assays(tmp_path / "twice"))
    cut = write_assay(made("CHEMBL1"), tmp_path / "cut")
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(BrokenLinesError, match=r"CHEMBL1\.jsonl\.gz: "):
        list(read_assays(tmp_path / "cut"))
