"""Split CIFAR-10: five tasks of two kinds of things, learned by a ResNet-18."""

from longtail.benchmarks.split_images import (
    METHOD_SETTINGS,
    TRAIN,
    SplitImages,
)
from longtail.benchmarks.split_images import (
    ColourSettings as Settings,
)

__all__ = ["METHOD_SETTINGS", "PAPER", "STACKABLE", "TRAIN", "Settings", "build", "data_command"]

PAPER = "seq_cifar10"
STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("cifar10")
build = _benchmark.build
data_command = _benchmark.data_command
