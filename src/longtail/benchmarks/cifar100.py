"""Split CIFAR-100: ten tasks of ten kinds of things, learned by a ResNet-18."""

from dataclasses import dataclass, field

from longtail.benchmarks.split_images import (
    COLOUR_METHOD_SETTINGS as METHOD_SETTINGS,
)
from longtail.benchmarks.split_images import (
    COLOUR_METHOD_TRAIN as METHOD_TRAIN,
)
from longtail.benchmarks.split_images import (
    TRAIN,
    ColourSettings,
    SplitImages,
)

__all__ = [
    "METHOD_SETTINGS",
    "METHOD_TRAIN",
    "STACKABLE",
    "TRAIN",
    "Settings",
    "build",
    "data_command",
]


@dataclass(frozen=True)
class Settings(ColourSettings):
    """As split CIFAR-10, with more classes."""

    tasks: int = field(default=10, metadata={"help": "number of tasks"})
    classes_per_task: int = field(default=10, metadata={"help": "classes in each task"})


STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("cifar100")
build = _benchmark.build
data_command = _benchmark.data_command
