"""Split image benchmarks: (Fashion-)MNIST and CIFAR in tasks of a few classes."""
