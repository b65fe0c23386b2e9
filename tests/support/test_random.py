import numpy as np
import pytest
import torch

from longtail.support import random
from longtail.support.random import (
    NormalStreams,
    derive,
    integers,
    normal,
    permutation,
    sample,
    uniform,
)

SEEDS = torch.tensor([0, 1, 7, 2**62, -3])


def test_numbers_are_a_function_of_seed_key_and_position():
    a = uniform(100, 3, "x", 1)
    assert torch.equal(a, uniform(100, 3, "x", 1))
    assert torch.equal(a[:10], uniform(10, 3, "x", 1))
    assert torch.equal(a[40:50], uniform(10, 3, "x", 1, start=40))
    for other in (uniform(100, 4, "x", 1), uniform(100, 3, "y", 1), uniform(100, 3, "x", 2)):
        assert not torch.equal(a, other)
    assert not torch.equal(uniform(4, 0, "a", "b"), uniform(4, 0, "b", "a"))
    assert not torch.equal(uniform(4, 0, "a"), uniform(4, 0, "a", 0))


def test_the_numbers_never_change():
    """Published results rest on these."""
    assert derive(0) == 2598789274482403935
    assert derive(1, "model", 2) == 8745442533838625877
    assert permutation(8, 0, "batches", 0, 0).tolist() == [2, 1, 4, 6, 3, 0, 5, 7]


@pytest.mark.parametrize(
    "draw",
    [
        uniform,
        normal,
        permutation,
        lambda *a: integers(17, *a),
        lambda *a: sample(40, *a),
        lambda *a: sample(70, *a),
        lambda *a: sample(10**6, *a),
    ],
)
def test_each_seed_of_a_stack_draws_what_it_draws_alone(draw):
    stacked = draw(33, SEEDS, "purpose", 5)
    assert stacked.shape == (5, 33)
    for row, seed in zip(stacked, SEEDS.tolist(), strict=True):
        assert torch.equal(row, draw(33, seed, "purpose", 5))


@pytest.mark.parametrize("seed", [5, 2**63 - 1, SEEDS])
def test_tensor_hash_equals_numpy_hash(seed):
    ours = random._bits_torch(1000, seed, ("k", 9), "cpu", 12)
    assert np.array_equal(ours.numpy(), random._bits_numpy(1000, seed, ("k", 9), 12).view(np.int64))


@pytest.mark.parametrize("seed", [5, torch.tensor([5, 0, 9])])
@pytest.mark.parametrize("draw", [random.uniform, random.normal, random.permutation])
def test_a_range_in_a_key_stacks_the_numbers_of_its_keys(draw, seed):
    stacked = draw(7, seed, "z", range(3, 6))
    one_by_one = torch.stack([draw(7, seed, "z", t) for t in range(3, 6)])
    assert torch.equal(stacked, one_by_one)
    on_device = random._bits_torch(7, seed, ("z", range(3, 6)), "cpu", 2)
    ours = random._bits_numpy(7, seed, ("z", range(3, 6)), 2)
    assert np.array_equal(on_device.numpy(), ours.view(np.int64))


def test_derive_gives_a_seed_that_torch_and_tensors_take():
    seeds = [derive(s, "model") for s in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= s < 2**63 for s in seeds)
    torch.Generator().manual_seed(seeds[0])
    assert uniform(3, torch.tensor(seeds)).shape == (1000, 3)


def test_moments():
    u, z = uniform(200_000, 1), normal(200_001, 2)
    assert u.dtype == torch.float64
    assert z.dtype == torch.float32
    assert z.shape == (200_001,)
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    assert abs(z.mean()) < 0.01
    assert abs(z.var() - 1) < 0.02
    assert abs((z[:-1] * z[1:]).mean()) < 0.01  # neighbours share a radius, not a value


