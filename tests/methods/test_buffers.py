import pytest
import torch

from longtail.methods.buffers import ReservoirBuffer, TaskBuffer
from longtail.support.random import integers
from longtail.tasks import Ragged, StackedExamples, TensorExamples

CHI_SQUARE_001 = {99: 148.23, 199: 267.54}  # degrees of freedom -> value exceeded once in 1,000


def numbered(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(start, stop)
    return y[:, None].float().expand(-1, 3), y


def contents(buffer: ReservoirBuffer | TaskBuffer) -> torch.Tensor:
    """All rows' numbers by slot, read from what a snapshot would hold."""
    return buffer.state_dict()["fields"][1]


def naive_reservoir(capacity: int, rows: int, seed: int) -> list[int]:
    slots = list(range(min(capacity, rows)))
    for t in range(capacity, rows):
        j = int(integers(t + 1, 1, seed, "keep", start=t))
        if j < capacity:
            slots[j] = t
    return slots


@pytest.mark.parametrize("batch", [1, 3, 16, 64, 500])
def test_batches_give_what_row_by_row_insertion_gives(batch):
    buffer = ReservoirBuffer(20, seed=5)
    for start in range(0, 500, batch):
        x, y = numbered(start, min(start + batch, 500))
        buffer.add(x, y)
    assert contents(buffer).tolist() == naive_reservoir(20, 500, 5)
    x, y = buffer.draw(15)
    assert torch.equal(x, y[:, None].float().expand(-1, 3))
    assert len(buffer) == 20


def test_reservoir_keeps_every_row_with_the_same_probability():
    """10,000 insertions, 200 seeds as replicas; groups of 50 rows make 200 cells."""
    seeds = torch.arange(200)
    buffer = ReservoirBuffer(500, seed=seeds)
    for start in range(0, 10_000, 250):
        y = torch.arange(start, start + 250).expand(200, -1)
        buffer.add(y.clone(), y)
    kept = contents(buffer).view(200, 500)
    assert all(len(row.unique()) == 500 for row in kept[:5])
    counts = torch.bincount(kept.flatten() // 50, minlength=200).double()
    expected = 200 * 500 / 200
    # kept rows exclude each other, which only makes the counts more even
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_001[199]
    assert ((counts - expected) ** 2 / expected).sum() > 130


@pytest.mark.parametrize("k", [20, 50, 80])
def test_draws_are_uniform_and_differ(k):
    buffer = ReservoirBuffer(100, seed=1)
    buffer.add(*numbered(0, 100))
    draws = torch.stack([buffer.draw(k)[1] for _ in range(400)])
    counts = torch.bincount(draws.flatten(), minlength=100).double()
    share = k / 100
    # a row is in a draw or not, with a variance that much below that of independent numbers
    spread = ((counts - 400 * share) ** 2 / (400 * share * (1 - share))).sum()
    assert 50 < spread < CHI_SQUARE_001[99]
    assert len(draws.unique(dim=0)) == 400


@pytest.mark.parametrize("seed", [1, torch.arange(3)])
@pytest.mark.parametrize("kind", [ReservoirBuffer, TaskBuffer])
def test_a_draw_holds_no_row_twice_and_all_rows_where_there_are_no_more(kind, seed):
    buffer = kind(30, seed)
    for number in range(6):
        if isinstance(buffer, TaskBuffer):
            buffer.add_task(task(number, 9))
        else:
            y = torch.arange(9 * number, 9 * number + 9)
            buffer.add(*(y if buffer.replicas is None else y.expand(3, -1) for _ in range(2)))
        for k in (1, 5, 29, 30, 31, 100):
            rows = buffer.draw(k)[1]
            assert rows.shape[-1] == min(k, len(buffer))
            for row in rows.view(-1, rows.shape[-1]):
                assert len(row.unique()) == len(row)


def test_a_planned_draw_is_filled_up_behind_the_rows_of_the_draw():
    buffers = [ReservoirBuffer(30, seed=torch.arange(2)) for _ in range(2)]
    for buffer, stop in zip(buffers, (6, 6), strict=True):
        y = torch.arange(stop).expand(2, -1)
        buffer.add(y, y)
    for k, size in ((4, 8), (20, 30)):
        numbers = buffers[0].plan(2, k, size)
        with buffers[0].planned(numbers):
            planned = [buffers[0].draw(k)[1] for _ in range(2)]
        for rows in planned:
            drawn = buffers[1].draw(k)[1]
            assert torch.equal(rows[:, : min(k, 6)], drawn)
            assert torch.equal(rows[:, min(k, 6) :], drawn[:, :1].expand(-1, size - min(k, 6)))


def test_each_replica_is_the_single_buffer_with_its_seed():
    seeds = torch.tensor([3, 9, 4])
    data = torch.randn(3, 300, 2)
    stack = ReservoirBuffer(25, seed=seeds, leads=(1, 1, 2))
    single = [ReservoirBuffer(25, seed=int(seed)) for seed in seeds]
    outputs = torch.randn(2, 3, 300, 4)  # [P, S, n, classes]
    targets = torch.arange(300).expand(3, -1)
    for rows in torch.arange(300).split(20):
        stack.add(data[:, rows], targets[:, rows], outputs[:, :, rows])
        for s in range(3):
            single[s].add(data[s, rows], targets[s, rows], outputs[1, s, rows])
    for _ in range(3):
        x, y, z = stack.draw(8)
        assert z.shape == (2, 3, 8, 4)
        for s in range(3):
            x_s, y_s, z_s = single[s].draw(8)
            assert torch.equal(x[s], x_s)
            assert torch.equal(y[s], y_s)
            assert torch.equal(z[1, s], z_s)


def test_leading_dimensions_are_found_where_only_one_reading_fits():
    x, y, z = torch.randn(3, 8, 2), torch.arange(24).view(3, 8), torch.randn(2, 3, 8)
    buffer = ReservoirBuffer(10, seed=torch.arange(3))
    buffer.add(x, y, z)
    rows = buffer.draw(4)
    assert [row.shape for row in rows] == [(3, 4, 2), (3, 4), (2, 3, 4)]
    for s in range(3):
        assert torch.equal(rows[2][:, s], z[:, s, rows[1][s] % 8])
    with pytest.raises(ValueError, match="ambiguous"):
        ReservoirBuffer(10, seed=torch.arange(3)).add(torch.zeros(3, 3), torch.zeros(3, 3, 3))


def ragged(start: int, stop: int, lead: tuple[int, ...] = ()) -> tuple[Ragged, torch.Tensor]:
    """Row i holds the number i, i % 23 + 1 times."""
    y = torch.arange(start, stop)
    lengths = y % 23 + 1
    padded = y[:, None] * (torch.arange(int(lengths.max())) < lengths[:, None])
    rows = Ragged(padded.expand(*lead, -1, -1), lengths.expand(*lead, -1))
    return rows, y.expand(*lead, -1)


@pytest.mark.parametrize("seed", [0, torch.tensor([0, 1])])
def test_ragged_rows_come_back_as_they_were(seed):
    lead = (2,) if isinstance(seed, torch.Tensor) else ()
    buffer = ReservoirBuffer(15, seed=seed)
    for start in range(0, 300, 5):
        rows, y = ragged(start, start + 5, lead)
        buffer.add({"ids": rows, "also": (y,)}, y, rows)
        inputs, targets, outputs = buffer.draw(6)
        for got in (inputs["ids"], outputs):
            assert torch.equal(got.lengths, targets % 23 + 1)
            assert got.padded.shape[-1] == got.lengths.max()
            assert torch.equal(got.padded, targets[..., None] * got.mask())
        assert torch.equal(inputs["also"][0], targets)


def test_tensors_may_not_change_their_width():
    buffer = ReservoirBuffer(15, seed=0)
    buffer.add(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises((RuntimeError, IndexError)):
        buffer.add(torch.zeros(2, 4), torch.zeros(2))


def tasks_in(buffer: TaskBuffer) -> torch.Tensor:
    """Stored examples per task, for tasks whose targets are 1000 * task + row."""
    return torch.bincount(contents(buffer)[: len(buffer)] // 1000, minlength=buffer.tasks)


def task(number: int, size: int) -> TensorExamples:
    return TensorExamples(*numbered(1000 * number, 1000 * number + size))


def assert_shared(buffer: TaskBuffer, sizes: list[int]) -> None:
    """Each task has its share, nobody two more than one that would take more; no slot is empty."""
    held = tasks_in(buffer).tolist()
    assert all(held[i] >= min(n, buffer.capacity // len(sizes)) for i, n in enumerate(sizes))
    wanting = [held[i] for i, n in enumerate(sizes) if held[i] < n]
    assert not wanting or max(held) <= min(wanting) + 1
    assert sum(held) == len(buffer) == min(buffer.capacity, sum(sizes))
    assert len(contents(buffer)[: len(buffer)].unique()) == len(buffer)


def test_what_small_tasks_leave_is_handed_out():
    """Two slots each would leave seven of twenty empty."""
    sizes = [30, 1, 1, 1, 9, 40, 2]
    buffer = TaskBuffer(20, seed=0)
    for number, size in enumerate(sizes):
        buffer.add_task(task(number, size))
        assert_shared(buffer, sizes[: number + 1])
    assert sorted(tasks_in(buffer).tolist()) == [1, 1, 1, 2, 5, 5, 5]
    for number in range(7, 60):
        buffer.add_task(task(number, 2))
        assert len(buffer) == 20


def test_what_is_left_over_goes_to_old_and_new_tasks_alike():
    """Of 200 tasks 100 have one slot more than the others: about 50 of the older half."""
    buffer = TaskBuffer(500, seed=0)
    for number in range(200):
        buffer.add_task(task(number, 9))
    held = tasks_in(buffer)
    assert held.bincount().tolist() == [0, 0, 100, 100]
    assert 35 < (held[:100] == 3).sum() < 65


def test_tasks_have_equal_space():
    buffer = TaskBuffer(60, seed=2)
    for number in range(60):
        size = (100, 3)[number % 5 == 4]
        buffer.add_task(task(number, size))
        assert_shared(buffer, [(100, 3)[n % 5 == 4] for n in range(number + 1)])
        x, y = buffer.draw(10)
        assert torch.equal(x, y[:, None].float().expand(-1, 3))
    buffer.add_task(None)
    assert buffer.tasks == 60


def test_kept_examples_are_a_uniform_sample_of_their_task():
    kept = []
    for seed in range(300):
        buffer = TaskBuffer(100, seed=seed)
        for number in range(5):
            buffer.add_task(task(number, 100))
        values = contents(buffer)[: len(buffer)]
        kept.append(values[values < 1000])  # of the first task, which shrank four times
    counts = torch.bincount(torch.cat(kept), minlength=100).double()
    chi_square = ((counts - 60) ** 2 / 60).sum()
    assert 50 < chi_square < CHI_SQUARE_001[99]


def test_more_tasks_than_slots_keep_a_fair_sample_of_tasks():
    """100 slots, 1,000 tasks, 200 seeds as replicas; groups of 5 tasks make 200 cells."""
    buffer = TaskBuffer(100, seed=torch.arange(200))
    for number in range(1000):
        buffer.add_task(task(number, 7))
    kept = contents(buffer).view(200, 100) // 1000
    assert all(len(row.unique()) == 100 for row in kept)
    counts = torch.bincount(kept.flatten() // 5, minlength=200).double()
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert 130 < chi_square < CHI_SQUARE_001[199]
    rows = torch.bincount((contents(buffer) % 1000), minlength=7).double()
    assert ((rows - 20_000 / 7) ** 2 / (20_000 / 7)).sum() < 22.5  # 6 degrees of freedom


def test_one_slot_holds_each_of_three_tasks_equally_often():
    """Where an error of one in the probabilities would show most."""
    buffer = TaskBuffer(1, seed=torch.arange(3000))
    for number in range(3):
        buffer.add_task(task(number, 2))
    counts = torch.bincount(contents(buffer).view(-1) // 1000, minlength=3).double()
    assert ((counts - 1000) ** 2 / 1000).sum() < 13.8  # 2 degrees of freedom, p = 0.001


@pytest.mark.parametrize("own_data", [False, True])
def test_each_replica_of_a_task_buffer_is_the_single_one(own_data):
    seeds = torch.tensor([8, 1])
    stack = TaskBuffer(12, seed=seeds)
    single = [TaskBuffer(12, seed=int(seed)) for seed in seeds]
    for number in range(40):
        x = torch.randn(2, 9, 3) if own_data else torch.randn(9, 3).expand(2, -1, -1)
        y = torch.arange(9).expand(2, -1) + 1000 * number
        shared = TensorExamples(x[0].contiguous(), y[0].clone())
        stack.add_task(StackedExamples(x, y) if own_data else shared)
        for s in range(2):
            single[s].add_task(TensorExamples(x[s].contiguous(), y[s].contiguous()))
        drawn = stack.draw(5)
        for s in range(2):
            for ours, theirs in zip(drawn, single[s].draw(5), strict=True):
                assert torch.equal(ours[s], theirs)


@pytest.mark.parametrize("kind", [ReservoirBuffer, TaskBuffer])
@pytest.mark.parametrize("seed", [3, torch.tensor([3, 4])])
@pytest.mark.parametrize("before", [0, 3, 30])
def test_a_restored_buffer_goes_on_as_the_saved_one(kind, seed, before, tmp_path):
    lead = (2,) if isinstance(seed, torch.Tensor) else ()

    def offer(buffer, number):
        rows, y = ragged(10 * number, 10 * number + 10, lead)
        if isinstance(buffer, ReservoirBuffer):
            buffer.add(rows, y)
        else:
            buffer.add_task(task(number, 10))

    buffer = kind(17, seed)
    for number in range(before):
        offer(buffer, number)
        buffer.draw(4)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    restored = kind(17, seed)
    offer(restored, 50)  # what it had is gone
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for number in range(before, before + 20):
        for b in (buffer, restored):
            offer(b, number)
        expected, got = buffer.draw(4), restored.draw(4)
        assert torch.equal(expected[1], got[1])
        flat = expected[0] if isinstance(expected[0], Ragged) else [expected[0]]
        assert all(map(torch.equal, flat, got[0] if isinstance(got[0], Ragged) else [got[0]]))
    with pytest.raises(ValueError, match="capacity: 16, saved was 17"):
        kind(16, seed).load_state_dict(buffer.state_dict())


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="capacity: 0"):
        ReservoirBuffer(0, seed=1)
    with pytest.raises(ValueError, match="empty buffer"):
        ReservoirBuffer(5, seed=1).draw(2)
    with pytest.raises(ValueError, match="3 replicas"):
        ReservoirBuffer(5, seed=torch.arange(3)).add(torch.zeros(2, 4), torch.zeros(2, 4))


@pytest.mark.gpu
def test_gpu_keeps_and_draws_the_same_rows():
    buffers = [ReservoirBuffer(20, seed=torch.arange(3)) for _ in range(2)]
    for start in range(0, 200, 8):
        rows, y = ragged(start, start + 8, (3,))
        buffers[0].add(rows, y)
        buffers[1].add(Ragged(rows.padded.cuda(), rows.lengths.cuda()), y.cuda())
        expected, got = buffers[0].draw(5), buffers[1].draw(5)
        assert got[1].is_cuda
        assert torch.equal(expected[0].padded, got[0].padded.cpu())
        assert torch.equal(expected[1], got[1].cpu())
    restored = ReservoirBuffer(20, seed=torch.arange(3))
    restored.load_state_dict(buffers[0].state_dict(), device="cuda")  # as from a snapshot
    assert torch.equal(restored.draw(5)[1], buffers[1].draw(5)[1])
