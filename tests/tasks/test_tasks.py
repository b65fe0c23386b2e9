import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from longtail.tasks import (
    CLASSIFICATION,
    REGRESSION,
    Ragged,
    RaggedColumn,
    Rows,
    Segments,
    StackedExamples,
    TableSequence,
    TaskSequence,
    TensorExamples,
    from_datasets,
    from_hf,
    from_tensors,
    multitask,
    order_by_frequency,
    order_by_size,
    order_sampled,
    ragged_examples,
    read,
    size_statistics,
    split,
    tail_plot,
    validation_share,
)

SIZES, TEST_SIZES = [7, 0, 40, 1, 100], [3, 2, 5, 4, 9]


def numbered(task: int, start: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = 1000 * task + start + torch.arange(n)
    return torch.stack((y, -y), 1).float(), y


def numbered_tasks() -> list:
    return [
        (f"t{i}", numbered(i, 0, n) if n else None, numbered(i, 500, m))
        for i, (n, m) in enumerate(zip(SIZES, TEST_SIZES, strict=True))
    ]


@pytest.fixture
def sequence() -> TableSequence:
    return from_tensors(numbered_tasks(), CLASSIFICATION)


def targets(examples) -> list[int]:
    inputs, y = read(examples)
    assert torch.equal(inputs, torch.stack((y, -y), -1).float())
    return y.tolist()


def test_a_task_holds_its_own_rows(sequence):
    assert len(sequence) == 5
    assert sequence.train_sizes.tolist() == SIZES
    assert sequence.test_sizes.tolist() == TEST_SIZES
    for i, (task, (name, train, test)) in enumerate(zip(sequence, numbered_tasks(), strict=True)):
        assert (task.name, task.index, task.validation) == (name, i, None)
        assert targets(task.test) == test[1].tolist()
        if train is None:
            assert task.train is None
        else:
            index = torch.tensor([0, len(train[1]) - 1, 0])
            x, y = task.train[index]
            assert torch.equal(x, train[0][index])
            assert torch.equal(y, train[1][index])
            assert task.train[index.expand(2, -1)][0].shape == (2, 3, 2)
    assert sequence[-1].name == "t4"
    with pytest.raises(IndexError):
        sequence[5]


def test_tests_of_seen_tasks_are_one_table_without_copying(sequence):
    examples, task = sequence.tests(3)
    assert targets(examples) == [500, 501, 502, 1500, 1501, 2500, 2501, 2502, 2503, 2504]
    assert task.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    table = sequence.table.inputs.untyped_storage().data_ptr()
    assert read(examples)[0].untyped_storage().data_ptr() == table


def test_selected_tasks_keep_their_rows(sequence):
    other = sequence.select([4, 0, 1])
    assert other.names == ["t4", "t0", "t1"]
    assert other.train_sizes.tolist() == [100, 7, 0]
    assert targets(other[1].train) == list(range(7))
    assert other[2].train is None
    examples, task = other.tests(2)
    assert targets(examples) == [*range(4500, 4509), 500, 501, 502]
    assert task.tolist() == [0] * 9 + [1] * 3
    assert targets(other.select([1])[0].test) == [500, 501, 502]


def test_tasks_may_overlap():
    table = TensorExamples(*numbered(0, 0, 10))
    rows = Segments.from_lists([[0, 1, 2], [2, 3]])
    sequence = TableSequence(table, rows, Segments.from_lists([[9], [9, 8]]), CLASSIFICATION)
    assert [targets(task.train) for task in sequence] == [[0, 1, 2], [2, 3]]
    assert targets(sequence.tests(2)[0]) == [9, 9, 8]


def test_validation_share_follows_the_floor_rule(sequence):
    shared = validation_share(sequence, seed=3, share=0.05)
    assert shared.train_sizes.tolist() == [7, 0, 38, 1, 95]
    for i, held_out in enumerate([0, 0, 2, 0, 5]):
        task = shared[i]
        assert (0 if task.validation is None else len(task.validation)) == held_out
        if held_out:
            both = targets(task.train) + targets(task.validation)
            assert sorted(both) == targets(sequence[i].train)
            assert targets(task.train) == sorted(targets(task.train))
    other = validation_share(sequence, seed=4, share=0.05)
    assert targets(other[4].validation) != targets(shared[4].validation)
    assert validation_share(sequence, seed=3, share=0) is sequence
    with pytest.raises(ValueError, match=r"share: 1\.0"):
        validation_share(sequence, seed=3, share=1.0)
    with pytest.raises(ValueError, match="already"):
        validation_share(shared, seed=3)


def test_each_replica_holds_out_what_its_single_run_does(sequence):
    seeds = torch.tensor([5, 6])
    stack = validation_share(sequence, seed=seeds, share=0.3)
    for s, seed in enumerate(seeds.tolist()):
        single = validation_share(sequence, seed=seed, share=0.3)
        for i in (0, 2, 4):
            for kind in ("train", "validation"):
                rows = getattr(stack[i], kind)
                assert read(rows)[1][s].tolist() == targets(getattr(single[i], kind))
                index = torch.tensor([[1, 0], [0, 1]])
                expected = [targets(getattr(single[i], kind))[j] for j in index[s]]
                assert rows[index][1][s].tolist() == expected


def test_held_out_rows_are_uniform():
    table = from_tensors([("a", numbered(0, 0, 20), numbered(0, 0, 1))], CLASSIFICATION)
    held = [targets(validation_share(table, s, 0.25)[0].validation) for s in range(1000)]
    counts = np.bincount(np.concatenate(held), minlength=20)
    assert ((counts - 250) ** 2 / 250).sum() < 43.8  # 19 degrees of freedom, p = 0.001


def test_split_takes_the_floor():
    first, rest = split(torch.arange(100), seed=0, fraction=0.29)  # 0.29 * 100 < 29 in floats
    assert len(first) == 29
    assert sorted([*first.tolist(), *rest.tolist()]) == list(range(100))
    assert first.tolist() != list(range(29))
    assert len(split(torch.arange(19), seed=0, fraction=0.9)[0]) == 17


def test_orders():
    sizes = [5, 9, 0, 9]
    assert order_by_size(sizes).tolist() == [1, 3, 0, 2]
    assert order_by_size(sizes, descending=False).tolist() == [2, 0, 1, 3]
    assert order_by_frequency("mississippi") == ["i", "s", "p", "m"]


def test_sampled_order_draws_in_proportion_to_size():
    sizes = [1, 2, 3, 4, 0]
    orders = np.array([order_sampled(sizes, seed) for seed in range(10_000)])
    assert (np.sort(orders, axis=1) == np.arange(5)).all()
    assert (orders[:, 4] == 4).all()
    expected = np.array([1000, 2000, 3000, 4000])
    first = np.bincount(orders[:, 0], minlength=5)[:4]
    assert ((first - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, p = 0.001
    after_3 = np.bincount(orders[orders[:, 0] == 3][:, 1], minlength=5)[:3]
    expected = after_3.sum() * np.array([1, 2, 3]) / 6
    assert ((after_3 - expected) ** 2 / expected).sum() < 13.9
    with pytest.raises(ValueError, match="negative"):
        order_sampled([1, -2], 0)


def test_multitask_is_the_union_and_keeps_the_tests(sequence):
    union = multitask(sequence)
    assert len(union) == 5
    trained = [y for _, train, _ in numbered_tasks() if train for y in train[1].tolist()]
    assert targets(union[0].train) == trained
    assert all(union[i].train is None for i in range(1, 5))
    assert union.test_sizes.tolist() == TEST_SIZES
    assert targets(union.tests(5)[0]) == targets(sequence.tests(5)[0])
    assert targets(TaskSequence.union(sequence)) == trained  # what other sequences fall back on
    shared = validation_share(sequence, 0, 0.05)
    assert targets(multitask(shared)[0].train) != trained
    held = [y for task in shared if task.validation for y in targets(task.validation)]
    assert held
    assert targets(multitask(shared)[0].validation) == held
    assert multitask(validation_share(sequence, 0, 1e-6))[0].validation is None  # none is held out


def test_stacked_examples_give_each_replica_its_own_rows():
    x = torch.randn(3, 50, 4)
    y = torch.arange(150).view(3, 50)
    table = StackedExamples({"a": x, "b": (x,)}, y)
    offsets = [0, 10, 30]
    sequence = TableSequence(table, Segments(offsets), Segments([30, 40, 50]), CLASSIFICATION)
    assert sequence.replicas == 3
    index = torch.tensor([[0, 19, 3], [1, 1, 0], [5, 6, 7]])
    inputs, got = sequence[1].train[index]
    for s in range(3):
        assert torch.equal(got[s], y[s, 10 + index[s]])
        assert torch.equal(inputs["a"][s], x[s, 10 + index[s]])
        assert torch.equal(inputs["b"][0][s], x[s, 10 + index[s]])
    assert torch.equal(sequence[1].train[index[0]][1], y[:, 10 + index[0]])
    assert torch.equal(read(sequence.tests(2)[0])[1], y[:, 30:])
    assert torch.equal(read(multitask(sequence)[0].train)[1], y[:, :30])
    assert torch.equal(read(TaskSequence.union(sequence))[1], y[:, :30])
    moved = sequence[1].train.to("cpu")
    assert torch.equal(moved[index][1], got)
    with pytest.raises(ValueError, match="differ in replicas or rows"):
        StackedExamples(torch.zeros(3, 4), torch.zeros(3, 5))


ROWS = [[1, 2, 3], [], [4], [5, 6], [7, 8, 9, 10]]


@pytest.mark.parametrize("mapped", [False, True])
def test_ragged_examples(mapped, tmp_path):
    values = np.concatenate([np.array(row, dtype=np.uint16) for row in ROWS])
    offsets = np.cumsum([0, *map(len, ROWS)])
    y = np.arange(5)
    if mapped:
        for name, array in (("values", values), ("offsets", offsets), ("y", y)):
            np.save(tmp_path / f"{name}.npy", array)
        values, offsets, y = (
            np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("values", "offsets", "y")
        )
        examples = ragged_examples(values, offsets, y)
    else:
        examples = TensorExamples(RaggedColumn.from_rows(ROWS), torch.tensor(y))
        assert examples.inputs.values.dtype == torch.int64
    for table, rows in ((examples, [3, 0, 1]), (examples.narrow(1, 5), [2, 0, 1])):
        x, got = table[torch.tensor(rows)]
        start = int(table is not examples)
        assert got.tolist() == [start + r for r in rows]
        assert isinstance(x, Ragged)
        found = [row[:n].tolist() for row, n in zip(x.padded, x.lengths, strict=True)]
        assert found == [ROWS[start + r] for r in rows]
        assert x.padded.shape == (3, max(map(len, found)))
        assert (x.padded[~x.mask()] == 0).all()
        embedded = torch.nn.Embedding(20, 2)(x.padded)
        assert embedded.shape == (*x.padded.shape, 2)
    x, got = examples[torch.tensor([[0, 1], [4, 2]])]
    assert x.padded.shape == (2, 2, 4)
    assert got.shape == (2, 2)
    x, _ = read(examples.narrow(1, 2))
    assert x.padded.shape == (1, 0)


def test_memory_mapped_arrays_are_read_in_pieces(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="f4", shape=(1000, 8))
    array[:] = np.arange(8000).reshape(1000, 8)
    array.flush()
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    table = TensorExamples(mapped, torch.arange(1000))
    sequence = TableSequence(table, Segments([0, 400, 900]), Segments([900, 950, 1000]), REGRESSION)
    x, y = sequence[1].train[torch.tensor([3, 499])]
    assert torch.equal(x[:, 0], 8.0 * y)
    assert y.tolist() == [403, 899]
    assert sequence.to("cpu")[1].train[torch.tensor([0])][0][0, 0] == 3200
    x, y = read(sequence.tests(2)[0])
    assert torch.equal(x[:, 0], 8.0 * y)
    copied = from_tensors([("a", (mapped, np.arange(1000)), (mapped, np.arange(1000)))], REGRESSION)
    assert copied[0].train[torch.tensor([7])][0][0, 0] == 56


def test_from_tensors_takes_nested_and_ragged_inputs_and_validation():
    def part(n: int):
        return {"ids": [[i] * (i + 1) for i in range(n)], "x": np.ones((n, 2))}, torch.arange(n)

    sequence = from_tensors(
        [("a", part(3), part(1)), ("b", part(4), part(2), part(2))], CLASSIFICATION
    )
    inputs, _ = sequence[1].train[torch.tensor([3, 0])]
    assert inputs["ids"].lengths.tolist() == [4, 1]
    assert inputs["ids"].padded.tolist() == [[3, 3, 3, 3], [0, 0, 0, 0]]
    assert inputs["x"].shape == (2, 2)
    assert sequence[0].validation is None
    assert read(sequence[1].validation)[1].tolist() == [0, 1]
    with pytest.raises(ValueError, match="empty list"):
        from_tensors([], CLASSIFICATION)
    with pytest.raises(ValueError, match="Invalid task 'c'"):
        from_tensors([("c", part(3), None)], CLASSIFICATION)


class Squares(Dataset):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return torch.tensor([float(i), float(i * i)]), i % 2


@pytest.mark.parametrize("in_memory", [False, True])
def test_from_datasets(in_memory):
    tensors = TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    tasks = [("a", Squares(5), Squares(2)), ("b", None, tensors), ("c", tensors, Squares(3))]
    sequence = from_datasets(tasks, CLASSIFICATION, in_memory=in_memory)
    assert sequence.train_sizes.tolist() == [5, 0, 4]
    x, y = sequence[0].train[torch.tensor([4, 1])]
    assert x.tolist() == [[4, 16], [1, 1]]
    assert y.tolist() == [0, 1]
    assert sequence[1].train is None
    x, _ = read(sequence.tests(3)[0])
    assert x.tolist() == [[0, 0], [1, 1], *[[1, 1]] * 4, [0, 0], [1, 1], [2, 4]]
    assert len(multitask(sequence)[0].train) == 9


class Columns(dict):
    """Looks like a datasets.Dataset: columns by name, length in rows."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))


def test_from_hf():
    def table(n: int) -> Columns:
        ids = [[7] * (1 + i) for i in range(n)]
        return Columns(ids=ids, box=[[1.0, 2.0]] * n, label=list(range(n)))

    tasks = {
        "a": {"train": table(4), "test": table(2), "validation": table(1)},
        "b": {"test": table(3)},
    }
    sequence = from_hf(tasks, CLASSIFICATION, inputs="ids")
    x, y = sequence[0].train[torch.tensor([3, 0])]
    assert x.lengths.tolist() == [4, 1]
    assert y.tolist() == [3, 0]
    assert len(sequence[0].validation) == 1
    assert sequence[1].train is None
    several = from_hf(tasks.items(), CLASSIFICATION, inputs=["ids", "box"])
    x, _ = several[1].test[torch.tensor([2])]
    assert x["box"].tolist() == [[1.0, 2.0]]
    assert x["ids"].padded.tolist() == [[7, 7, 7]]


def test_from_hf_reads_the_real_thing():
    datasets = pytest.importorskip("datasets")
    data = datasets.DatasetDict(
        train=datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}),
        test=datasets.Dataset.from_dict({"x": [[5.0, 6.0]], "label": [1]}),
    )
    sequence = from_hf({"a": data}, CLASSIFICATION, inputs="x")
    assert sequence[0].train[torch.tensor([1])][0].tolist() == [[3.0, 4.0]]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="3 rows in one column, 4 in the targets"):
        TensorExamples((torch.zeros(4), torch.zeros(3)), torch.zeros(4))


def test_examples_are_read_where_their_columns_lie():
    """A user's table on a GPU is not looked up with numbers on the CPU; `meta` is a device too."""
    table = TensorExamples(torch.zeros(4, 2, device="meta"), torch.zeros(4, device="meta"))
    assert table.device.type == table[torch.tensor([1, 3])][0].device.type == "meta"
    mapped = TensorExamples(np.zeros((4, 2)), np.zeros(4))
    assert mapped.device.type == mapped[torch.tensor([1, 3])][0].device.type == "cpu"


def test_rows_of_rows():
    rows = Rows(TensorExamples(*numbered(0, 0, 10)), torch.tensor([9, 4, 2, 7]))
    assert targets(rows.narrow(1, 3)) == [4, 2]
    assert rows[torch.tensor([[0, 1], [3, 3]])][1].tolist() == [[9, 4], [7, 7]]
    assert targets(rows.to("cpu")) == [9, 4, 2, 7]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_objectives_broadcast_over_replicas(lead):
    outputs = torch.randn(*lead, 7, 4)
    labels = torch.randint(4, (*lead[-1:], 7))
    loss, score = (
        CLASSIFICATION.loss(outputs, labels),
        CLASSIFICATION.main.function(outputs, labels),
    )
    assert loss.shape == score.shape == (*lead, 7)
    flat = outputs.view(-1, 7, 4)
    for k, out in enumerate(flat):
        y = labels if labels.ndim == 1 else labels[k % len(labels)]
        expected = torch.nn.functional.cross_entropy(out, y, reduction="none")
        assert torch.allclose(loss.view(-1, 7)[k], expected)
        assert torch.equal(score.view(-1, 7)[k], (out.argmax(-1) == y).float())
    values, wanted = torch.randn(*lead, 7), torch.randn((*lead[-1:], 7))
    assert torch.allclose(REGRESSION.loss(values, wanted), (values - wanted) ** 2)
    with pytest.raises(ValueError, match="one number per example"):
        REGRESSION.loss(values[..., None], wanted)


def test_padding_is_never_a_candidate():
    lengths = torch.tensor([1, 3])
    outputs = Ragged(torch.tensor([[0.0, 9.0, 9.0], [1.0, 0.0, 0.0]]), lengths)
    labels = torch.tensor([0, 2])
    assert CLASSIFICATION.main.function(outputs, labels).tolist() == [1.0, 0.0]
    loss = CLASSIFICATION.loss(outputs, labels)
    assert loss[0] == 0
    assert torch.allclose(loss[1], torch.tensor(float(np.log(np.e + 2))))


def test_size_statistics_and_plot(sequence):
    found = size_statistics(sequence)
    assert found["tasks"] == 5
    assert found["zero_shot"] == 1
    assert found["train_examples"] == 148
    assert found["test_examples"] == 23
    assert (found["largest"], found["smallest"], found["median"]) == (100, 1, 23.5)
    assert found["share_of_largest_tenth"] == 100 / 148
    pairs = sum(abs(a - b) for a in (1, 7, 40, 100) for b in (1, 7, 40, 100))
    assert found["gini"] == pytest.approx(pairs / (2 * 4 * 148))
    plot = tail_plot(1000 * np.arange(1, 301) ** -1.0, width=40).splitlines()
    assert plot[0].startswith("1,000 │█")
    assert plot[-1].endswith("300 tasks")
    bars = [line.split("│")[1] for line in plot if "│" in line]
    lengths = [len(bar) for bar in bars]
    assert lengths == sorted(lengths)  # a tail: narrow on top, wide below
    assert lengths[-1] == 40
    assert tail_plot([0, 0]) == "no task has training examples"
    assert tail_plot([1]).splitlines()[-1].endswith("1 task")


@pytest.mark.gpu
def test_gpu_batches_equal_cpu_batches(sequence):
    moved = validation_share(sequence, 0, 0.1).to("cuda")
    index = torch.tensor([5, 0])
    for where in ("cpu", "cuda"):
        x, y = moved[4].train[index.to(where)]
        assert x.is_cuda
        assert y.tolist() == validation_share(sequence, 0, 0.1)[4].train[index][1].tolist()
    examples, task = moved.tests(5)
    assert task.is_cuda
    assert read(examples)[1].tolist() == read(sequence.tests(5)[0])[1].tolist()
