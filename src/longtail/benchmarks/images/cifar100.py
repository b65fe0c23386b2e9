"""Split CIFAR-100: ten tasks of ten kinds of things, learned by a ResNet-18."""

from dataclasses import dataclass, field

from longtail.benchmarks.images import split as split_images
from longtail.benchmarks.images.split import ColourSettings, SplitImages


@dataclass(frozen=True)
class Settings(ColourSettings):
    """As split CIFAR-10, with more classes."""

    tasks: int = field(default=10, metadata={"help": "number of tasks"})
    classes_per_task: int = field(default=10, metadata={"help": "classes in each task"})


TRAIN = split_images.COLOUR_TRAIN
METHOD_TRAIN = split_images.COLOUR_METHOD_TRAIN
METHOD_SETTINGS = split_images.COLOUR_METHOD_SETTINGS
STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("cifar100")
build = _benchmark.build
data_command = _benchmark.data_command
