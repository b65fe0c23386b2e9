"""Split Fashion-MNIST: as split MNIST, with ten kinds of clothes for digits."""

from longtail.benchmarks.images.split import METHOD_SETTINGS, TRAIN, Settings, SplitImages

__all__ = ["METHOD_SETTINGS", "STACKABLE", "TRAIN", "Settings", "build", "data_command"]

STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("fashion_mnist")
build = _benchmark.build
data_command = _benchmark.data_command
