"""ResNet-18 in its CIFAR form (He et al., 2016): a 3x3 stem of stride 1 and no max pooling.

    block(x) = relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))

Four stages of two blocks, of width w, 2w, 4w and 8w; each stage but the first halves the image.

On a GPU weights and images lie channels last, which is a tenth faster. On a CPU they do not: there
oneDNN's 1x1 convolution never returns from its backward pass with weights laid out so, where a
layer has fewer than eight channels and two threads compute it (torch 2.13, AVX2).
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected by 1x1 where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images [B, channels, H, W] of any size to class scores [B, classes].

    Args:
        classes: size of the one output layer.
        channels: of the images.
        width: of the first stage; 64 is the standard, 11.2 million parameters.
    """

    def __init__(self, classes: int, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"Invalid width: {width}")
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages, before = [], width
        for stage in range(4):
            wide = width * 2**stage
            first = Block(before, wide, 1 if stage == 0 else 2)
            stages.append(nn.Sequential(first, Block(wide, wide, 1)))
            before = wide
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes)
        self._lay_out()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._lay_out()
        return self

    def _lay_out(self) -> None:
        """The convolutions' weights as the device they are on wants them."""
        for weight in self.parameters():
            if weight.dim() == 4:
                order = torch.channels_last if weight.is_cuda else torch.contiguous_format
                weight.data = weight.data.contiguous(memory_format=order)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and not is_batchedtensor(x):  # vmap has its own layout
            x = x.contiguous(memory_format=torch.channels_last)
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.stages(x)
        return self.head(x.mean((-2, -1)))
