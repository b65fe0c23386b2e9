"""Split image benchmarks: readers, the tasks they give, both scores, and the data command."""

import argparse
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.benchmarks import load
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail_bench.downloads import DownloadError, Remote
from longtail_bench.images import files as image_files
from longtail_bench.images.files import IDX_FILES, Images, read, read_idx
from longtail_bench.images.miniature import miniature
from longtail_bench.images.split import data_command, sequence_of, within_task


def random_images(shape: tuple[int, int, int], classes: int = 10) -> Images:
    rng = np.random.default_rng(0)
    parts = []
    for n in (40, 20):
        parts += [rng.integers(0, 256, (n, *shape), np.uint8), np.arange(n) % classes]
    return Images(*parts)


def idx_bytes(array: np.ndarray) -> bytes:
    array = array.astype(np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()


def write_idx(folder: Path, images: Images, end: str = "") -> None:
    arrays = (images.train[:, 0], images.train_labels, images.test[:, 0], images.test_labels)
    for name, array in zip(IDX_FILES, arrays, strict=True):
        data = idx_bytes(array)
        (folder / (name + end)).write_bytes(gzip.compress(data) if end == ".gz" else data)


def cifar_files(images: Images, hundred: bool) -> dict[str, bytes]:
    """As published: the labels of an image (a coarse one first, of a hundred), then its bytes."""

    def records(x: np.ndarray, y: np.ndarray) -> bytes:
        labels = [np.full_like(y, 7), y] if hundred else [y]
        return np.column_stack([*labels, x.reshape(len(x), -1)]).astype(np.uint8).tobytes()

    test = records(images.test, images.test_labels)
    if hundred:
        train = records(images.train, images.train_labels)
        return {"cifar-100-binary/train.bin": train, "cifar-100-binary/test.bin": test}
    parts = {}
    for i in range(5):
        rows = slice(8 * i, 8 * i + 8)
        content = records(images.train[rows], images.train_labels[rows])
        parts[f"cifar-10-batches-bin/data_batch_{i + 1}.bin"] = content
    return {**parts, "cifar-10-batches-bin/test_batch.bin": test}


def same(a: Images, b: Images) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_are_read_plain_and_compressed(tmp_path: Path, end: str) -> None:
    images = random_images((1, 28, 28))
    write_idx(tmp_path, images, end)
    assert same(read("mnist", tmp_path), images)
    assert read("fashion_mnist", tmp_path).train.dtype == np.uint8


@pytest.mark.parametrize(
    "damage",
    [
        b"\0\0\x0d\x01\0\0\0\x02ab",
        b"\0\0\x08\x01\0\0\0\x05ab",
        b"",
        b"\0\0\x08\x03\0\0",
        b"\0\0\x08\0a",
        gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab")[:-9],
        gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab")[:-8] + bytes(8),
        b"\x1f\x8b\x08" + b"\xff" * 40,
    ],
    ids=["floats", "short", "empty", "header", "rank", "cut gzip", "wrong sum", "no deflate"],
)
def test_a_broken_idx_file_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage)
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        read_idx(path)


def test_a_missing_idx_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, random_images((1, 28, 28)))
    (tmp_path / IDX_FILES[3]).unlink()
    with pytest.raises(ValueError, match=f"not complete: {IDX_FILES[3]} is missing"):
        read("mnist", tmp_path)


