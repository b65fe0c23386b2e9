"""The reader on 14 assays exactly as published, where LONGTAIL_FSMOL_SLICES names their folder."""

import os
from pathlib import Path

import numpy as np
import pytest

from longtail_bench.fsmol.assays import read_assays
from longtail_bench.fsmol.morgan import morgan
from longtail_bench.fsmol.prepared import prepare

pytestmark = pytest.mark.skipif(
    not os.environ.get("LONGTAIL_FSMOL_SLICES"), reason="LONGTAIL_FSMOL_SLICES is not set"
)


def test_published_files_are_read() -> None:
    found = list(read_assays(Path(os.environ["LONGTAIL_FSMOL_SLICES"])))
    assert len(found) == 14
    assert sum(len(assay.smiles) for assay in found) == 753
    assert all(assay.fingerprints is not None for assay in found)
    assert prepare(found).molecules == 750


def test_rdkit_gives_the_published_fingerprints() -> None:
    pytest.importorskip("rdkit")
    for assay in read_assays(Path(os.environ["LONGTAIL_FSMOL_SLICES"])):
        assert assay.fingerprints is not None
        made = list(morgan(assay.smiles, progress=False))
        for ours, theirs in zip(made, assay.fingerprints, strict=True):
            assert ours is not None
            assert np.array_equal(ours[0], theirs[0])
            assert np.array_equal(ours[1], theirs[1])
