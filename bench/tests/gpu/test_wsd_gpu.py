"""WSD-CL on a GPU: pairs come out as on the CPU, in a graph too, and targets score alike."""

from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.methods import EWC
from longtail.methods.fisher import Fisher
from longtail.replicas import build_model
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import resolve
from longtail.training import train
from longtail.training.captured_fisher import GraphFisher
from longtail_bench import wsd
from longtail_bench.encoder.auto import AutoEncoder
from longtail_bench.wsd.miniature import miniature
from longtail_bench.wsd.pairs import PairTable
from longtail_bench.wsd.prepared import save

pytestmark = pytest.mark.gpu
TABLE = PairTable(miniature())


def test_pairs_are_assembled_alike_eagerly_and_in_a_graph() -> None:
    index = torch.from_numpy(np.random.default_rng(0).integers(0, len(TABLE), (2, 40)))
    wanted, labels = TABLE[index]
    device = TABLE.to("cuda")
    found, found_labels = device[index]
    shape, numbers = device.stage(index)
    numbers = numbers.cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, _ = device.assemble(shape, numbers)
    graph.replay()
    for got in (found, captured):
        assert torch.equal(got.padded.cpu(), wanted.padded)
        assert torch.equal(got.lengths.cpu(), wanted.lengths)
    assert torch.equal(found_labels.cpu(), labels)


def test_targets_are_scored_as_on_the_cpu() -> None:
    benchmark = wsd.build(wsd.Settings(miniature=True), 0)
    model, words = build_model(benchmark.make_model, [3, 4], 2), benchmark.sequence
    every = range(len(words))
    wanted = benchmark.evaluate(model, words, every)
    found = benchmark.evaluate(model.cuda(), words.to("cuda"), every)
    assert found.is_cuda
    # scores differ in their last digits, which may turn a tie
    assert (found.cpu() - wanted).abs().mean() < 0.01


def test_a_stack_trains_in_captured_steps() -> None:
    flags = {"data.miniature": True, "data.tasks": 6, "train.lr": 1e-3, "train.autocast": "bf16"}
    configs = [
        resolve("wsd", flags={**flags, "policy": policy, "seed": seed, "method": "reservoir"})
        for policy in ("continual", "new")
        for seed in (0, 1)
    ]
    run = build_stack(configs, "cuda").run
    train(run)
    assert np.isfinite(run.matrix.last).all()
    assert run.matrix.last.shape == (2, 2, 6)


@pytest.mark.parametrize("autocast", ["none", "bf16"])
def test_ewc_takes_its_fisher_from_graphs(autocast) -> None:
    flags = {"data.miniature": True, "train.lr": 1e-3, "train.autocast": autocast}
    configs = [
        resolve("wsd", flags={**flags, "policy": policy, "method": "ewc"})
        for policy in ("continual", "new")
    ]
    run = build_stack(configs, "cuda").run
    assert isinstance(run.method, EWC)
    train(run)
    assert np.isfinite(run.matrix.last).all()
    captured = run.method.fisher
    assert isinstance(captured, GraphFisher)
    assert any(one.graph is not None for one in captured.graphs.shapes.values())
    plain = Fisher(run.model, run.sequence.objective, "batch")
    largest = np.argsort(run.sequence.train_sizes)
    for i in largest[[-1, -20, -1]]:
        table = run.sequence.train(i)
        assert table is not None
        found = [F.clone() for F in captured(table)]
        half = autocast == "bf16"
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            wanted = plain(table)
        for ours, theirs in zip(found, wanted, strict=True):
            distance = torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)
            assert distance < (0.1 if half else 1e-3)


def test_multitask_trains_a_plain_model_on_all_targets() -> None:
    flags = {"data.miniature": True, "train.lr": 1e-3, "train.autocast": "bf16"}
    run = build_run(resolve("wsd", flags={**flags, "method": "multitask"}), "cuda")
    train(run)
    assert np.isfinite(run.matrix.last).all()
    assert np.array_equal(run.matrix.own, run.matrix.last)


@pytest.mark.parametrize("method", ["finetune", "ewc"])
def test_an_encoder_of_transformers_trains_in_captured_steps(method: str, tmp_path: Path) -> None:
    """As eagerly: its masks ask the device nothing while a graph is being captured."""
    transformers = pytest.importorskip("transformers")
    prepared = miniature()
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=prepared.template.vocab, dim=32, n_layers=2, n_heads=2, hidden_dim=48,
        max_position_embeddings=96, pad_token_id=prepared.template.pad,
    )  # fmt: skip
    transformers.DistilBertModel(config).save_pretrained(tmp_path / "encoder")
    save(prepared, tmp_path / "tables")
    flags = {
        "data.prepared": str(tmp_path / "tables"), "data.backbone": str(tmp_path / "encoder"),
        "data.tasks": 6, "train.lr": 1e-3, "method": method,
    }  # fmt: skip
    found = []
    for graph in (True, False):
        config = resolve("wsd", flags={**flags, "train.cuda_graph": graph})
        run = build_run(config, "cuda")
        assert isinstance(run.model.encoder, AutoEncoder)
        train(run)
        if graph:
            assert any(shape.graph is not None for shape in run.take_step.graphs.shapes.values())  # pyright: ignore
        with torch.no_grad():
            found.append(run.model.eval()(TABLE.to("cuda")[torch.arange(300)][0]))
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(*found, atol=1e-2, rtol=0)