def write_archive(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    path = folder / image_files.SOURCES[name].files[0].name
    with tarfile.open(path, "w:gz") as tar:
        for member, data in files.items():
            about = tarfile.TarInfo(member)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return path


@pytest.mark.parametrize(("name", "hundred"), [("cifar10", False), ("cifar100", True)])
def test_cifar_is_read_from_its_archive(tmp_path: Path, name: str, hundred: bool) -> None:
    images = random_images((3, 32, 32))
    files = cifar_files(images, hundred)
    write_archive(tmp_path, name, files)
    assert same(read(name, tmp_path), images)
    last = list(files)[-1]
    write_archive(tmp_path, name, {path: files[path] for path in files if path != last})
    missing = last.rpartition("/")[2]
    with pytest.raises(ValueError, match=f"is not complete: {missing} is missing"):
        read(name, tmp_path)


@pytest.mark.parametrize("cut", [0, 30, -200], ids=["empty", "start", "end"])
def test_a_broken_archive_is_named(tmp_path: Path, cut: int) -> None:
    archive = write_archive(tmp_path, "cifar100", cifar_files(random_images((3, 32, 32)), True))
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(ValueError, match=rf"^{archive} cannot be unpacked: [^\n]*$"):
        read("cifar100", tmp_path)


@pytest.mark.parametrize("content", [b"", bytes(3073), bytes(3 * 3074 - 1)])
def test_a_batch_that_is_cut_short_is_named(tmp_path: Path, content: bytes) -> None:
    files = dict.fromkeys(("a/train.bin", "a/test.bin"), content)
    archive = write_archive(tmp_path, "cifar100", files)
    with pytest.raises(ValueError, match=f"^{archive}:a/train.bin is cut short: "):
        read("cifar100", tmp_path)


def test_npz_is_read_in_either_layout(tmp_path: Path) -> None:
    images = random_images((3, 32, 32))
    arrays = dict(zip(("x_train", "y_train", "x_test", "y_test"), images, strict=True))
    np.savez(tmp_path / "cifar10.npz", **arrays)
    assert same(read("cifar10", tmp_path), images)
    arrays.update({k: arrays[k].transpose(0, 2, 3, 1) for k in ("x_train", "x_test")})
    np.savez(tmp_path / "cifar10.npz", **arrays)
    assert same(read("cifar10", tmp_path), images)
    np.savez(tmp_path / "cifar10.npz", **{**arrays, "x_test": arrays["x_test"] / 255})
    with pytest.raises(ValueError, match=r"cifar10\.npz.*float64"):
        read("cifar10", tmp_path)


@pytest.mark.parametrize("damage", ["empty", "npy", "cut", "content", "float labels", "text"])
def test_a_broken_npz_is_named(tmp_path: Path, damage: str) -> None:
    path, images = tmp_path / "mnist.npz", random_images((1, 28, 28))
    labels: np.ndarray = images.train_labels
    if damage == "float labels":
        labels = labels + 0.5
    if damage == "text":
        labels = np.array(["a"] * len(labels))
    arrays = {"x_train": images.train, "x_test": images.test, "y_test": images.test_labels}
    np.savez_compressed(path, y_train=labels, **arrays)
    if damage == "npy":
        with open(path, "wb") as file:
            np.save(file, images.train)
    if damage in ("empty", "cut"):
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -200])
    if damage == "content":
        path.write_bytes(path.read_bytes().replace(path.read_bytes()[2000:2200], b"\xff" * 200))
    with pytest.raises(ValueError, match=f"^{path} is not an archive of labelled images"):
        read("mnist", tmp_path)


def test_train_and_test_images_have_one_shape(tmp_path: Path) -> None:
    images = random_images((1, 28, 28))
    write_idx(tmp_path, images._replace(test=images.test[..., :20]))
    with pytest.raises(ValueError, match=r"test images are \(1, 28, 20\), those of train"):
        read("mnist", tmp_path)


def test_the_folder_may_be_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_idx(tmp_path, random_images((1, 28, 28)))
    assert load("mnist").build(load("mnist").Settings(folder="~"), 0).sequence.names


def test_labels_out_of_range_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No mnist in .*`longtail data mnist` fetches it"):
        read("mnist", tmp_path)
    images = random_images((1, 28, 28), classes=12)
    write_idx(tmp_path, images)
    with pytest.raises(ValueError, match="labels 0 to 11, expected 0 to 9"):
        read("mnist", tmp_path)


