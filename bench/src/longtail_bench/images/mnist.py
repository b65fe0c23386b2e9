"""Split MNIST: five tasks of two digits, learned by a perceptron with two hidden layers."""

from longtail_bench.images.split import grey_spec

SPEC = grey_spec("mnist")
