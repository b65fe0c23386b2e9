"""Image bytes on their way into a network: augmentation, then normalisation.

Both are layers of the model, so data sets and replay buffers hold the published bytes, evaluation
sees them unchanged, and a replayed image is augmented anew each time it is drawn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.support.random import derive, uniform


class Pixels(nn.Module):
    """Bytes [..., C, H, W] to floats: (x / 255 - mean) / std for each channel."""

    pointwise = True  # acts on any leading dimensions: see `longtail.replicas.linear_chain`

    def __init__(self, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"Invalid mean and std: {mean}, {std}")
        self.mean, self.std = tuple(mean), tuple(std)
        # Constants, not buffers: they are no state, and replicas would give each its own copy.
        self._affine: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            return x  # floats are taken as they are
        if self.mean == (0.0,) and self.std == (1.0,):
            return x.float().mul_(1 / 255)
        if x.device not in self._affine:
            std = torch.tensor(self.std, device=x.device)[:, None, None]
            mean = torch.tensor(self.mean, device=x.device)[:, None, None]
            self._affine[x.device] = 1 / (255 * std), -mean / std
        scale, shift = self._affine[x.device]
        return torch.addcmul(shift, x.float(), scale)


class RandomCropFlip(nn.Module):
    """In training, each image [..., C, H, W] moves by up to `padding` pixels and may be mirrored.

    The k-th image of the n-th training pass of seed s always gets the same shift: the random
    numbers are a function of (s, n, k), and n is a buffer of the model, hence in its snapshots.
    """

    pointwise = True
    seed: Tensor
    passes: Tensor

    def __init__(self, seed: int, padding: int = 4) -> None:
        super().__init__()
        if padding < 0:
            raise ValueError(f"Invalid padding: {padding}")
        self.padding = padding
        self.register_buffer("seed", torch.tensor(derive(seed, "augmentation")))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        stream = self.seed + self.passes  # [], or [S] for a stack of replicas
        self.passes.add_(1)
        *lead, channels, height, width = x.shape
        each = lead[-1]  # images of one replica: the last leading dimension
        u = uniform(3 * each, stream.reshape(-1), "crop", device=x.device)
        u = u.unflatten(-1, (3, each)).movedim(-2, 0)  # three numbers an image: [3, S, each]
        top, left = (u[:2] * (2 * self.padding + 1)).long().flatten(1)
        mirrored = (u[2] < 0.5).flatten()

        images = nn.functional.pad(x.reshape(-1, channels, height, width), [self.padding] * 4)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(len(top), -1)
        columns = left[:, None] + torch.where(mirrored[:, None], width - 1 - columns, columns)
        n = torch.arange(len(top), device=x.device)[:, None, None, None]
        c = torch.arange(channels, device=x.device)[:, None, None]
        return images[n, c, rows[:, None, :, None], columns[:, None, None, :]].reshape(x.shape)
