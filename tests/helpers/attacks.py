"""What damaged and made-up input is tried on: every reader of files and of settings.

An attack has whole contents and a way to try one of them damaged:

    content = attack.contents[0]
    attack.attempt(content, mutated(content, mutations))

`attempt` returns where the input is taken, having looked at what became of it, and raises
`ValueError` where it is refused. Anything else is a failure.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_helpers.vqa_content import random_content
from helpers.tensor_files import with_checksums
from longtail import report
from longtail.memory import load_memory, save_memory
from longtail.optim import ContinualAdamW
from longtail.optim.average import TaskAverage
from longtail.runs.config import read_toml, resolve
from longtail.runs.files import RunFiles
from longtail.runs.integrity import check_folder
from longtail.runs.session import RunOptions, train_run
from longtail.runs.snapshot import Snapshots
from longtail.study.expand import expand
from longtail.study.file import parse_seeds, read_study
from longtail_bench.fsmol import assays as fsmol_assays
from longtail_bench.fsmol import prepared as fsmol_prepared
from longtail_bench.fsmol.miniature import miniature as few_molecules
from longtail_bench.images import files as image_files
from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.readers import squad, srl, sst, wikisql, woz
from longtail_bench.vqa.gqa import feature_forms, questions, scenes
from longtail_bench.vqa.prepared import PreparedVQA
from longtail_bench.vqa.problems import Problems
from longtail_bench.wsd import prepared as wsd_prepared
from longtail_bench.wsd import wordnet
from longtail_bench.wsd.miniature import miniature as few_words
from longtail_bench.wsd.semcor import read_semcor

Mutation = tuple[str, float, bytes]
MUTATIONS = ("cut", "replace", "insert", "remove", "zero", "repeat")
# What people and broken programs write where a value should be.
WORDS = (b"", b"0", b"-1", b"nan", b"NaN", b"inf", b"1e400", b"none", b"null", b"true", b"[]")
WORDS += (b"{}", b"9" * 400, b"9" * 5000, b"[" * 5000, b'{"a":' * 2000, b"\xff\xfe", b"\0", b"\n")
WORDS += (b'"', b"\\", b"/etc/passwd", b"../../x", b"os:system", b"-0.0", b"\xf0\x9f\x90\x8d")


class Trap:
    """What calls something as soon as somebody unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


TRAP = pickle.dumps({b"data": Trap(), b"labels": [1]}, 2)


@dataclass(frozen=True)
class Attack:
    """Whole contents, and what is done with a damaged one."""

    name: str
    contents: tuple[bytes, ...]
    attempt: Callable[[bytes, bytes], None]


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


def attacks(work: Path) -> list[Attack]:
    """All of them; each has a folder of its own below `work`."""
    made = [*_readers(work), *_image_files(work), *_molecules(work), *_gqa(work)]
    made += [_semcor(work), *_wordnet(work), *_prepared(work), *_settings(work), _study(work)]
    return [*made, *_snapshots(work), _memory(work), _average(work), *_folders(work)]


def _folder(work: Path, name: str) -> Path:
    folder = work / name.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- text ----------------------------------------------------------------------------------------

QA = "W_0\t1\nThe band began in May .\n2\tbegan\t1\nwho\t_\t_\tbegan\t_\t_\t_\t?\tThe band\n\n"
_ANSWER = {"id": "1", "question": "Who?", "answers": [{"text": "The band", "answer_start": 0}]}
_PARAGRAPH = {"context": "The band began in May.", "qas": [_ANSWER]}
SQUAD = {"data": [{"title": "a", "paragraphs": [_PARAGRAPH]}]}
_TURN = {
    "transcript": "the East part",
    "system_acts": ["area", ["food", "thai"]],
    "belief_state": [{"slots": [["area", "east"]], "act": "inform"}],
}
WOZ = [{"dialogue_idx": 0, "dialogue": [_TURN]}]
SQL = {"sel": 0, "agg": 3, "conds": [[1, 0, "x"], [0, 1, 3]]}
WIKISQL = {"phase": 1, "table_id": "1", "question": "How many?", "sql": SQL}
NAMED = {"table_id": "1", "question": "?", "sql": {"sel": "a b", "agg": "", "conds": []}}
TABLES = {"id": "1", "header": ["No.", "Team"]}


def _lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


