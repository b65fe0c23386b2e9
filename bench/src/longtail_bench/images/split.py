"""Split MNIST, split CIFAR-10 and their like: the classes of a data set, a few to each task.

Class-incremental: one head for all classes and no task identity at test time. Beside that score
stands the task-incremental one, where the answer is chosen among the task's own classes.

Classes are learned in the order of their numbers, so that with m classes to a task

    task of an example = label // m
"""

import argparse
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from longtail.benchmarks import MLP, Benchmark, BenchmarkSpec
from longtail.names import option
from longtail.support.cache import cache_folder
from longtail.tasks import CLASSIFICATION, Objective, Score, Segments, TableSequence, TensorExamples
from longtail_bench.downloads import Meter, fetch_all, verify
from longtail_bench.images.files import SOURCES, Images, read
from longtail_bench.images.inputs import Pixels, RandomCropFlip
from longtail_bench.images.miniature import miniature
from longtail_bench.images.resnet import ResNet18

CLASS_NAMES = {
    "mnist": "0 1 2 3 4 5 6 7 8 9",
    "fashion_mnist": "t-shirt trouser pullover dress coat sandal shirt sneaker bag boot",
    "cifar10": "airplane automobile bird cat deer dog frog horse ship truck",
}
STATISTICS = {  # mean and standard deviation of the training images, by channel
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


@dataclass(frozen=True)
class Settings:
    """What the sequence is made of, and the network that learns it."""

    tasks: int = option(5, "number of tasks")
    classes_per_task: int = option(2, "classes in each task")
    model: Literal["mlp", "resnet18"] = option("mlp", "two hidden layers, or ResNet-18")
    hidden: int = option(100, "width of the hidden layers (mlp)")
    init: Literal["xavier", "torch"] = option("xavier", "first weights (mlp): Glorot's, PyTorch's")
    width: int = option(64, "channels of the first stage (resnet18)")
    augment: bool = option(False, "random crops (4 pixels of padding) and mirror images")
    miniature: bool = option(False, "the built-in miniature in place of the real images")
    folder: str = option("", "folder of the files; empty: where `longtail data` puts them")

    def __post_init__(self) -> None:
        for name in ("tasks", "classes_per_task", "hidden", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")


@dataclass(frozen=True)
class ColourSettings(Settings):
    """The same for images that a ResNet learns, with augmentation."""

    model: Literal["mlp", "resnet18"] = option("resnet18", "ResNet-18, or two hidden layers")
    augment: bool = option(True, "random crops (4 pixels of padding) and mirror images")


TRAIN: dict[str, Any] = {
    "batch_size": 10,
    "weight_decay": 0.01,
    "evaluate_every": 1,
    "cuda_graph": True,
}
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "ewc": {"strength": 200.0},
    "ewcpp": {"strength": 1000.0, "decay": 0.9},
    "reservoir": {"buffer": 200},
    "derpp": {"buffer": 200, "alpha": 1.0, "beta": 1.0},
    "agem": {"buffer": 200, "draw": 128},  # as Mammoth, on which the paper built, is set up
}


def within_task(classes_per_task: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Accuracy [*lead, B] when the choice is among the classes of the example's own task."""

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        first = targets - targets % classes_per_task
        own = first[..., None] + torch.arange(classes_per_task, device=targets.device)
        chosen = outputs.gather(-1, own.expand(*outputs.shape[:-1], -1)).argmax(-1)
        return (chosen == targets - first).float()

    return score


def _objective(classes_per_task: int) -> Objective:
    """Class-incremental accuracy leads; task-incremental accuracy is reported beside it."""
    choice = within_task(classes_per_task)
    beside = Score("task_incremental", choice, "percent", higher_is_better=True)
    return replace(CLASSIFICATION, scores=(*CLASSIFICATION.scores, beside))


def sequence_of(
    images: Images, tasks: int, classes_per_task: int, names: Sequence[str]
) -> TableSequence:
    """The first classes, `classes_per_task` to a task; those that no task has are left out."""
    pixels, labels, offsets = [], [], []
    start = 0
    for x, y in ((images.train, images.train_labels), (images.test, images.test_labels)):
        task = y // classes_per_task
        rows = np.argsort(task, kind="stable")[: np.count_nonzero(task < tasks)]
        sizes = np.bincount(task[rows], minlength=tasks)
        offsets.append(start + np.cumsum([0, *sizes]))
        pixels.append(x[rows])
        labels.append(y[rows])
        start += len(rows)
    table = TensorExamples(
        torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(np.concatenate(labels))
    )
    starts = range(0, tasks * classes_per_task, classes_per_task)
    return TableSequence(
        table,
        Segments(offsets[0]),
        Segments(offsets[1]),
        _objective(classes_per_task),
        [", ".join(names[first : first + classes_per_task]) for first in starts],
    )


@functools.lru_cache(maxsize=2)
def _images(name: str, folder: Path | None) -> Images:
    return miniature(name) if folder is None else read(name, folder)


def grey_spec(name: str) -> BenchmarkSpec[Settings]:
    """Of digits and their like, for a perceptron."""
    images = SplitImages(name)
    return BenchmarkSpec(
        Settings,
        images.build,
        train=TRAIN,
        method_settings=METHOD_SETTINGS,
        stackable=True,  # the data do not depend on the seed
    )


def colour_spec(name: str, settings: type[ColourSettings]) -> BenchmarkSpec[Any]:
    """Of colour images, for a ResNet.

    The learning rate is what validation images of CIFAR-10 chose for most rows of replay
    (bench/results/seq_cifar10). Multi-task training is the top line, of as many epochs as it
    needs: small batches would be slow.
    """
    return replace(
        grey_spec(name),
        Settings=settings,
        train={**TRAIN, "lr": 1e-4},
        method_train={
            "multitask": {"batch_size": 128, "epochs": 20, "schedule": "linear", "lr": 1e-3}
        },
        method_settings={**METHOD_SETTINGS, "agem": {"buffer": 200, "draw": 0}},  # Mammoth's too
    )


class SplitImages:
    """What the benchmark modules `mnist`, `cifar10`, ... have in common."""

    def __init__(self, name: str) -> None:
        self.name = name

    def folder(self, settings: Settings) -> Path:
        return Path(settings.folder).expanduser() if settings.folder else cache_folder(self.name)

    def build(self, settings: Settings, seed: int) -> Benchmark:
        """The sequence and the model; only the model depends on the seed."""
        classes = SOURCES[self.name].classes
        used = settings.tasks * settings.classes_per_task
        if used > classes:
            raise ValueError(
                f"Invalid tasks and classes_per_task: {settings.tasks} x "
                f"{settings.classes_per_task} is more than the {classes} classes of {self.name}"
            )
        images = _images(self.name, None if settings.miniature else self.folder(settings))
        names = CLASS_NAMES.get(self.name, " ".join(map(str, range(classes)))).split()
        sequence = sequence_of(images, settings.tasks, settings.classes_per_task, names)
        return Benchmark(sequence, self.make_model(settings, images.train.shape[1:], used))

    def make_model(
        self, settings: Settings, shape: tuple[int, ...], classes: int
    ) -> Callable[[int], nn.Module]:
        def make(seed: int) -> nn.Module:
            before = [RandomCropFlip(seed)] if settings.augment else []
            pixels = Pixels(*STATISTICS.get(self.name, ((0.0,), (1.0,))))
            if settings.model == "resnet18":
                net: nn.Module = ResNet18(classes, shape[0], settings.width)
            else:
                hidden = (settings.hidden, settings.hidden)
                mlp = MLP(math.prod(shape), hidden, classes, settings.init)
                net = nn.Sequential(nn.Flatten(), mlp)
            return nn.Sequential(*before, pixels, net)

        return make

    def fetch_or_check(self, args: argparse.Namespace) -> int:
        """Fetch the published files unless some form is there, then check all."""
        folder = Path(args.dir).expanduser() if args.dir else cache_folder(self.name)
        source = SOURCES[self.name]
        for remote in source.files:
            if (folder / remote.name).exists():
                verify(folder / remote.name, remote)
        try:
            images = read(self.name, folder)
        except ValueError:
            if args.check:
                raise
            fetch_all(source.files, folder, progress=None if args.quiet or args.json else Meter())
            images = read(self.name, folder)
        found = (len(images.train), len(images.test))
        if found != source.sizes or images.train.shape[1:] != source.shape:
            raise ValueError(
                f"{self.name} in {folder} is not complete: {found} images of shape "
                f"{images.train.shape[1:]}, expected {source.sizes} of {source.shape}"
            )
        if args.json:
            counts = {"train": found[0], "test": found[1], "classes": source.classes}
            print(json.dumps({"benchmark": self.name, "folder": str(folder), **counts}))
        elif not args.quiet:
            print(
                f"{self.name}: {found[0]} training and {found[1]} test images of "
                f"{source.classes} classes in {folder}"
            )
        return 0


def data_command(args: argparse.Namespace) -> int:
    """`longtail data mnist` and its like."""
    return SplitImages(args.benchmark).fetch_or_check(args)
