"""Padded steps of fixed shape equal plain ones; what a graph would replay is tested on a GPU."""

from collections.abc import Hashable, Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.small_tasks import make_model
from longtail.methods import METHODS, Method
from longtail.replicas import build_model
from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import (
    CLASSIFICATION,
    Ragged,
    Rows,
    Segments,
    StackedExamples,
    TableSequence,
    TensorExamples,
    ragged_examples,
)
from longtail.tasks.examples import Packable
from longtail.training import POLICIES, Run, TrainSettings, train
from longtail.training import cuda_graphs as graphs
from longtail.training.cuda_graphs import Captured, GraphForward, GraphStep, takes_packed

SIZES = (9, 5, 1, 12, 0, 7, 11, 22)
TOTAL = sum(SIZES)


class Bag(nn.Module):
    """The mean of the embeddings of a row's tokens, whatever it is padded to."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, inputs: Ragged) -> Tensor:
        found = self.table(inputs.padded) * inputs.mask()[..., None]
        return self.head(found.sum(-2) / inputs.lengths[..., None])


def normed(_seed: int = 0) -> nn.Module:
    parts = nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.Flatten()
    return nn.Sequential(nn.Linear(6, 8), *parts, nn.Linear(8, 3))


def dense() -> TensorExamples:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOTAL, 6, generator=generator)
    return TensorExamples(x, torch.randint(3, (TOTAL,), generator=generator))


def ragged() -> TensorExamples:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 40, (TOTAL,), generator=generator)
    values = torch.randint(20, (int(lengths.sum()),), generator=generator)
    targets = torch.randint(3, (TOTAL,), generator=generator)
    return ragged_examples(values, torch.tensor([0, *lengths]).cumsum(0), targets)


class Staged:
    """The same rows, read in two halves; widths are 16, 32 or 48."""

    host_index = full_batches = True

    def __init__(self, table: TensorExamples) -> None:
        self.table = table
        self.lengths = table.inputs.offsets.diff()
        self.padded, _ = table.inputs.take(slice(None), "cpu")
        self.padded = nn.functional.pad(self.padded, (0, 48 - self.padded.shape[1]))

    def __len__(self) -> int:
        return len(self.table)

    def stage(self, index: Tensor) -> tuple[Hashable, Tensor]:
        assert index.device.type == "cpu"
        return -(-int(self.lengths[index].max()) // 16) * 16, index

    def assemble(self, shape: int, numbers: Tensor):
        rows = Ragged(self.padded[numbers][..., :shape], self.lengths[numbers])
        return rows, self.table.targets[numbers]

    def __getitem__(self, index):
        index = torch.arange(TOTAL)[index] if isinstance(index, slice) else index
        return self.assemble(*self.stage(index))

    def narrow(self, start: int, stop: int) -> Rows:
        return Rows(self, torch.arange(start, stop))

    def to(self, device) -> "Staged":
        return self


class Packing(Staged):
    """The same, of whose rows the host knows the lengths."""

    packs, blank = True, 0

    def sizes(self, numbers: Tensor):
        return self.lengths[numbers].numpy()

    def room(self, sizes, packed: int) -> int:
        return -(-int(sizes.sum(-1).max()) // (8 * packed)) * 8 * packed

    def stage(self, index: Tensor, packed: int = 0) -> tuple[Hashable, Tensor]:
        width, _ = super().stage(index)
        return (width, self.room(self.sizes(index), packed) if packed else None), index

    def assemble(self, shape, numbers: Tensor):
        width, room = shape
        rows, targets = super().assemble(width, numbers)
        return Packable.of(rows, room), targets

    def __getitem__(self, index):
        rows, targets = super().__getitem__(index)
        sizes = self.lengths[torch.arange(TOTAL)[index] if isinstance(index, slice) else index]
        return Packable.of(rows, sizes=sizes.numpy()), targets


class FittingBag(Bag):
    """Sees to it that a step's rows have room for their values, and notes how much is left."""

    seen: ClassVar[list[int]] = []

    def packs(self) -> bool:
        return True

    def forward(self, inputs: Ragged) -> Tensor:
        self.look(inputs)
        return super().forward(inputs)

    @classmethod
    def forward_stacked(cls, members: Sequence["FittingBag"], inputs: Ragged) -> Tensor:
        cls.look(inputs)
        outputs = []
        for member in members:
            words = [
                table[ids] for table, ids in zip(member.table.weight, inputs.padded, strict=True)
            ]
            found = torch.stack(words) * inputs.mask()[..., None]
            means = found.sum(-2) / inputs.lengths[..., None]
            head = member.head
            outputs.append(torch.baddbmm(head.bias[:, None], means, head.weight.transpose(1, 2)))
        return torch.stack(outputs)

    @staticmethod
    def look(inputs: Ragged) -> None:
        if isinstance(inputs, Packable) and inputs.room is not None:
            values = int(inputs.lengths.sum(-1).max())
            assert values <= inputs.room
            FittingBag.seen.append(inputs.room - values)


