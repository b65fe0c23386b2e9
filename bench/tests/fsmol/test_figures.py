"""The figures of docs/benchmarks/fsmol.md say what the published table says."""

from xml.etree import ElementTree

import numpy as np
import pytest

from helpers.scripts import load
from longtail_bench.fsmol.assays import Assay

figures = load("docs/draw_fsmol.py")


def words(picture: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(picture).iter() if element.text]


def test_forgetting_by_size_is_that_of_the_published_table():
    stale = "docs/figures/fsmol_forgetting.svg is stale: run `python docs/draw_fsmol.py`"
    assert figures.main(["--check"]) == 0, stale


def test_another_number_makes_another_picture():
    parts = ("head", "body", "tail")
    row = {f"breakdown.{part}.{m}": v for part in parts for m, v in (("RP", 61.0), ("FGT", 4.0))}
    row |= {f"{key}_se": 0.1 for key in row}
    rows = [{"method": "finetune", "policy": policy, **row} for policy in figures.POLICIES]
    rows[1]["breakdown.tail.FGT"] = 7.26
    assert words(figures.forgetting(rows)).count("4.0") == 8
    assert "7.3" in words(figures.forgetting(rows))


def test_sizes_are_labelled_at_their_places():
    found = words(figures.sizes([32] * 60 + [100] * 30 + [3000] * 10))
    assert {"3,000", "100", "32", "molecules of 100 assays"} <= set(found)


def test_molecules_of_the_largest_and_the_smallest_assay_are_drawn():
    pytest.importorskip("rdkit")
    chains = [f"C{'C' * i}c1ccccc1C(=O)NCCO" for i in range(5, 13)]
    labels = np.array([1, 0] * 4, dtype=bool)
    assays = [Assay("LARGE", "train", chains, labels, None)]
    assays += [Assay("SMALL", "train", chains[:6], labels[:6], None)]
    picture = figures.molecules(assays)
    said = " ".join(words(picture))
    assert "LARGE, the largest: 8 molecules, 4 active" in said
    assert said.count("inactive") == 4
    assert picture.count("<g transform") == 8
