"""Damaged and made-up input: a result or one clear `ValueError`, never anything else.

`make test` tries a little of everything; `make soak` asks for hours of it with
LONGTAIL_FUZZ=<inputs per test>.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail.benchmarks.images import files as image_files
from longtail.benchmarks.nlp5.readers import squad, srl, sst, wikisql, woz
from longtail.report.results import load
from longtail.runs.config import read_toml, resolve
from longtail.runs.files import RunFiles
from longtail.runs.integrity import check_folder
from longtail.runs.session import RunOptions, train_run
from longtail.runs.snapshot import Snapshots
from longtail.study.expand import expand
from longtail.study.file import parse_seeds, read_study

INPUTS = int(os.environ.get("LONGTAIL_FUZZ", "80"))
fuzz = settings(
    max_examples=INPUTS,
    deadline=None,
    derandomize="LONGTAIL_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)

Mutation = tuple[str, float, bytes]
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "replace", "insert", "remove", "zero", "repeat"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes, mutations: list[Mutation]) -> bytes:
    """The bytes, damaged as transfers, disks and people damage them."""
    for kind, place, extra in mutations:
        at = int(place * len(content))
        end = at + len(extra)
        content = {
            "cut": content[:at],
            "replace": content[:at] + extra + content[end:],
            "insert": content[:at] + extra + content[at:],
            "remove": content[:at] + content[end:],
            "zero": content[:at] + bytes(len(content) - at),
            "repeat": content[:end] + content[at:],
        }[kind]
    return content


def clear(attempt: Callable[[], Any]) -> Any:
    """What it gives, or the error that it explains itself with."""
    try:
        return attempt()
    except ValueError as error:
        assert str(error).strip()  # noqa: PT017
        return error


QA = "W_0\t1\nThe band began in May .\n2\tbegan\t1\nwho\t_\t_\tbegan\t_\t_\t_\t?\tThe band\n\n"
SQUAD = {
    "data": [
        {
            "title": "a",
            "paragraphs": [
                {
                    "context": "The band began in May.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who began?",
                            "answers": [{"text": "The band", "answer_start": 0}],
                        }
                    ],
                }
            ],
        }
    ]
}
READERS: dict[str, tuple[Callable[[Path], Any], str, bytes]] = {
    "sst csv": (sst.read, "a.csv", b"sentence,label\na fine film,1\na dull film,0\n"),
    "sst tsv": (sst.read, "a.tsv", b"sentence\tlabel\na fine film\t1\n"),
    "sst jsonl": (sst.read, "a.jsonl", b'{"sentence": "a fine film", "label": 1}\n'),
    "qasrl": (srl.read, "a.qa", QA.encode()),
    "qasrl csv": (srl.read, "a.csv", b"qasrl_id,sentence,question,answer\n1,a b,who?,a\n"),
    "squad": (squad.read, "a.json", json.dumps(SQUAD).encode()),
    "woz": (woz.read, "a.json", b'[{"dialogue_idx": 0, "dialogue": []}]'),
    "wikisql": (wikisql.read, "a.jsonl", b'{"phase": 1, "table_id": "1", "question": "?"}\n'),
}


@pytest.mark.parametrize("name", READERS)
@fuzz
@given(mutations=MUTATIONS)
def test_readers_of_text(name: str, tmp_path_factory, mutations: list[Mutation]):
    read, file, content = READERS[name]
    path = tmp_path_factory.mktemp("reader") / file
    path.write_bytes(mutated(content, mutations))
    clear(lambda: read(path))
    shutil.rmtree(path.parent)


def _images() -> bytes:
    file = io.BytesIO()
    x, y = np.zeros((2, 4, 4), np.uint8), np.zeros(2, np.int64)
    np.savez_compressed(file, x_train=x, y_train=y, x_test=x, y_test=y)
    return file.getvalue()


@fuzz
@given(mutations=MUTATIONS)
def test_archives_of_images(tmp_path_factory, mutations: list[Mutation]):
    folder = tmp_path_factory.mktemp("images")
    (folder / "mnist.npz").write_bytes(mutated(_images(), mutations))
    clear(lambda: image_files._npz("mnist", folder))
    shutil.rmtree(folder)


WORDS = st.one_of(
    st.sampled_from(["", "0", "-1", "nan", "inf", "1e400", "none", "true", "[]", "{}", "9" * 5000]),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
)
KEYS = ["train.lr", "train.betas", "train.epochs", "train.clip", "data.tasks", "data.cap", "seed"]
KEYS += ["method", "optimizer", "methods.buffer", "policy.beta3", "train.evaluate_at"]


@fuzz
@given(key=st.one_of(st.sampled_from(KEYS), st.text(max_size=12)), value=WORDS)
def test_settings(key: str, value: str):
    clear(lambda: resolve("toy", flags={"method": "derpp"}, sets=[f"{key}={value}"]).id)


@fuzz
@given(text=st.one_of(WORDS, st.text("0123456789,- ", max_size=30)))
def test_seeds(text: str):
    found = clear(lambda: parse_seeds(text))
    assert isinstance(found, ValueError) or all(seed >= 0 for seed in found)


STUDY = b"""benchmark = "toy"
methods = ["finetune", "derpp"]
optimizers = ["continual", "reset"]
seeds = "0-2"
[data]
tasks = 4
[train]
lr = 0.1
[method.derpp]
buffer = 20
[grid]
"train.epochs" = [1, 2]
[report]
checks = ["mc_improves"]
pair = ["continual", "reset"]
"""


@fuzz
@given(mutations=MUTATIONS)
def test_study_files(tmp_path_factory, mutations: list[Mutation]):
    path = tmp_path_factory.mktemp("study") / "a.toml"
    path.write_bytes(mutated(STUDY, mutations))
    clear(lambda: read_toml(path))
    clear(lambda: expand(read_study(path)))
    shutil.rmtree(path.parent)


@fuzz
@given(mutations=MUTATIONS)
def test_snapshots(tmp_path_factory, mutations: list[Mutation]):
    folder = tmp_path_factory.mktemp("snapshot")
    snapshots = Snapshots(folder, config={"a": 1})
    snapshots.save({"value": torch.ones(3)})
    newest = snapshots.save({"value": torch.zeros(3)})
    content = newest.read_bytes()
    newest.write_bytes(damaged := mutated(content, mutations))
    state = snapshots.load()
    assert state is not None
    assert bool(state["value"].any()) == (damaged != content)  # the one before, or this one
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    flags = {"data.tasks": 4, "data.zero_shot": 0, "data.features": 4, "data.cap": 20}
    train_run(resolve("toy", flags=flags), folder, RunOptions("cpu", threads=1, quiet=True))
    shutil.rmtree(folder / "snapshot")
    return folder


@fuzz
@given(name=st.sampled_from([*RunFiles.CHECKED, RunFiles.RESULT]), mutations=MUTATIONS)
def test_folders(finished: Path, tmp_path_factory, name: str, mutations: list[Mutation]):
    """Whatever is changed in a finished run is found, and the report does not fall over it."""
    folder = tmp_path_factory.mktemp("folder") / "run"
    shutil.copytree(finished, folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(damaged := mutated(content, mutations))
    found = check_folder(folder)
    assert bool(found.damaged) == (damaged != content)
    results = load(folder)
    if damaged != content and name != RunFiles.WEIGHTS:
        assert not results.finished
        assert results.problems
    shutil.rmtree(folder.parent)


@fuzz
@given(name=st.sampled_from(["plan.json", "checksums.json", "timing.json"]), mutations=MUTATIONS)
def test_files_beside_the_results(finished, tmp_path_factory, name, mutations: list[Mutation]):
    folder = tmp_path_factory.mktemp("folder") / "run"
    shutil.copytree(finished, folder)
    plan = {"report": {"checks": ["os:system"], "metrics": ["RP"]}, "runs": [], "stacks": {}}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / name).write_bytes(mutated((folder / name).read_bytes(), mutations))
    load(folder)
    check_folder(folder)
    shutil.rmtree(folder.parent)
