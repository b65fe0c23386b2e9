"""A multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


class MLP(nn.Sequential):
    """Linear layers with ReLU between them, initialised as PyTorch does by default.

    Example:
        >>> MLP(3, (8,), 2)
        MLP(
          (0): Linear(in_features=3, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        widths = [inputs, *hidden, outputs]
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for a, b in pairwise(widths[1:]):
            layers += [nn.ReLU(), nn.Linear(a, b)]
        super().__init__(*layers)