READERS: dict[str, tuple[Callable[[Path], Any], str, bytes]] = {
    "sst csv": (sst.read, "a.csv", b"label,sentence\n1,a fine film\n0,a dull film\n"),
    "qasrl": (srl.read, "a.qa", QA.encode()),
    "qasrl gold": (
        srl.read,
        "gold/x.gold.csv",
        b"qasrl_id,verb_idx,question,answer\n1,2,who?,a~!~b\n",
    ),
    "squad": (squad.read, "a.json", json.dumps(SQUAD).encode()),
    "woz": (woz.read, "a.json", json.dumps(WOZ).encode()),
    "wikisql": (wikisql.read, "a.jsonl", _lines(NAMED)),
}


def _checked_examples(found: Any) -> None:
    assert isinstance(found, list)
    for one in found:
        assert isinstance(one, Example)
        texts = (one.context, one.question, *one.answers)
        assert one.answers
        assert all(isinstance(text, str) for text in texts)


def _readers(work: Path) -> list[Attack]:
    made = []
    for name, (read, file, content) in READERS.items():
        path = _folder(work, name) / file
        path.parent.mkdir(exist_ok=True)
        sentences = _folder(work, f"{name}/sentences") / "x.full.csv"  # of QA-SRL's gold standard
        sentences.write_text("qasrl_id,tokens\n1,a b c\n")

        def attempt(
            whole: bytes, damaged: bytes, path: Path = path, read: Callable[..., Any] = read
        ) -> None:
            path.write_bytes(damaged)
            _checked_examples(read(path))

        made.append(Attack(name, (content,), attempt))
    folder = _folder(work, "wikisql tables")
    (folder / "a.jsonl").write_bytes(_lines(WIKISQL))

    def tables(whole: bytes, damaged: bytes) -> None:
        (folder / "a.tables.jsonl").write_bytes(damaged)
        _checked_examples(wikisql.read(folder / "a.jsonl"))

    def numbered(whole: bytes, damaged: bytes) -> None:
        (folder / "b.jsonl").write_bytes(damaged)
        (folder / "b.tables.jsonl").write_bytes(_lines(TABLES))
        _checked_examples(wikisql.read(folder / "b.jsonl"))

    made.append(Attack("wikisql tables", (_lines(TABLES),), tables))
    return [*made, Attack("wikisql numbers", (_lines(WIKISQL),), numbered)]


TAGS = """<contextfile concordance=brown>
<context filename=br-a01 paras=yes>
<p pnum=1>
<s snum=1>
<wf cmd=done pos=NN lemma=cat wnsn=1 lexsn=1:05:00::>Cats</wf>
<wf cmd=done pos=NN lemma=mouse wnsn=1;4 lexsn=1:05:00::;1:06:00::>mice</wf>
<punc>.</punc>
</s>
</p>
</context>
</contextfile>
"""


def _semcor(work: Path) -> Attack:
    folder = _folder(work, "semcor")
    tags = folder / "files" / "brown1" / "tagfiles" / "br-a01"
    tags.parent.mkdir(parents=True, exist_ok=True)

    def packed(content: bytes) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            member = tarfile.TarInfo("semcor/brown1/tagfiles/br-a01")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        return file.getvalue()

    def attempt(whole: bytes, damaged: bytes) -> None:
        if whole.startswith(b"<"):
            tags.write_bytes(damaged)
            found = read_semcor(folder / "files")
        else:
            (folder / "semcor.tar.gz").write_bytes(damaged)
            found = read_semcor(folder / "semcor.tar.gz")
        for target in found.targets:
            assert 0 <= target.position < len(found.sentences[target.sentence])

    return Attack("semcor", (TAGS.encode(), packed(TAGS.encode())), attempt)


_SYNSET = b"00000012 05 n 01 word 0 000 | a gloss  \n"
_SENSES = b"mouse%1:05:00:: 00000012 1 3\nmouse%2:38:00:: 00000012 1 0\n"


def _wordnet(work: Path) -> list[Attack]:
    folder = _folder(work, "wordnet")
    for pos in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{pos}").write_bytes(b"  1 licence\n" + _SYNSET)
    (folder / "index.sense").write_bytes(_SENSES)
    whole = {name: (folder / name).read_bytes() for name in wordnet.FILES}

    def attack(name: str) -> Attack:
        def attempt(_: bytes, damaged: bytes) -> None:
            known, wordnet.SENSES_OF_3_0 = wordnet.SENSES_OF_3_0, 2
            try:
                (folder / name).write_bytes(damaged)
                wordnet.read_wordnet(folder)
            finally:
                wordnet.SENSES_OF_3_0 = known
                (folder / name).write_bytes(whole[name])

        return Attack(f"wordnet {name}", (whole[name],), attempt)

    return [attack("index.sense"), attack("data.noun")]