def test_integers_are_uniform_and_bounded():
    counts = torch.bincount(integers(10, 100_000, 4, "chi"), minlength=10).double()
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 27.9  # chi-square, 9 degrees of freedom, p = 0.001
    per_position = integers(torch.arange(1, 51), 50, 0)
    assert (per_position <= torch.arange(50)).all()
    per_replica = integers(torch.tensor([1, 2, 3]), 100, torch.arange(3))
    assert per_replica.amax(1).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="high: 0"):
        integers(0, 3, 1)


def test_permutations_are_uniform():
    rows = permutation(4, torch.arange(24_000), "p")
    assert torch.equal(rows.sort(1).values, torch.arange(4).expand(24_000, 4))
    codes = (rows * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.unique(codes, return_counts=True)[1].double()
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # 23 degrees of freedom, p = 0.001
    assert permutation(0, 1).shape == (0,)
    assert permutation(1, 1).tolist() == [0]


@pytest.mark.gpu
def test_gpu_gives_the_same_numbers():
    for seed in (5, SEEDS):
        assert torch.equal(uniform(99, seed, "k", device="cuda").cpu(), uniform(99, seed, "k"))
        assert torch.equal(permutation(99, seed, device="cuda").cpu(), permutation(99, seed))
        assert torch.equal(integers(9, 99, seed, device="cuda").cpu(), integers(9, 99, seed))
        assert torch.allclose(normal(99, seed, device="cuda").cpu(), normal(99, seed))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (7, 4), (100, 50), (101, 50), (10**9, 50)])
def test_a_sample_holds_no_number_twice(n, k):
    for key in range(20):
        found = sample(n, k, SEEDS, "sample", key)
        assert found.shape == (5, k)
        assert found.min() >= 0
        assert found.max() < n
        assert all(len(row.unique()) == k for row in found)


@pytest.mark.parametrize(("n", "k"), [(4, 3), (5, 2), (7, 3)])
def test_every_ordered_sample_is_as_likely(n, k):
    """As the head of a permutation, and as the first different numbers of a stream."""
    found = sample(n, k, torch.arange(42_000), "chi")
    counts = torch.bincount((found * n ** torch.arange(k)).sum(-1), minlength=n**k)
    counts = counts[counts > 0].double()
    choices = int(np.prod(range(n - k + 1, n + 1)))
    assert len(counts) == choices
    expected = 42_000 / choices
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (choices - 1)) < 4 * (2 * (choices - 1)) ** 0.5


def test_a_stream_that_is_too_short_is_read_further(monkeypatch):
    """What is drawn does not depend on how many numbers were looked at."""
    expected = sample(30, 10, SEEDS, "s")
    read = []

    def short(n, length, *key):
        read.append(length)
        return integers(n, length if len(read) > 1 else 10, *key)

    monkeypatch.setattr(random, "integers", short)
    assert torch.equal(sample(30, 10, SEEDS, "s"), expected)
    assert len(read) == 2


@pytest.mark.parametrize("k", [0, 6])
def test_a_sample_that_cannot_be_is_refused(k):
    with pytest.raises(ValueError, match=f"Invalid k: {k}"):
        sample(5, k, 0)


@pytest.mark.parametrize("seed", [5, 2**63 - 1, SEEDS])
def test_streams_give_what_normal_gives_for_keys_that_are_tensors(seed):
    sizes, keys = [6, 1, 7, 0], [("noise", 0), ("noise", 3), ("other", -1), ("noise",)]
    streams = NormalStreams(sizes, seed, keys, "cpu")
    for last in ([1, 1, 1, 1], [2, 900, 0, 4]):
        drawn = streams.draw(torch.tensor(last))
        for n, key, t, numbers in zip(sizes, keys, last, drawn, strict=True):
            wanted = normal(n, seed, *key, t)
            assert numbers.shape == wanted.shape
            assert numbers.dtype == torch.float32
            torch.testing.assert_close(numbers, wanted, rtol=1e-6, atol=1e-6)
