"""Split CIFAR-10: five tasks of two kinds of things, learned by a ResNet-18."""

from longtail.benchmarks.split_images import (
    COLOUR_METHOD_SETTINGS as METHOD_SETTINGS,
)
from longtail.benchmarks.split_images import (
    COLOUR_METHOD_TRAIN as METHOD_TRAIN,
)
from longtail.benchmarks.split_images import (
    TRAIN,
    SplitImages,
)
from longtail.benchmarks.split_images import (
    ColourSettings as Settings,
)

__all__ = [
    "METHOD_SETTINGS",
    "METHOD_TRAIN",
    "PAPER",
    "STACKABLE",
    "TRAIN",
    "Settings",
    "build",
    "data_command",
]

PAPER = "seq_cifar10"
STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("cifar10")
build = _benchmark.build
data_command = _benchmark.data_command
