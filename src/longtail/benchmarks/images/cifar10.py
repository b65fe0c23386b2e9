"""Split CIFAR-10: five tasks of two kinds of things, learned by a ResNet-18."""

from longtail.benchmarks.images import split as split_images
from longtail.benchmarks.images.split import ColourSettings, SplitImages

Settings = ColourSettings
TRAIN = split_images.COLOUR_TRAIN
METHOD_TRAIN = split_images.COLOUR_METHOD_TRAIN
METHOD_SETTINGS = split_images.COLOUR_METHOD_SETTINGS
PAPER = "seq_cifar10"
STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("cifar10")
build = _benchmark.build
data_command = _benchmark.data_command
