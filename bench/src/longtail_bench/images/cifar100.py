"""Split CIFAR-100: ten tasks of ten kinds of things, learned by a ResNet-18."""

from dataclasses import dataclass

from longtail.names import option
from longtail_bench.images.split import ColourSettings, colour_spec


@dataclass(frozen=True)
class Settings(ColourSettings):
    """As split CIFAR-10, with more classes."""

    tasks: int = option(10, "number of tasks")
    classes_per_task: int = option(10, "classes in each task")


SPEC = colour_spec("cifar100", Settings)
