"""Inputs by which the soaks found something; each gives one clear sentence now."""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from pathlib import Path

import pytest
import torch

from helpers.attacks import finished_run
from helpers.tensor_files import rewritten
from longtail.memory import load_memory, save_memory
from longtail.memory.document import remembered
from longtail.optim import ContinualAdamW
from longtail.optim.average import TaskAverage
from longtail.report import read
from longtail.runs.integrity import check_folder
from longtail.runs.snapshot import Snapshots
from longtail_bench.fsmol.assays import read_assays
from longtail_bench.nlp5.readers import wikisql
from longtail_bench.vqa.gqa.feature_forms import read_tsv
from longtail_bench.vqa.gqa.members import members
from longtail_bench.vqa.problems import Problems

DEEP = "[" * 5000
LONG = "9" * 5000


@pytest.mark.parametrize("text", [DEEP, LONG])
def test_lines_of_json_that_python_cannot_hold_are_named(tmp_path: Path, text: str):
    path = tmp_path / "a.jsonl"
    query = {"sel": "name", "agg": "", "conds": []}
    fine = json.dumps({"table_id": "1", "question": "Who?", "sql": query})
    path.write_text(f'{fine}\n{{"table_id": {text}}}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: not JSON that can be read"):
        wikisql.read(path)


@pytest.mark.parametrize("text", [DEEP, LONG])
def test_members_that_python_cannot_hold_are_named(tmp_path: Path, text: str):
    path = tmp_path / "a.json"
    path.write_text(f'{{"1": {{"width": {text}}}}}')
    with pytest.raises(ValueError, match=r"a\.json, before byte .* broken JSON"):
        list(members(path))


def test_deep_labels_are_one_problem_of_many(tmp_path: Path):
    (tmp_path / "features.tsv").write_text(f"1\t{DEEP}\n")
    problems = Problems()
    assert list(read_tsv(tmp_path, {"1"}, problems)) == []
    assert sum(problems.counts.values()) == 1


def test_an_assay_that_cannot_be_unpacked_is_named(tmp_path: Path):
    (tmp_path / "train").mkdir()
    content = bytearray(gzip.compress(b'{"SMILES": "CCO", "Property": "1.0"}\n', mtime=0))
    content[12:20] = b"\xff" * 8
    (tmp_path / "train" / "C1.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"C1\.jsonl\.gz"):
        list(read_assays(tmp_path))


@pytest.mark.parametrize("text", ["[1]", '{"train": 3}', DEEP])
def test_a_list_of_assays_that_is_none_is_named(tmp_path: Path, text: str):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "C1.jsonl").write_text('{"SMILES": "CCO", "Property": "1.0"}\n')
    (tmp_path / "fsmol-0.1.json").write_text(text)
    with pytest.raises(ValueError, match=r"fsmol-0\.1\.json is not a list of assays by fold"):
        list(read_assays(tmp_path))


def test_checksums_of_a_name_that_no_file_can_have_are_a_problem_of_one_run(tmp_path: Path):
    folder = finished_run(tmp_path / "run")
    path = folder / "checksums.json"
    recorded = json.loads(path.read_text())
    recorded["sha256"] = {"scores" + LONG: "0"} | recorded["sha256"]
    path.write_text(json.dumps(recorded))
    results = read(tmp_path)
    assert results.finished.empty
    (said,) = (text for text in results.problems if "cannot be read" in text)
    assert len(said) < 300
    (wrong,) = check_folder(tmp_path).damaged.values()
    assert wrong in said


@pytest.mark.parametrize("size", [512, 1641])
def test_a_snapshot_of_zeros_makes_no_folder_elsewhere(tmp_path: Path, size: int, monkeypatch):
    """torch takes it for an empty archive of its oldest form, and made a folder to unpack it."""
    made: list[str] = []
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *args, **names: made.append("a folder"))
    snapshots = Snapshots(tmp_path, config={"a": 1})
    snapshots.save({"value": torch.ones(3)})
    content = bytes(size)
    newest = tmp_path / f"00000002-{hashlib.sha256(content).hexdigest()}.pt"
    newest.write_bytes(content)
    state = snapshots.load()
    assert state is not None
    assert bool(state["value"].all())
    assert made == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"data_offsets":[16,24]', '"data_offsets":[1e400,24]'),
        ('"data_offsets":[16,24]', f'"data_offsets":[{DEEP},24]'),
        (r"\"steps\": 1,", r"\"steps\": 1e400,"),
        (r"\"steps\": 1,", rf"\"steps\": {LONG[:400]},"),
        (r"\"steps\": 1,", rf"\"steps\": {DEEP},"),
        (r"\"tasks\": 1,", r"\"tasks\": -1,"),
        (r"\"tasks\": 1,", r"\"tasks\": 1e300,"),
    ],
)
def test_a_memory_that_counts_to_infinity_is_refused(tmp_path: Path, old: str, new: str):
    model = torch.nn.Linear(2, 2)
    optimizer = ContinualAdamW(model.parameters(), fused=False)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.end_task()
    path = Path(save_memory(optimizer, tmp_path, model))
    rewritten(path, old, new)
    fresh = ContinualAdamW(model.parameters(), fused=False)
    with pytest.raises(ValueError, match=r"Cannot load .*: it"):
        load_memory(fresh, path, model, quiet=True)
    assert remembered(path) == (0, 0)
    assert not fresh.state


@pytest.mark.parametrize("value", ["1e400", LONG[:400], DEEP, "-1"])
def test_an_average_that_counts_to_infinity_is_named(tmp_path: Path, value: str):
    model = torch.nn.Linear(2, 2)
    average = TaskAverage(model)
    torch.nn.init.ones_(model.weight)
    average.end_task()
    rewritten(average.save(tmp_path), r"\"weight\": 1", rf"\"weight\": {value}")
    with pytest.raises(ValueError, match=r"longtail_average\.safetensors holds no average"):
        average.load(tmp_path)