def make_run(method="finetune", stacked=False, table=None, model=make_model, **settings) -> Run:
    table = dense() if table is None else table
    bounds = [0, *torch.tensor(SIZES).cumsum(0).tolist()]
    sequence = TableSequence(table, Segments(bounds), Segments(bounds), CLASSIFICATION)
    seed, policies = ([3, 4], ("continual", "new")) if stacked else (3, ("continual",))
    options = {"buffer": 7} if METHODS[method].draws else {}
    built = build_model(model, seed, len(policies))
    seed = torch.tensor(seed) if stacked else seed
    made = METHODS[method](built, CLASSIFICATION, seed=seed, **options)
    defaults = {"batch_size": 11, "epochs": 2, "lr": 1e-2, "fused": False, "clip": 0.5}
    return Run(
        sequence,
        built,
        made,
        [POLICIES[name] for name in policies],
        TrainSettings(**{**defaults, **settings}),
        seed,
        evaluate=False,
    )


def assert_padded_equals_plain(*args, **settings) -> GraphStep:
    plain, padded = make_run(*args, **settings), make_run(*args, **settings)
    padded.take_step = step = GraphStep(padded, capture=False)
    train(plain)
    train(padded)
    for a, b in zip(plain.model.parameters(), padded.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    if hasattr(plain.method, "buffer"):  # the same choices, hence the same rows
        one, other = plain.method.buffer.state_dict(), padded.method.buffer.state_dict()
        assert one["draws"] == other["draws"] > 0
        for a, b in zip(one["fields"], other["fields"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    return step


def row_counts(step: GraphStep) -> set[int]:
    """How many rows the steps of each shape read."""
    return {len(shape.weights[0]) for shape in step.graphs.shapes.values()}


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_padded_steps_equal_plain_ones(name: str, stacked: bool) -> None:
    step = assert_padded_equals_plain(name, stacked)
    assert row_counts(step) == {8, 11}


@pytest.mark.parametrize("name", METHODS)
def test_data_of_its_own_for_each_replica(name: str) -> None:
    x = torch.randn(2, TOTAL, 6)
    table = StackedExamples(x, torch.randint(3, (2, TOTAL)))
    assert_padded_equals_plain(name, True, table=table)


@pytest.mark.parametrize("name", METHODS)
def test_ragged_rows(name: str) -> None:
    assert_padded_equals_plain(name, table=ragged(), model=lambda _: Bag())


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ["finetune", "reservoir", "derpp", "agem"])
def test_a_table_read_in_two_halves_has_few_shapes(name: str, stacked: bool) -> None:
    step = assert_padded_equals_plain(
        name, stacked, table=Staged(ragged()), model=lambda _: Bag(), batch_size=5
    )
    assert row_counts(step) == {5}
    assert len(step.graphs.shapes) <= 2 * 3  # with and without replay, three widths


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ["finetune", "reservoir", "derpp", "agem"])
def test_a_step_knows_what_room_its_rows_need(name: str, stacked: bool) -> None:
    args = {"table": Packing(ragged()), "model": lambda _: FittingBag(), "batch_size": 5}
    FittingBag.seen.clear()
    assert_padded_equals_plain(name, stacked, **args)
    assert len(FittingBag.seen) > 30
    assert min(FittingBag.seen) < 16  # two draws have the same room, so others have more left
    assert name != "finetune" or max(FittingBag.seen) < 8
    run = make_run(name, stacked, **args)
    run.take_step = GraphStep(run, capture=False)
    train(run)
    if name != "finetune":
        buffer = run.method.buffer
        drawn = [key[1] for key in run.take_step.graphs.shapes if key[0]]
        assert drawn
        assert None not in drawn
        _, lengths, *_ = buffer.state_dict()["fields"]  # as the device has them
        every_slot = torch.arange(len(lengths))[None]
        known = buffer.sizes(every_slot)
        assert known is not None
        assert known.ravel().tolist() == lengths.tolist()
        again = type(buffer)(buffer.capacity, buffer.seed)
        again.load_state_dict(buffer.state_dict())
        assert np.array_equal(again.sizes(every_slot), known)


@pytest.mark.parametrize("name", ["finetune", "reservoir"])
def test_rows_keep_their_padding_for_a_model_that_would_compute_it(name: str) -> None:
    run = make_run(name, table=Packing(ragged()), model=lambda _: Bag(), batch_size=5)
    run.take_step = step = GraphStep(run, capture=False)
    train(run)
    shapes = {key[3] for key in step.graphs.shapes}
    assert {room for _, room in shapes} == {key[1] for key in step.graphs.shapes} == {None}
    assert len(shapes) == 3  # one for each width


def test_a_compiled_model_gets_rows_with_their_padding() -> None:
    assert takes_packed(FittingBag(), TrainSettings())
    assert not takes_packed(FittingBag(), TrainSettings(compile=True))


@pytest.mark.parametrize("name", ["finetune", "ewcpp", "reservoir", "derpp", "agem"])
def test_batches_keep_their_sizes_where_padding_would_be_averaged(name: str) -> None:
    step = assert_padded_equals_plain(name, model=normed, batch_size=6)
    assert row_counts(step) > {6}


@pytest.mark.parametrize("name", ["finetune", "derpp"])
def test_shapes_without_end_are_not_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    step = assert_padded_equals_plain(name, table=ragged(), model=lambda _: Bag())
    assert len(step.graphs.shapes) == 2


@pytest.mark.parametrize("name", ["finetune", "reservoir", "derpp", "agem"])
def test_a_loaded_state_goes_on_with_padded_steps(name: str) -> None:
    whole, states = make_run(name), []
    whole.take_step = GraphStep(whole, capture=False)

    def on_step(run: Run) -> None:
        if run.position.task == 3 and run.position.epoch == 1 and not states:
            states.append(run.state_dict() | {"model": dict(run.model.state_dict())})
            file = torch.serialization.io.BytesIO()
            torch.save(states[0], file)
            states[0] = file

    train(whole, on_step=on_step)
    states[0].seek(0)
    other = make_run(name)
    other.take_step = GraphStep(other, capture=False)
    train(other)  # has steps that point at what is replaced
    other.load_state_dict(torch.load(states[0], weights_only=True))
    train(other)
    for a, b in zip(whole.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("stacked", [False, True])
def test_forward_passes_give_what_the_model_gives(stacked: bool) -> None:
    model = build_model(lambda _: Bag(), [3, 4] if stacked else 3, 2 if stacked else 1)
    forward = GraphForward(model, capture=False)
    assert forward.lead == getattr(model, "lead", ())
    found = []
    with evaluation_mode(forward), torch.no_grad():
        for index in (slice(0, 5), slice(3, 30), slice(7, 9), slice(0, TOTAL), slice(0, 5)):
            inputs, _ = ragged()[index]
            if stacked:
                inputs = Ragged(*(x.expand(2, *x.shape) for x in inputs))
            found.append((forward(inputs), model(inputs)))
    for a, b in found:  # what the first call gave is still there after the last
        torch.testing.assert_close(a, b)
    assert forward.training
    assert forward(inputs).requires_grad


def test_the_rows_of_a_task_of_one_batch_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(epochs=4, batch_size=64)
    run.take_step = GraphStep(run, capture=False)
    loads: list[int] = []
    load = Captured.load
    monkeypatch.setattr(Captured, "load", lambda *args: (loads.append(1), load(*args))[1])
    steps: list[int] = []
    train(run, on_step=lambda run: steps.append(run.position.step))
    tasks = sum(size > 0 for size in SIZES)
    assert len(loads) == tasks
    assert steps.count(1) == 4 * tasks


def test_mistakes_are_named() -> None:
    class Growing(Method):
        pass

    run = make_run()
    with pytest.raises(ValueError, match="cuda_graph needs a CUDA device"):
        GraphStep(run)
    run.method = Growing(run.model, CLASSIFICATION)
    with pytest.raises(ValueError, match="does not work with Growing"):
        GraphStep(run, capture=False)


def test_the_setting_changes_nothing_where_there_is_no_gpu() -> None:
    plain, asked = make_run("derpp"), make_run("derpp", cuda_graph=True)
    train(plain)
    train(asked)
    for a, b in zip(plain.model.parameters(), asked.model.parameters(), strict=True):
        assert torch.equal(a, b)
