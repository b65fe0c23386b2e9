"""Split CIFAR-10: five tasks of two kinds of things, learned by a ResNet-18."""

from longtail_bench.images.split import ColourSettings, colour_spec

SPEC = colour_spec("cifar10", ColourSettings)