# --- images, molecules, questions about images ---------------------------------------------------


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _image_files(work: Path) -> list[Attack]:
    x, y = np.zeros((2, 4, 4), np.uint8), np.zeros(2, np.int64)
    archive = _npz(x_train=x, y_train=y, x_test=x, y_test=y)
    idx = b"\0\0\x08\x03" + np.array([2, 2, 2], ">u4").tobytes() + bytes(8)
    npz, raw = (_folder(work, f"images {name}") for name in ("npz", "idx"))

    def from_npz(whole: bytes, damaged: bytes) -> None:
        (npz / "mnist.npz").write_bytes(damaged)
        found = image_files.read("mnist", npz)
        assert found.train.dtype == np.uint8
        assert len(found.train) == len(found.train_labels)

    def from_idx(whole: bytes, damaged: bytes) -> None:
        (raw / "a").write_bytes(damaged)
        assert image_files.read_idx(raw / "a").dtype == np.uint8

    def from_cifar(whole: bytes, damaged: bytes) -> None:
        pixels, labels = image_files.read_cifar(damaged, 1, "data_batch_1.bin")
        assert pixels.shape[1:] == (3, 32, 32)
        assert labels.ndim == 1

    return [
        Attack("images npz", (archive,), from_npz),
        Attack("images idx", (idx, gzip.compress(idx, mtime=0)), from_idx),
        Attack("images cifar", (bytes(2 * 3073),), from_cifar),
    ]


def _molecules(work: Path) -> list[Attack]:
    folder = _folder(work, "molecules")
    counts = [0] * fsmol_assays.WIDTH
    lines = _lines(
        {"SMILES": "CCO", "Property": "1.0", "Assay_ID": "C1"},
        {"SMILES": "C", "Property": "0.0"},
    )
    dense = _lines({"SMILES": "C", "Property": 1.0, "fingerprints": counts})
    packed = gzip.compress(lines, mtime=0)
    for kind in ("text", "gz"):
        (folder / kind / "train").mkdir(parents=True, exist_ok=True)

    def attempt(whole: bytes, damaged: bytes) -> None:
        kind, name = ("gz", "C1.jsonl.gz") if whole is packed else ("text", "C1.jsonl")
        (folder / kind / "train" / name).write_bytes(damaged)
        for assay in fsmol_assays.read_assays(folder / kind):
            assert len(assay.smiles) == len(assay.labels)

    cache = _folder(work, "molecules prepared") / "cache"
    fsmol_prepared.save(few_molecules(), cache)
    return [
        Attack("molecules", (lines, packed, dense), attempt),
        _file_of("molecules prepared", cache, lambda: fsmol_prepared.load(cache)),
    ]