def test_tasks_hold_their_classes() -> None:
    images = random_images((1, 4, 4))
    sequence = sequence_of(images, 2, 2, ["zero", "one", "two", "three", "four", "five"])
    assert sequence.names == ["zero, one", "two, three"]  # the other classes are left out
    assert sequence.train_sizes.tolist() == [8, 8]
    assert sequence.test_sizes.tolist() == [4, 4]
    for task in range(2):
        for part, x, y in (
            (sequence.train(task), images.train, images.train_labels),
            (sequence.test(task), images.test, images.test_labels),
        ):
            assert part is not None
            pixels, labels = part[torch.arange(len(part))]
            assert pixels.dtype == torch.uint8
            assert set(labels.tolist()) == {2 * task, 2 * task + 1}
            rows = y // 2 == task
            assert np.array_equal(pixels.numpy(), x[rows])
            assert np.array_equal(labels.numpy(), y[rows])


def test_the_task_incremental_score_chooses_within_the_task() -> None:
    outputs = torch.tensor([[9.0, 1.0, 2.0, 3.0], [9.0, 1.0, 5.0, 3.0], [0.0, 1.0, 9.0, 0.0]])
    targets = torch.tensor([3, 3, 1])
    score = within_task(2)
    assert score(outputs, targets).tolist() == [1.0, 0.0, 1.0]
    stacked = score(outputs.expand(2, 4, 3, 4), targets.expand(4, 3))
    assert stacked.shape == (2, 4, 3)
    assert stacked[1, 3].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar100"])
def test_the_miniature_has_every_class_and_repeats(name: str) -> None:
    images, again = miniature(name), miniature(name)
    assert same(images, again)
    classes = image_files.SOURCES[name].classes
    assert np.bincount(images.train_labels).tolist() == [80] * classes
    assert np.bincount(images.test_labels).tolist() == [20] * classes
    assert images.train.shape[1:] == (image_files.SOURCES[name].shape[0], 16, 16)


def test_build_gives_sequence_and_model(tmp_path: Path) -> None:
    module = load("mnist")
    write_idx(tmp_path, random_images((1, 28, 28)))
    benchmark = module.build(module.Settings(folder=str(tmp_path)), 0)
    model = benchmark.make_model(0)
    inputs, targets = benchmark.sequence.test(4)[torch.arange(4)]
    assert model(inputs).shape == (4, 10)
    assert set(targets.tolist()) <= {8, 9}
    assert sum(p.numel() for p in model.parameters()) == 784 * 100 + 100 + 10100 + 1010
    assert benchmark.sequence.names == ["0, 1", "2, 3", "4, 5", "6, 7", "8, 9"]


def test_the_perceptron_starts_from_glorots_weights_or_pytorchs() -> None:
    module = load("mnist")
    largest = {}
    for init in ("xavier", "torch"):
        model = module.build(module.Settings(miniature=True, init=init), 0).make_model(0)
        first = next(layer for layer in model.modules() if isinstance(layer, torch.nn.Linear))
        largest[init] = first.weight.abs().max().item()
        assert (first.bias == 0).all() == (init == "xavier")
        outputs, inputs = first.weight.shape
    assert largest["xavier"] == pytest.approx((6 / (inputs + outputs)) ** 0.5, rel=1e-2)
    assert largest["torch"] == pytest.approx(inputs**-0.5, rel=1e-2)


