"""VQA-CL from prepared content to scores: overlapping tasks, one model, alone or stacked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench_helpers.vqa_content import random_content, write_gqa
from longtail.cli import main
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import RunConfig, resolve
from longtail.tasks import Evaluator
from longtail.training import train
from longtail_bench import vqa
from longtail_bench.vqa.model import VisionLanguage

NAME = "longtail_bench.vqa"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("vqa") / "content"
    random_content(tasks=4, questions=160, images=20, width=4).save(where)
    return where


def config(folder: Path, **flags: Any) -> RunConfig:
    given = {"data.prepared": str(folder), "data.dropout": 0.0, "train.epochs": 1}
    return resolve(NAME, flags=given | flags)


def test_tasks_are_the_contents_and_overlap(folder: Path) -> None:
    content = random_content(tasks=4, questions=160, images=20, width=4)
    sequence = vqa.build(vqa.Settings(prepared=str(folder)), 0).sequence
    assert sequence.names == list(content.task_names)
    assert sequence.train_sizes.tolist() == np.diff(content.train_offsets).tolist()
    rows = [set(content.train(i).tolist()) for i in range(4)]
    assert rows[0] & rows[1]
    inputs, answers = sequence.test(0)[torch.arange(3)]
    assert answers.tolist() == content.answers[content.test(0)[:3]].tolist()
    assert inputs["regions"].shape == (3, 8, 4 + 6)
    assert inputs["ids"].shape[1] % 8 == 0


@pytest.mark.parametrize("method", ["finetune", "derpp"])
def test_a_stack_of_policies_scores_as_its_runs_do(folder: Path, method: str) -> None:
    both = [
        config(folder, method=method, policy=name, **{"train.lr": 1e-3})
        for name in ("continual", "new")
    ]
    stack = build_stack(both)
    train(stack.run)
    for place, one in enumerate(both):
        run = build_run(one)
        train(run)
        together = stack.run.matrix.last[place, 0]
        assert np.allclose(together, run.matrix.last, atol=0.05, equal_nan=True)


@pytest.mark.parametrize("placement", ["memory", "storage"])
def test_placement_changes_no_score(folder: Path, placement: str) -> None:
    run = build_run(config(folder, **{"data.placement": placement}))
    assert run.sequence.table.host_index == (placement == "storage")  # pyright: ignore
    train(run)
    other = build_run(config(folder))
    train(other)
    assert np.array_equal(run.matrix.last, other.matrix.last, equal_nan=True)


def test_replay_works_in_bf16(folder: Path) -> None:
    run = build_run(config(folder, method="derpp", **{"train.autocast": "bf16"}))
    train(run)
    assert np.isfinite(run.matrix.last[0])


def test_a_stack_is_evaluated_in_batches_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tmp_path / "content"
    random_content(tasks=2, questions=500, images=10, width=4).save(content)
    run = build_stack([config(content, policy=name) for name in ("continual", "new")]).run
    largest = []
    forward = VisionLanguage.forward_stacked

    def watched(members: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        largest.append(inputs["ids"].shape[1])
        return forward(members, inputs)

    every, name = range(len(run.sequence)), run.sequence.objective.main.name
    whole = Evaluator()(run.model, run.sequence, every)[name]
    monkeypatch.setattr(VisionLanguage, "forward_stacked", watched)
    monkeypatch.setattr(VisionLanguage, "rows_at_once", 20)
    found = Evaluator()(run.model, run.sequence, every)[name]
    assert np.array_equal(found, whole, equal_nan=True)
    assert max(largest) == 10


def test_tags_of_an_image_come_once_in_order() -> None:
    regions = random_content(tasks=3, questions=4, images=3).regions
    texts = vqa.tag_texts(regions)
    start, stop = regions.offsets[:2]
    expected = list(dict.fromkeys(regions.tag_names[t] for t in regions.tags[start:stop]))
    assert texts[0].split() == expected
    assert len(texts) == 3


def test_the_miniature_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "run"
    argv = ["run", "vqa", "--miniature", "--tasks", "6", "--epochs", "1", "--lr", "1e-3"]
    assert main([*argv, "--quiet", "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert 0 < summary["RP"] < 1
    assert {"head", "body", "tail"} <= set(summary["breakdown"])


def test_what_is_left_out_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    write_gqa(tmp_path / "files")
    path = tmp_path / "files" / "train_balanced_questions.json"
    asked = json.loads(path.read_text())
    first = next(iter(asked))
    del asked[first]["answer"]
    path.write_text(json.dumps(asked))
    vqa.read_content(vqa.Settings(source="gqa", folder=str(tmp_path / "files")))
    assert f"question without an answer: 1 ({path.name}: question {first})" in caplog.text


def test_aligned_models_differ_in_their_region_layer_alone(folder: Path) -> None:
    plain, aligned = (
        build_run(config(folder, **{"data.align": align})).model.state_dict()
        for align in (False, True)
    )
    changed = {name for name in plain if not torch.equal(plain[name], aligned[name])}
    assert changed == {"region.weight", "region.bias"}


def test_aligning_needs_tags_of_training_images() -> None:
    content = random_content(tasks=3, questions=40, images=6, width=4)
    values, tags = vqa.tagged_regions(content, most=10)
    assert (values.shape, len(tags)) == ((10, 4 + 6), 10)
    assert torch.equal(values[0, :4], torch.from_numpy(content.regions.features[0]).float())
    untagged = replace(content.regions, tags=np.full_like(content.regions.tags, -1))
    with pytest.raises(ValueError, match="no region of a training image has a tag"):
        vqa.tagged_regions(replace(content, regions=untagged))
