r"""Random numbers that are a function of (seed, key, position), with no state in between.

A generator that moves must be saved, and its numbers depend on who drew before. Here

    number(seed, key, i) = mix(state + (i + 1) * GAMMA)
    state                = mix(mix(seed + GAMMA) ^ fold(key))

with ``mix`` the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) in wrapping 64-bit integers.
So a resumed run needs no generator state, replica i of a stack draws what the single run with that
seed draws, and every device gives the same numbers.

A seed is an int, or a LongTensor ``[S]``: results then get a leading dimension of S. Keys are ints
and strings that name the purpose: ``permutation(n, seed, "batches", task, epoch)``. The last one
may be a range: the numbers of each of its keys, stacked along a dimension in front of all others.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]

__all__ = [
    "Key",
    "NormalStreams",
    "Seed",
    "derive",
    "integers",
    "normal",
    "permutation",
    "sample",
    "uniform",
]

Seed = int | Tensor
Key = int | str | range
Device = torch.device | str

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_U64 = np.uint64
_M1_U64, _M2_U64 = _U64(_M1), _U64(_M2)
_S11, _S27, _S30, _S31 = _U64(11), _U64(27), _U64(30), _U64(31)


def derive(seed: int, *key: Key) -> int:
    """A new seed, independent of ``seed`` and of every other key, below 2**63."""
    return _state(seed, key) >> 1


def uniform(n: int, seed: Seed, *key: Key, device: Device = "cpu", start: int = 0) -> Tensor:
    """``n`` float64 numbers in [0, 1), positions ``start`` to ``start + n - 1`` of the stream."""
    if _numpy_serves(device, seed):
        return torch.from_numpy(_uniform_numpy(n, seed, key, start))
    return _unit(_bits_torch(n, seed, key, device, start))


def integers(
    high: int | Tensor, n: int, seed: Seed, *key: Key, device: Device = "cpu", start: int = 0
) -> Tensor:
    """``n`` int64 numbers in [0, high).

    ``high`` is an int, a tensor ``[n]`` (one bound a position) or, where the seed is a tensor,
    ``[S]`` (one a replica) or anything two-dimensional that broadcasts to ``[S, n]``.
    """
    if isinstance(high, Tensor):
        if isinstance(seed, Tensor) and high.ndim == 1:
            high = high[:, None]
    elif high < 1:
        raise ValueError(f"Invalid high: {high}, there is no integer in [0, {high})")
    # 53 random bits against a bound below 2**32: the bias stays under 2**-21 of a count
    if _numpy_serves(device, seed):
        bound = high.numpy() if isinstance(high, Tensor) else high
        return torch.from_numpy((_uniform_numpy(n, seed, key, start) * bound).astype(np.int64))
    return uniform(n, seed, *key, device=device, start=start).mul_(high).long()


def normal(n: int, seed: Seed, *key: Key, device: Device = "cpu") -> Tensor:
    """``n`` standard normal float32 numbers, by Box and Muller from pairs of uniform ones."""
    return _normal_of(uniform(n + n % 2, seed, *key, device=device))[..., :n].float()


class NormalStreams:
    """Normal numbers of several streams at once, whose last keys are read on the device.

    They are those that `normal` gives, stream by stream. How many kernels are launched does not
    depend on the number of streams, and nothing comes from the host once this object is made: a
    step that is captured in a CUDA graph draws other numbers at every replay, as its count of steps
    says.

    Args:
        sizes: how many numbers each stream gives.
        seed: an int, or one per replica.
        keys: of each stream, all but the last.
        device: where they are drawn.
    """

    def __init__(
        self, sizes: Sequence[int], seed: Seed, keys: Sequence[tuple[Key, ...]], device: Device
    ) -> None:
        self.sizes, self.seed = list(sizes), seed
        self._even = [n + n % 2 for n in sizes]  # pairs of one stream
        places = torch.cat([torch.arange(1, n + 1) for n in self._even])
        self._steps = (places * _signed(_GAMMA)).to(device)
        owners = [torch.full((n,), i) for i, n in enumerate(self._even)]
        self._owners = torch.cat(owners).to(device)
        folds = [_signed(_fold_first(key, len(key) + 1)) for key in keys]
        self._folds = torch.tensor(folds, device=device)
        seeds = seed.cpu() if isinstance(seed, Tensor) else torch.tensor(_signed(seed))
        self._seeds = _mix_torch(seeds + _signed(_GAMMA))[..., None].to(device)

    def draw(self, last: Tensor) -> list[Tensor]:
        """Float32 ``[n]``, or ``[S, n]`` for replicas, of each stream.

        Args:
            last: the last key of each stream, int64, on the device.
        """
        folds = _mix_torch((self._folds ^ last) + _signed(_GAMMA))
        states = _mix_torch(self._seeds ^ folds)
        bits = _mix_torch(states.index_select(-1, self._owners) + self._steps)
        numbers = _normal_of(_unit(bits)).float()
        parts = numbers.split(self._even, dim=-1)
        return [part[..., :n] for part, n in zip(parts, self.sizes, strict=True)]


def _normal_of(u: Tensor) -> Tensor:
    radius = torch.sqrt(-2.0 * torch.log1p(-u[..., 0::2]))
    angle = (2.0 * math.pi) * u[..., 1::2]
    pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return pairs.flatten(-2)


def permutation(n: int, seed: Seed, *key: Key, device: Device = "cpu") -> Tensor:
    """A random order of 0 to n - 1 (int64): the order of the random numbers at those positions."""
    if _numpy_serves(device, seed):
        # 64 random bits do not tie, so the fast sort gives the one order there is
        bits = _bits_numpy(n, seed, key, 0).view(np.int64)
        return torch.from_numpy(np.argsort(bits, axis=-1))
    return torch.argsort(_bits_torch(n, seed, key, device, 0), dim=-1, stable=True)


def sample(n: int, k: int, seed: Seed, *key: Key) -> Tensor:
    """``k`` different numbers of 0 to n - 1 (int64, on the CPU), every ordered choice as likely.

    The first ``k`` different ones of a stream of integers in [0, n), which costs what ``k`` numbers
    cost, however large ``n`` is; where it is not twice as large, the head of a permutation.
    """
    if not 0 < k <= n:
        raise ValueError(f"Invalid k: {k}, there are not as many different numbers in [0, {n})")
    if n <= 2 * k:
        return permutation(n, seed, *key)[..., :k]
    length = 2 * k + 8
    while True:
        stream = integers(n, length, seed, *key).numpy()
        if stream.ndim == 1:  # a dict keeps the order, and costs a small draw a tenth of sorting
            different = list(dict.fromkeys(stream.tolist()))
            if len(different) >= k:
                return torch.from_numpy(np.array(different[:k], np.int64))
        else:
            first = _first_seen(stream)
            count = first.cumsum(-1)
            if count[..., -1].min() >= k:
                return torch.from_numpy(stream[first & (count <= k)].reshape(*stream.shape[:-1], k))
        length *= 2  # the same stream, read further


def _first_seen(stream: np.ndarray) -> np.ndarray:
    """For each number whether none before it, along the last dimension, is the same."""
    length = stream.shape[-1]
    value, place = np.divmod(np.sort(stream * length + np.arange(length), axis=-1), length)
    fresh = np.ones(stream.shape, dtype=bool)
    np.not_equal(value[..., 1:], value[..., :-1], out=fresh[..., 1:])
    first = np.empty_like(fresh)
    np.put_along_axis(first, place, fresh, -1)
    return first


# One hash, written three times: Python ints for keys, NumPy where a small array must not cost
# twenty tensor operations, int64 tensors for other devices. The tests hold them together.


def _numpy_serves(device: Device, seed: Seed) -> bool:
    """On the CPU, except inside ``vmap``, whose tensors have no array to look at."""
    on_cpu = device == "cpu" or torch.device(device).type == "cpu"
    return on_cpu and not (isinstance(seed, Tensor) and is_batchedtensor(seed))


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    return x ^ (x >> 31)


@functools.cache
def _word(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _fold(key: tuple[Key, ...]) -> int:
    return _fold_first(key, len(key))


def _fold_first(key: tuple[Key, ...], length: int) -> int:
    """A key of `length` parts folded as far as `key`, its first parts, goes."""
    folded = length
    for part in key:
        folded = _join(folded, part)
    return folded


def _join(folded: int, part: Key) -> int:
    assert not isinstance(part, range)
    value = _word(part) if isinstance(part, str) else int(part)
    return _mix(((folded ^ value) + _GAMMA) & _MASK)


def _folds(key: tuple[Key, ...]) -> list[int] | None:
    """`_fold` of each key that a last part which is a range stands for; None without one."""
    if not key or not isinstance(key[-1], range):
        return None
    folded = _fold_first(key[:-1], len(key))
    return [_join(folded, last) for last in key[-1]]


def _state(seed: int, key: tuple[Key, ...]) -> int:
    return _mix(_mix((seed + _GAMMA) & _MASK) ^ _fold(key))


def _mix_numpy(x: np.ndarray) -> np.ndarray:
    """In place: eight operations on a small array cost more in allocation than in work."""
    x ^= x >> _S30
    x *= _M1_U64
    x ^= x >> _S27
    x *= _M2_U64
    x ^= x >> _S31
    return x


@functools.lru_cache(maxsize=64)
def _steps(n: int) -> np.ndarray:
    return np.arange(1, n + 1, dtype=_U64) * _U64(_GAMMA)


def _bits_numpy(n: int, seed: Seed, key: tuple[Key, ...], start: int) -> np.ndarray:
    # long streams are not worth keeping; short ones (a batch, a task) come again and again
    steps = _steps(n) if n <= 4096 else np.arange(1, n + 1, dtype=_U64) * _U64(_GAMMA)
    shift, several = (start * _GAMMA) & _MASK, _folds(key)
    if not isinstance(seed, Tensor) and several is None:
        return _mix_numpy(_U64((_state(seed, key) + shift) & _MASK) + steps)
    seeds = seed.cpu().numpy() if isinstance(seed, Tensor) else np.array([seed])
    mixed = _mix_numpy(seeds.astype(np.int64).view(_U64) + _U64(_GAMMA))
    folds = _fold(key) if several is None else np.array(several, _U64)[:, None]
    state = _mix_numpy(mixed ^ np.asarray(folds, _U64))
    bits = _mix_numpy((state + _U64(shift))[..., None] + steps)
    return bits if isinstance(seed, Tensor) else bits[:, 0]


def _uniform_numpy(n: int, seed: Seed, key: tuple[Key, ...], start: int) -> np.ndarray:
    return (_bits_numpy(n, seed, key, start) >> _S11) * 2.0**-53


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


def _shift(x: Tensor, by: int) -> Tensor:
    # tensors shift arithmetically: the mask drops the copies of the sign
    return (x >> by) & ((1 << (64 - by)) - 1)


def _unit(bits: Tensor) -> Tensor:
    """The upper 53 bits as a number in [0, 1)."""
    return _shift(bits, 11).double() * 2.0**-53


# A GPU would launch fifteen kernels for one `mix`, and thousands of tasks draw small numbers.
_MIX_CUDA = """
template <typename T> T mix(T x) {
    unsigned long long u = static_cast<unsigned long long>(x);
    u = (u ^ (u >> 30)) * 0xBF58476D1CE4E5B9ULL;
    u = (u ^ (u >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<T>(u ^ (u >> 31));
}
"""


@functools.cache
def _mix_cuda() -> Callable[[Tensor], Tensor]:
    return torch.cuda.jiterator._create_jit_fn(_MIX_CUDA)


def _mix_torch(x: Tensor) -> Tensor:
    if x.is_cuda and not is_batchedtensor(x) and not torch.cuda.is_current_stream_capturing():
        return _mix_cuda()(x)
    x = (x ^ _shift(x, 30)) * _signed(_M1)
    x = (x ^ _shift(x, 27)) * _signed(_M2)
    return x ^ _shift(x, 31)


def _bits_torch(n: int, seed: Seed, key: tuple[Key, ...], device: Device, start: int) -> Tensor:
    steps = torch.arange(start + 1, start + n + 1, device=device) * _signed(_GAMMA)
    several = _folds(key)
    if not isinstance(seed, Tensor) and several is None:
        return _mix_torch(steps + _signed(_state(seed, key)))
    seeds = seed.to(device) if isinstance(seed, Tensor) else torch.tensor([seed], device=device)
    folds: int | Tensor = _signed(_fold(key)) if several is None else 0
    if several is not None:
        folds = torch.tensor([_signed(x) for x in several], device=device)[:, None]
    state = _mix_torch(_mix_torch(seeds + _signed(_GAMMA)) ^ folds)
    bits = _mix_torch(state[..., None] + steps)
    return bits if isinstance(seed, Tensor) else bits[:, 0]
