"""FS-Mol's files in the published form, for tests."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from longtail_bench.fsmol.assays import SUFFIXES, WIDTH, Assay


def write_assay(assay: Assay, folder: Path, compressed: bool = True) -> Path:
    """The assay in the published form, with the fields that are read."""
    path = folder / assay.fold / f"{assay.name}{SUFFIXES[compressed]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    for i, smiles in enumerate(assay.smiles):
        entry: dict[str, Any] = {"SMILES": smiles, "Property": f"{float(assay.labels[i])}"}
        entry["Assay_ID"] = assay.name
        if assay.fingerprints is not None:
            dense = np.zeros(WIDTH, int)
            places, counts = assay.fingerprints[i]
            dense[places] = counts
            entry["fingerprints"] = dense.tolist()
        text.write(json.dumps(entry) + "\n")
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if compressed else content)
    return path
