"""Split Fashion-MNIST: as split MNIST, with ten kinds of clothes for digits."""

from longtail_bench.images.split import grey_spec

SPEC = grey_spec("fashion_mnist")