def _file_of(name: str, folder: Path, read: Callable[[], Any]) -> Attack:
    """Any file of a folder, of which the others stay whole."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = tuple(path.read_bytes() for path in files)
    places = {id(content): path for content, path in zip(contents, files, strict=True)}

    def attempt(whole: bytes, damaged: bytes) -> None:
        path = places[id(whole)]
        # a new file each time: one that is mapped into memory must not be cut under its reader
        path.unlink()
        path.write_bytes(damaged)
        try:
            read()
        finally:
            path.unlink()
            path.write_bytes(whole)

    return Attack(name, contents, attempt)


QUESTION = {"imageId": "1", "question": "What color is the chair?", "answer": "brown"}
SCENE = {"width": 640, "objects": {"2": {"name": "chair", "attributes": ["brown"]}}}


def _gqa(work: Path) -> list[Attack]:
    folder, features, table = (_folder(work, f"gqa {n}") for n in ("json", "npz", "tsv"))

    def read_questions(whole: bytes, damaged: bytes) -> None:
        (folder / "a.json").write_bytes(damaged)
        for one in questions.read_questions([folder / "a.json"], Problems()):
            assert one.text
            assert one.answer

    def read_scenes(whole: bytes, damaged: bytes) -> None:
        (folder / "b.json").write_bytes(damaged)
        assert all(scenes.count_names([folder / "b.json"], Problems()))

    def read_features(whole: bytes, damaged: bytes) -> None:
        (features / "1.npz").write_bytes(damaged)
        list(feature_forms.read_npz(features, {"1"}, Problems()))

    def read_tsv(whole: bytes, damaged: bytes) -> None:
        (table / "features.tsv").write_bytes(damaged)
        list(feature_forms.read_tsv(table, {"1"}, Problems()))

    regions = _npz(features=np.zeros((2, 4), np.float32), boxes=np.zeros((2, 4), np.float32))
    code = b"1\t1\tAAAAAAAAAAA=\n"
    return [
        Attack("gqa questions", (json.dumps({"1": QUESTION}).encode(),), read_questions),
        Attack("gqa scenes", (json.dumps({"1": SCENE}).encode(),), read_scenes),
        Attack("gqa features npz", (regions,), read_features),
        Attack("gqa features tsv", (code,), read_tsv),
    ]


def _prepared(work: Path) -> list[Attack]:
    cache = _folder(work, "vqa prepared") / "content"
    random_content(tasks=3, questions=20, images=4, width=4).save(cache)

    tables = _folder(work, "wsd prepared") / "tables"
    wsd_prepared.save(few_words(), tables)
    return [
        _file_of("vqa prepared", cache, lambda: PreparedVQA.load(cache)),
        _file_of("wsd prepared", tables, lambda: wsd_prepared.load(tables)),
    ]


# --- settings and studies ------------------------------------------------------------------------

CONFIG = b"""benchmark = "toy"
method = "derpp"
policy = "continual"
seed = 3
[data]
tasks = 4
[train]
lr = 0.1
betas = [0.9, 0.99]
evaluate_at = [1, 3]
clip = "none"
[methods]
buffer = 20
[moments]
beta3 = 0.9
"""
STUDY = b"""benchmark = "toy"
methods = ["finetune", "derpp"]
policies = ["continual", "new"]
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
pair = ["continual", "new"]
"""
SETTINGS = (b"train.lr=0.1", b"train.betas=0.9,0.99", b"train.epochs=3", b"train.clip=none")
SETTINGS += (b"data.tasks=7", b"data.cap=40", b"seed=3", b"method=ewc", b"policy=new")
SETTINGS += (b"methods.buffer=20", b"moments.beta3=0.9", b"train.evaluate_at=1,2", b"data.noise=1")


def _settings(work: Path) -> list[Attack]:
    path = _folder(work, "settings") / "a.toml"

    def flag(whole: bytes, damaged: bytes) -> None:
        text = damaged.decode("utf-8", "surrogateescape")
        assert len(resolve("toy", flags={"method": "derpp"}, sets=[text]).id) == 12

    def file(whole: bytes, damaged: bytes) -> None:
        path.write_bytes(damaged)
        assert len(resolve("toy", path).id) == 12

    def seeds(whole: bytes, damaged: bytes) -> None:
        found = parse_seeds(damaged.decode("utf-8", "surrogateescape"))
        assert all(seed >= 0 for seed in found)

    return [
        Attack("settings", SETTINGS, flag),
        Attack("settings file", (CONFIG,), file),
        Attack("seeds", (b"0-4", b"0,3,7", b"1-3,9", b"5"), seeds),
    ]


def _study(work: Path) -> Attack:
    path = _folder(work, "study") / "a.toml"

    def attempt(whole: bytes, damaged: bytes) -> None:
        path.write_bytes(damaged)
        read_toml(path)
        found = expand(read_study(path))
        assert len({run.id for run in found}) == len(found)

    return Attack("study file", (STUDY,), attempt)


# --- what runs write -----------------------------------------------------------------------------


def _snapshots(work: Path) -> list[Attack]:
    folder = _folder(work, "snapshot") / "snapshot"
    made = Snapshots(folder, config={"a": 1})
    before = made.save({"value": torch.ones(3)})
    newest = made.save({"value": torch.zeros(3)})
    old, content = before.read_bytes(), newest.read_bytes()
    trapped = io.BytesIO()
    torch.save({"format": 1, "config": {"a": 1}, "state": {"value": Trap()}}, trapped)

    def put(name: str, damaged: bytes) -> None:
        for path in folder.iterdir():
            path.unlink()
        before.write_bytes(old)
        (folder / name).write_bytes(damaged)

    def attempt(whole: bytes, damaged: bytes) -> None:
        put(newest.name, damaged)
        state = Snapshots(folder, config={"a": 1}).load()
        assert state is not None
        assert bool(state["value"].any()) == (damaged != whole)  # the one before, or this one
        if damaged != whole:
            raise ValueError("the one before was used")

    def signed(whole: bytes, damaged: bytes) -> None:
        """One whose checksum fits: what is in it decides."""
        put(f"00000002-{hashlib.sha256(damaged).hexdigest()}.pt", damaged)
        state = Snapshots(folder, config={"a": 1}).load(
            lambda state: None if isinstance(state.get("value"), torch.Tensor) else "no value"
        )
        assert state is not None
        if bool(state["value"].any()):
            raise ValueError("the one before was used")

    return [
        Attack("snapshot", (content,), attempt),
        Attack("snapshot, signed", (content, trapped.getvalue(), TRAP), signed),
    ]


def _memory(work: Path) -> Attack:
    folder = _folder(work, "memory")

    def made() -> tuple[torch.nn.Module, ContinualAdamW]:
        model = torch.nn.Linear(2, 2)
        return model, ContinualAdamW(model.parameters(), fused=False, foreach=False)

    model, optimizer = made()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.end_task()
    path = Path(save_memory(optimizer, folder / "a.memory", model))
    fresh, target = made()

    def attempt(whole: bytes, damaged: bytes) -> None:
        path.write_bytes(with_checksums(damaged))  # what is in it decides
        load_memory(target, path, fresh, quiet=True)
        for state in target.state.values():
            for tensor in state.values():
                assert isinstance(tensor, torch.Tensor)

    return Attack("memory", (path.read_bytes(),), attempt)


def _average(work: Path) -> Attack:
    folder, model = _folder(work, "average"), torch.nn.Linear(2, 2)
    average = TaskAverage(model)
    torch.nn.init.ones_(model.weight)
    average.end_task()
    path = average.save(folder)

    def attempt(whole: bytes, damaged: bytes) -> None:
        path.write_bytes(with_checksums(damaged))
        average.load(folder)
        assert average.tasks >= 0
        average.end_task()

    return Attack("average", (path.read_bytes(),), attempt)


SMALL = {"data.tasks": 4, "data.zero_shot": 0, "data.features": 4, "data.cap": 20}
SMALL |= {"train.average": "task"}


def finished_run(folder: Path) -> Path:
    """A small run that has come to its end."""
    train_run(resolve("toy", flags=SMALL), folder, RunOptions("cpu", threads=1, quiet=True))
    shutil.rmtree(folder / "snapshot")
    return folder


def _folders(work: Path) -> list[Attack]:
    folder = finished_run(_folder(work, "folders") / "run")
    names = (*RunFiles.CHECKED, RunFiles.RESULT)
    whole = {name: (folder / name).read_bytes() for name in names}
    places = {id(content): name for name, content in whole.items()}

    def damaged_result(content: bytes, damaged: bytes) -> None:
        """Whatever is changed in a finished run is found, and the report does not fall over it."""
        name = places[id(content)]
        try:
            (folder / name).write_bytes(damaged)
            found = check_folder(folder)
            assert bool(found.damaged) == (damaged != content)
            results = report.read(folder)
            if damaged != content and name not in (RunFiles.WEIGHTS, RunFiles.AVERAGE):
                assert results.finished.empty
                assert results.problems
        finally:
            (folder / name).write_bytes(content)
        if found.damaged:
            raise ValueError("it was found")

    def again(content: bytes, damaged: bytes) -> None:
        """A finished run that is asked for again says what it said, or that it is damaged."""
        name = places[id(content)]
        options = RunOptions("cpu", threads=1, quiet=True)
        try:
            (folder / name).write_bytes(damaged)
            train_run(resolve("toy", flags=SMALL), folder, options)
        finally:
            (folder / name).write_bytes(content)

    settings = (whole[RunFiles.SETTINGS], whole[RunFiles.RESULT])
    return [
        Attack("folder", tuple(whole.values()), damaged_result),
        Attack("folder, asked again", settings, again),
        _beside(_folder(work, "beside") / "run", folder),
    ]


def _beside(folder: Path, finished: Path) -> Attack:
    """Files that results do not depend on: whatever they hold, the folder can be read."""
    shutil.copytree(finished, folder)
    plan = {"report": {"checks": ["os:system"], "metrics": ["RP"]}, "runs": [], "stacks": {}}
    (folder / "plan.json").write_text(json.dumps(plan))
    names = ("plan.json", "checksums.json", "timing.json")
    whole = {name: (folder / name).read_bytes() for name in names}
    places = {id(content): name for name, content in whole.items()}

    def attempt(content: bytes, damaged: bytes) -> None:
        name = places[id(content)]
        try:
            (folder / name).write_bytes(damaged)
            report.read(folder)
            check_folder(folder)
        finally:
            (folder / name).write_bytes(content)

    return Attack("beside the results", tuple(whole.values()), attempt)
