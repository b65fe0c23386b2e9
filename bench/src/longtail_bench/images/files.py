"""Small labelled images in the forms their publishers ship, and a miniature made here.

========================= ==========================================================================
form                      files
========================= ==========================================================================
idx                       `train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`, ..., plain or `.gz`
CIFAR, binary version     `cifar-10-binary.tar.gz`; 100 alike
npz                       arrays `x_train y_train x_test y_test` of bytes, [n, H, W] or [n, H, W, C]
========================= ==========================================================================
"""

import gzip
import math
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longtail_bench.downloads import Remote

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class Images(NamedTuple):
    """Bytes [n, channels, height, width] and int64 labels [n], as published: train, then test."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


class Source(NamedTuple):
    """A data set: its number of classes, how its files are read, and where they are published."""

    classes: int
    form: str
    files: tuple[Remote, ...]
    shape: tuple[int, int, int]
    sizes: tuple[int, int]


def _idx_remotes(
    bases: tuple[str, ...], *, sha256: tuple[str, ...] = ("",) * 4, md5: tuple[str, ...] = ("",) * 4
) -> tuple[Remote, ...]:
    """The four files, with the checksums that are on record of them."""
    remotes: list[Remote] = []
    for name, first, second in zip(IDX_FILES, sha256, md5, strict=True):
        urls = tuple(f"{base}/{name}.gz" for base in bases)
        remotes.append(Remote(f"{name}.gz", urls, sha256=first, md5=second))
    return tuple(remotes)


def _cifar_remote(name: str, sha256: str) -> tuple[Remote, ...]:
    return (Remote(name, (f"https://www.cs.toronto.edu/~kriz/{name}",), sha256=sha256),)


SOURCES = {
    "mnist": Source(
        10,
        "idx",
        _idx_remotes(
            # the author's own page no longer serves the files; these two mirror them byte for byte
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
            sha256=(
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        (1, 28, 28),
        (60000, 10000),
    ),
    "fashion_mnist": Source(
        10,
        "idx",
        _idx_remotes(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
            md5=(
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        (1, 28, 28),
        (60000, 10000),
    ),
    "cifar10": Source(
        10,
        "cifar",
        _cifar_remote(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        (3, 32, 32),
        (50000, 10000),
    ),
    "cifar100": Source(
        100,
        "cifar",
        _cifar_remote(
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
        (3, 32, 32),
        (50000, 10000),
    ),
}


def read(name: str, folder: str | Path) -> Images:
    """The data set `name` from whichever of its forms lies in `folder`."""
    folder = Path(folder)
    source = SOURCES[name]
    forms: dict[str, Callable[[str, Path], Images | None]] = {"idx": _idx, "cifar": _cifar}
    images = forms[source.form](name, folder)
    if images is None:
        images = _npz(name, folder)
    if images is None:
        raise ValueError(
            f"No {name} in {folder}: expected {source.files[0].name} or {name}.npz; `longtail data "
            f"{name}` fetches it, LONGTAIL_CACHE or data.folder say where it is"
        )
    _check(name, images, folder)
    return images


def _check(name: str, images: Images, folder: Path) -> None:
    classes = SOURCES[name].classes
    for part, x, y in (
        ("train", images.train, images.train_labels),
        ("test", images.test, images.test_labels),
    ):
        if x.ndim != 4 or len(x) != len(y) or len(x) == 0:
            raise ValueError(f"{name} in {folder}: {part} has images {x.shape}, labels {y.shape}")
        if x.shape[1:] != images.train.shape[1:]:
            raise ValueError(
                f"{name} in {folder}: {part} images are {x.shape[1:]}, those of train "
                f"{images.train.shape[1:]}"
            )
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(
                f"{name} in {folder}: {part} has labels {y.min()} to {y.max()}, expected 0 to "
                f"{classes - 1}"
            )


# --- idx: a big-endian header (two zeros, type, rank, the sizes), then the values ----------------


def read_idx(path: Path) -> np.ndarray:
    """An idx file of unsigned bytes, plain or gzip, whatever its name says."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not data[3]:
        raise ValueError(f"{path} is not an idx file of bytes: it begins with {data[:4]!r}")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"{path} is cut short: {len(data)} bytes, fewer than its header has")
    shape = tuple(np.frombuffer(data, ">u4", data[3], 4).tolist())
    if len(data) - start != math.prod(shape):
        raise ValueError(f"{path} is cut short: {len(data) - start} values for shape {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _idx(name: str, folder: Path) -> Images | None:
    arrays = []
    for file in IDX_FILES:
        path = next((p for p in (folder / file, folder / f"{file}.gz") if p.exists()), None)
        if path is None:
            if arrays:
                raise ValueError(f"{name} in {folder} is not complete: {file} is missing")
            return None
        arrays.append(read_idx(path))
    x, y, x_test, y_test = arrays
    return Images(x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64))


# --- CIFAR, binary version: an image is its labels, one byte each, then 3 x 32 x 32 bytes ---------


def _cifar(name: str, folder: Path) -> Images | None:
    parts, test, labels = ["train.bin"], "test.bin", 2  # of CIFAR-100: coarse, then fine
    if name == "cifar10":
        parts, test, labels = [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", 1
    archive = folder / SOURCES[name].files[0].name
    if not archive.exists():
        return None
    wanted = [*parts, test]
    found = dict(_from_archive(archive, wanted, labels))
    if missing := [w for w in wanted if w not in found]:
        raise ValueError(f"{name} in {folder} is not complete: {missing[0]} is missing")
    x, y = (np.concatenate(arrays) for arrays in zip(*(found[p] for p in parts), strict=True))
    return Images(x, y, *found[test])


def _from_archive(
    archive: Path, wanted: list[str], labels: int
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if member.isfile() and name in wanted:
                    file = tar.extractfile(member)
                    assert file is not None
                    yield name, read_cifar(file.read(), labels, f"{archive}:{member.name}")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(f"{archive} cannot be unpacked: {reason}") from None


def read_cifar(content: bytes, labels: int, place: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, and the last of the `labels` that each has."""
    size = labels + 3 * 32 * 32
    if not content or len(content) % size:
        raise ValueError(f"{place} is cut short: {len(content)} bytes, {size} for each image")
    rows = np.frombuffer(content, np.uint8).reshape(-1, size)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64)


# --- npz -----------------------------------------------------------------------------------------


def _npz(name: str, folder: Path) -> Images | None:
    path = folder / f"{name}.npz"
    if not path.exists():
        return None
    try:
        if not zipfile.is_zipfile(path):  # NumPy would say how to unpickle it
            raise ValueError("it is no zip file, or a part of one")
        with open(path, "rb") as opened, np.load(opened) as file:
            x, y, x_test, y_test = (file[k] for k in ("x_train", "y_train", "x_test", "y_test"))
        labels = [_whole_numbers(a) for a in (y, y_test)]
    except Exception as error:  # of damaged bytes NumPy and zipfile make errors of many kinds
        raise ValueError(f"{path} is not an archive of labelled images: {error}") from None
    images = [_channels_first(a, path) for a in (x, x_test)]
    return Images(images[0], labels[0], images[1], labels[1])


def _whole_numbers(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "iu":
        raise ValueError(f"its labels are {labels.dtype}, not whole numbers")
    return labels.astype(np.int64).reshape(-1)


def _channels_first(x: np.ndarray, path: Path) -> np.ndarray:
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise ValueError(f"{path} holds images of type {x.dtype} and shape {x.shape}, not bytes")
    if x.ndim == 3:
        return x[:, None]
    return x if x.shape[1] in (1, 3) else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
