"""A run begins where another ended: regions and words are known, answers are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bench_helpers.vqa_content import random_content
from longtail.cli import main
from longtail.replicas import Replicas
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import RunConfig, resolve
from longtail.runs.session import RunOptions, train_run
from longtail_bench.vqa.model.start import find_weights, known_words
from longtail_bench.vqa.prepared import PreparedVQA

NAME = "longtail_bench.vqa"
KINDS, WIDTH = 6, 8


def pictures(seed: int, questions: int, extra: str = "") -> PreparedVQA:
    """Each picture is of one of six kinds, seen in all its regions: that is the answer."""
    images = questions // 2
    content = random_content(4, questions, images, WIDTH, seed)
    regions = content.regions
    rng = np.random.default_rng(seed)
    kinds = rng.integers(KINDS, size=images)
    looks = np.random.default_rng(99).normal(size=(KINDS, WIDTH))
    shown = np.repeat(kinds, np.diff(regions.offsets))
    seen = looks[shown] + 0.3 * rng.normal(size=(len(shown), WIDTH))
    texts = [f"{extra} {text}" if n % 2 else text for n, text in enumerate(content.questions)]
    return replace(
        content,
        questions=texts,
        answers=kinds[np.asarray(content.images)],
        regions=replace(regions, features=seen.astype(np.float16)),
    )


def config(folder: Path, **flags: Any) -> RunConfig:
    given = {"data.prepared": str(folder), "data.dropout": 0.0, "train.validation": 0.0}
    return resolve(NAME, flags=given | {"method": "multitask", "train.epochs": 1} | flags)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Contents `first` and `second` of other pictures and words, and a run on the first."""
    where = tmp_path_factory.mktemp("start")
    pictures(1, 400, "aardvark").save(where / "first")
    pictures(2, 200, "zebra").save(where / "second")
    flags = {"train.lr": 3e-3, "train.epochs": 8}
    train_run(config(where / "first", **flags), where / "run", RunOptions(quiet=True, device="cpu"))
    return {name: where / name for name in ("first", "second", "run")}


def weights(folders: dict[str, Path]) -> dict[str, torch.Tensor]:
    return load_file(folders["run"] / "model.safetensors")


def test_training_begins_better_than_from_scratch(folders, tmp_path: Path) -> None:
    first = json.loads((folders["run"] / "summary.json").read_text())
    assert first["RP"] > 0.8, "the first run has learned to look"
    scores = {}
    for name, start in (("scratch", ""), ("started", str(folders["run"]))):
        given = config(folders["second"], **{"data.start": start, "train.lr": 2e-3})
        scores[name] = train_run(given, tmp_path / name, RunOptions(quiet=True, device="cpu"))["RP"]
    assert scores["started"] > scores["scratch"] + 0.2, scores


def test_all_but_the_classifier_is_taken_and_words_by_their_text(folders) -> None:
    given = weights(folders)
    plain, started = (
        build_run(config(folders["second"], **{"data.start": start})).model
        for start in ("", str(folders["run"]))
    )
    for name, value in started.state_dict().items():
        if name.startswith("classifier."):
            assert torch.equal(value, plain.state_dict()[name]), name
        elif name.startswith(("region", "pooler", "encoder.qkv", "encoder.up")):
            assert torch.equal(value, given[name]), name
    theirs, ours = (known_words(w) for w in (given["words"], started.get_buffer("words")))
    assert "zebra" in set(ours) - set(theirs)
    assert "aardvark" in set(theirs) - set(ours)
    table, fresh = (m.get_parameter("encoder.word_table").detach() for m in (started, plain))
    for row, word in enumerate(ours):
        if word in theirs:
            assert torch.equal(table[row], given["encoder.word_table"][theirs.index(word)]), word
        else:
            assert torch.equal(table[row], fresh[row]), word


def test_replicas_of_a_stack_start_alike_and_as_runs_do(folders) -> None:
    flags = {"data.start": str(folders["run"]), "data.align": True}  # align has no say then
    configs = [
        config(folders["second"], seed=seed, policy=policy, method="finetune", **flags)
        for policy in ("continual", "new")
        for seed in (0, 1)
    ]
    model = build_stack(configs).run.model
    assert isinstance(model, Replicas)
    given = weights(folders)
    for policy in (0, 1):
        for seed in (0, 1):
            found = model.replica(policy, seed).state_dict()
            assert torch.equal(found["region.weight"], given["region.weight"])
            alone = build_run(configs[seed]).model.state_dict()
            for name in ("encoder.word_table", "classifier.2.weight"):
                assert torch.equal(found[name], alone[name])


