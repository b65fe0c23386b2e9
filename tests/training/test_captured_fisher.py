"""EWC's captured passes give the numbers of `Fisher`; that they are captured is tested on a GPU."""

import pytest
import torch

from longtail.methods import EWC
from longtail.methods.fisher import BATCH, Fisher
from longtail.replicas import build_model
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.tasks import CLASSIFICATION, TensorExamples
from longtail.training import train
from longtail.training.captured_fisher import GraphFisher, capture_fisher
from longtail_bench import wsd

BENCHMARK = wsd.build(wsd.Settings(miniature=True), 0)
WORDS = BENCHMARK.sequence
SMALL = {"data.miniature": True, "data.tasks": 5, "data.cap": 3, "train.epochs": 1}


def model_of(stacked: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(BENCHMARK.make_model, [0, 1] if stacked else 0, 2 if stacked else 1)


def agree(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6 * float(theirs.max()))


@pytest.mark.parametrize(
    ("stacked", "packs", "kind"),
    [
        (False, False, "batch"),
        (False, True, "batch_sum"),
        (True, False, "batch_sum"),
        (True, True, "batch"),
    ],
)
def test_tasks_of_all_sizes_have_the_fisher_of_the_plain_pass(stacked, packs, kind) -> None:
    model = model_of(stacked)
    plain = Fisher(model, WORDS.objective, kind)
    graphs = GraphFisher(model, WORDS.objective, capture=False, kind=kind, packs=packs)
    tables = [table for i in range(len(WORDS)) if (table := WORDS.train(i)) is not None]
    sizes = [len(table) for table in tables]
    many, few = sizes.index(max(sizes)), sizes.index(min(sizes))
    assert min(sizes) < BATCH < max(sizes)
    assert max(sizes) % BATCH
    for i in (many, few, many):  # what one task leaves behind must not reach the next
        agree(graphs(tables[i]), plain(tables[i]))
    assert model.training


def test_chosen_rows_alone_are_read() -> None:
    model, table = model_of(True), WORDS.union()
    chosen = torch.stack((torch.arange(3, 24), torch.arange(40, 61)))
    wanted = Fisher(model, WORDS.objective, "batch")(table, chosen)
    agree(GraphFisher(model, WORDS.objective, capture=False)(table, chosen), wanted)


def test_plain_tables_are_padded_to_few_sizes() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(37, 4, generator=generator), torch.randint(3, (37,), generator=generator)
    model = torch.nn.Linear(4, 3)
    graphs = GraphFisher(model, CLASSIFICATION, capture=False)
    for n in (37, 3, 5, 16):
        table = TensorExamples(x[:n], y[:n])
        agree(graphs(table), Fisher(model, CLASSIFICATION, "batch")(table))
        assert {len(shape.weights[0]) for shape in graphs.graphs.shapes.values()} <= {8, 16}


def test_dropout_is_off() -> None:
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    table = TensorExamples(x, y)
    wanted = Fisher(model, CLASSIFICATION, "batch")(table)
    agree(GraphFisher(model, CLASSIFICATION, capture=False)(table), wanted)


def test_a_run_of_ewc_ends_with_the_same_weights() -> None:
    found = []
    for padded in (False, True):
        run = build_run(resolve("wsd", flags={**SMALL, "method": "ewc", "train.lr": 1e-3}))
        assert isinstance(run.method, EWC)
        if padded:
            run.method.fisher = GraphFisher(run.model, run.sequence.objective, capture=False)
        train(run)
        found.append((run.method.sum_F, [p.detach() for p in run.parameters]))
    (sums, weights), (our_sums, our_weights) = found
    agree(our_sums, sums)
    for ours, theirs in zip(our_weights, weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_it_is_taken_where_steps_are_captured_and_only_there() -> None:
    """On a CPU nothing is captured, whatever the settings say."""
    config = resolve("wsd", flags={**SMALL, "method": "ewc"})
    assert config.train.cuda_graph
    run = build_run(config)
    assert isinstance(run.method, EWC)
    capture_fisher(run.method, config.train)
    assert isinstance(run.method.fisher, Fisher)


class OwnFisher(Fisher):
    pass


@pytest.mark.parametrize(
    ("kind", "own", "taken"),
    [
        ("batch", False, "batch"),
        ("batch_sum", False, "batch_sum"),
        ("batch", True, None),
        ("example", False, None),
    ],
)
def test_only_the_pass_that_it_stands_for_is_replaced(
    kind: str, own: bool, taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.training.captured_fisher.captures", lambda *_: True)
    monkeypatch.setattr(
        "longtail.training.captured_fisher.GraphFisher", lambda *_, kind, packs: kind
    )
    model = torch.nn.Linear(4, 3)
    method = EWC(model, CLASSIFICATION, fisher=kind)
    if own:
        method.fisher = OwnFisher(model, CLASSIFICATION, kind)
    capture_fisher(method, resolve("wsd", flags=SMALL).train)
    assert method.fisher == taken if taken else isinstance(method.fisher, Fisher)
