"""Split MNIST: five tasks of two digits, learned by a perceptron with two hidden layers."""

from longtail.benchmarks.images.split import METHOD_SETTINGS, TRAIN, Settings, SplitImages

__all__ = ["METHOD_SETTINGS", "PAPER", "STACKABLE", "TRAIN", "Settings", "build", "data_command"]

PAPER = "seq_mnist"
STACKABLE = True  # the data do not depend on the seed
_benchmark = SplitImages("mnist")
build = _benchmark.build
data_command = _benchmark.data_command
