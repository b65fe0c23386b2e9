"""A multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


class MLP(nn.Sequential):
    """Linear layers with ReLU between them, initialised as PyTorch does by default or by Glorot.

    "xavier" draws the weights from U(-a, a), a² = 6 / (inputs + outputs), with biases of zero: in a
    wide first layer twice as large as PyTorch's.

    Example:
        >>> MLP(3, (8,), 2)
        MLP(
          (0): Linear(in_features=3, out_features=8, bias=True)
          (1): ReLU()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, init: str = "torch"
    ) -> None:
        if init not in ("torch", "xavier"):
            raise ValueError(f"Invalid init: {init!r}, not 'torch' or 'xavier'")
        widths = [inputs, *hidden, outputs]
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for a, b in pairwise(widths[1:]):
            layers += [nn.ReLU(), nn.Linear(a, b)]
        super().__init__(*layers)
        for layer in self if init == "xavier" else ():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