def test_the_start_is_part_of_the_settings(folders) -> None:
    plain, started = (
        config(folders["second"], **{"data.start": start}) for start in ("", str(folders["run"]))
    )
    assert plain.id != started.id
    assert started.as_dict()["data"]["start"] == str(folders["run"])


def test_more_and_fewer_positions_fit(folders, tmp_path: Path) -> None:
    given = weights(folders)
    positions = given["encoder.position_table"]
    for rows in (len(positions) - 3, len(positions) + 3):
        other = torch.cat([positions, positions])[:rows].clone()
        path = tmp_path / f"{rows}.safetensors"
        save_file(given | {"encoder.position_table": other}, path)
        model = build_run(config(folders["second"], **{"data.start": str(path)})).model
        found = model.get_parameter("encoder.position_table").detach()
        both = min(rows, len(found))
        assert torch.equal(found[:both], other[:both])


def test_halves_are_a_start_too(folders, tmp_path: Path) -> None:
    half = {n: v.half() if v.is_floating_point() else v for n, v in weights(folders).items()}
    save_file(half, tmp_path / "half.safetensors")
    flags = {"data.start": str(tmp_path / "half.safetensors")}
    model = build_run(config(folders["second"], **flags)).model
    assert torch.equal(model.get_parameter("region.weight"), half["region.weight"].float())
    assert {value.dtype for value in model.parameters()} == {torch.float32}


def test_a_start_without_a_common_word_is_refused(folders, tmp_path: Path) -> None:
    given = weights(folders)
    count = len(given["encoder.word_table"])
    text = "\n".join(f"w{n}" for n in range(count)).encode()
    words = torch.tensor(list(text), dtype=torch.uint8)
    save_file(given | {"words": words}, tmp_path / "other.safetensors")
    flags = {"data.start": str(tmp_path / "other.safetensors")}
    with pytest.raises(ValueError, match="has not one word of the data"):
        build_run(config(folders["second"], **flags))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"region.weight": torch.zeros(32, 5)}, r"region.weight is \[32, 5\], not \[32, 14\]"),
        ({"pooler.bias": None}, "does not fit .*: pooler.bias is missing$"),
        ({"encoder.word_table": None}, "not of a run of vqa: it has no encoder.word_table"),
        ({"words": None}, "not of a run of vqa: it has no words"),
        ({"words": torch.tensor([97], dtype=torch.uint8)}, "rows of words, but names 1"),
        ({"region_extra.weight": torch.zeros(1)}, "region_extra.weight has no place"),
    ],
)
def test_what_does_not_fit_is_named(folders, tmp_path: Path, change: Any, message: str) -> None:
    changed = weights(folders) | change
    path = tmp_path / "other.safetensors"
    save_file({name: value for name, value in changed.items() if value is not None}, path)
    with pytest.raises(ValueError, match=message):
        build_run(config(folders["second"], **{"data.start": str(path)}))


def test_where_weights_are_looked_for(folders, tmp_path: Path) -> None:
    run = folders["run"]
    assert find_weights(run) == find_weights(run / "model.safetensors")
    with pytest.raises(ValueError, match="there is no run or file"):
        find_weights(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is no run: it has no model"):
        find_weights(tmp_path)
    (tmp_path / "config.toml").touch()
    with pytest.raises(ValueError, match="is not finished: it has no model"):
        find_weights(tmp_path)
    for name in ("a", "b"):  # a study: its only run, and a choice where there are more
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "model.safetensors").write_bytes(b"damaged")
        if name == "a":
            assert find_weights(tmp_path).parent.name == "a"
    with pytest.raises(ValueError, match="holds 2 finished runs"):
        find_weights(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        build_run(config(folders["second"], **{"data.start": str(tmp_path / "runs" / "a")}))


def test_pretrained_on_other_scenes_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    argv = ["run", "vqa", "--miniature", "--tasks", "4", "--epochs", "1", "--lr", "1e-3", "--quiet"]
    other = ["--method", "multitask", "--world-seed", "1", "--types-seed", "0"]
    pre, out = tmp_path / "pre", tmp_path / "out"
    assert main([*argv, *other, "--out", str(pre)]) == 0
    assert main([*argv, "--start", str(pre), "--out", str(out)]) == 0
    assert f'start = "{pre}"' in (out / "config.toml").read_text(encoding="utf-8")
    assert main([*argv, "--start", str(tmp_path / "none"), "--out", str(tmp_path / "x")]) == 2
    assert "there is no run or file" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