def test_colour_benchmarks_augment_and_use_a_resnet() -> None:
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        module = load(name)
        settings = module.Settings(miniature=True, width=8)
        assert settings.augment
        benchmark = module.build(settings, 0)
        assert len(benchmark.sequence) == classes // settings.classes_per_task
        model = benchmark.make_model(0).eval()
        inputs, _ = benchmark.sequence.test(0)[torch.arange(3)]
        assert model(inputs).shape == (3, classes)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A publisher in a folder: MNIST with sixty images."""
    source = tmp_path / "published"
    source.mkdir()
    write_idx(source, random_images((1, 28, 28)), ".gz")
    files = [source / f"{name}.gz" for name in IDX_FILES]
    sums = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    remotes = tuple(
        Remote(file.name, (file.as_uri(),), sha256=sha256)
        for file, sha256 in zip(files, sums, strict=True)
    )
    small = image_files.SOURCES["mnist"]._replace(files=remotes, sizes=(40, 20))
    monkeypatch.setitem(image_files.SOURCES, "mnist", small)
    return source


def data(folder: Path, **flags: bool) -> int:
    args = {"check": False, "quiet": False, "json": False, **flags}
    return data_command(argparse.Namespace(benchmark="mnist", dir=str(folder), **args))


def test_data_fetches_then_checks(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    with pytest.raises(ValueError, match="No mnist in"):
        data(folder, check=True)
    assert data(folder) == 0
    assert f"40 training and 20 test images of 10 classes in {folder}" in capsys.readouterr().out
    assert data(folder, check=True, json=True) == 0
    assert json.loads(capsys.readouterr().out)["train"] == 40
    assert data(folder, quiet=True) == 0
    assert capsys.readouterr().out == ""


def test_data_finds_a_changed_file(published: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    data(folder, quiet=True)
    path = folder / f"{IDX_FILES[1]}.gz"
    labels = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(labels[:-1] + b"\0"))
    wrong = image_files.SOURCES["mnist"].files[1]
    fixed = Remote(wrong.name, wrong.urls, sha256="0" * 64)
    files = tuple(fixed if f is wrong else f for f in image_files.SOURCES["mnist"].files)
    image_files.SOURCES["mnist"] = image_files.SOURCES["mnist"]._replace(files=files)
    with pytest.raises(DownloadError, match=IDX_FILES[1]) as refused:
        data(folder, check=True)
    assert isinstance(refused.value, ValueError)  # a user's file: exit code 2


def test_data_counts_the_images(published: Path, tmp_path: Path) -> None:
    image_files.SOURCES["mnist"] = image_files.SOURCES["mnist"]._replace(sizes=(60000, 10000))
    with pytest.raises(ValueError, match=r"not complete: \(40, 20\) images"):
        data(tmp_path / "here", quiet=True)


SMALL = {"data.miniature": True, "data.tasks": 3, "data.hidden": 16, "train.validation": 0.2}


def test_a_run_reports_both_scores_and_the_validation_score(tmp_path: Path) -> None:
    flags = {**SMALL, "data.hidden": 32, "method": "derpp", "train.lr": 0.01, "train.epochs": 6}
    found = train_run(resolve("mnist", flags=flags), tmp_path, RunOptions(quiet=True, device="cpu"))
    within, across = found["task_incremental"]["RP"], found["RP"]
    assert 0.8 < within <= 1.0
    assert 0.4 < across < within
    assert abs(found["validation"] - across) < 0.2
    by_task = found["validation_by_task"]  # tasks of one size
    assert len(by_task) == 3
    assert np.mean(list(by_task.values())) == pytest.approx(found["validation"])
    assert json.loads((tmp_path / "summary.json").read_text()) == found


def test_multitask_training_is_validated_on_all_tasks(tmp_path: Path) -> None:
    flags = {**SMALL, "method": "multitask", "train.epochs": 12, "train.lr": 0.01}
    found = train_run(resolve("mnist", flags=flags), tmp_path, RunOptions(quiet=True, device="cpu"))
    assert found["RP"] > 0.6
    assert abs(found["validation"] - found["RP"]) < 0.2
    assert "validation_by_task" not in found  # they are one


@pytest.mark.parametrize("method", ["finetune", "derpp"])
def test_a_stack_scores_what_single_runs_score(tmp_path: Path, method: str) -> None:
    base = {**SMALL, "method": method}
    configs = [
        resolve("mnist", flags={**base, "seed": seed, "policy": policy, "train.lr": lr})
        for lr in (1e-3, 1e-2)
        for policy in ("continual", "new")
        for seed in (0, 3)
    ]
    stacked = train_stack(configs, tmp_path / "stack", RunOptions(quiet=True, device="cpu"))
    for i in (1, 6):
        alone = train_run(configs[i], tmp_path / str(i), RunOptions(quiet=True, device="cpu"))
        for name in ("RP", "LP", "validation"):
            assert stacked[i]["summary"][name] == pytest.approx(alone[name], abs=0.02)
        by_task = stacked[i]["summary"]["validation_by_task"]
        assert by_task == pytest.approx(alone["validation_by_task"], abs=0.04)
        within = stacked[i]["summary"]["task_incremental"]["RP"]
        assert within == pytest.approx(alone["task_incremental"]["RP"], abs=0.02)
