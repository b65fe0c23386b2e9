r"""A fresh region layer that starts where the words are.

Oscar comes with regions and words in one space, learned from millions of pictures; a text encoder
with a fresh region layer has to find out first what a region has to do with a word. The detector
knows: each region comes with a tag. Least squares carry the regions to the words of their tags,

    W, b = argmin  \sum_r |W r + b - e(tag of r)|^2        e: mean embedding of a tag's words

without a look at any question or answer. What no tag says (colour, material, state) this map would
drop, so the fresh weights W_0 stay beside it, as large as spreads regions equally far:

    W <- W + W_0 spread(W) / spread(W_0)        spread(W)^2 = mean over r of |W (r - mean r)|^2

The regions' norm starts as that of the words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longtail_bench.vqa.model import VisionLanguage

RIDGE = 1e-3  # of the mean variance of a region's numbers: some of them may be constant


@torch.no_grad()
def align(model: VisionLanguage, regions: Tensor, words: Tensor) -> None:
    """Changes the region layer of `model`.

    Args:
        regions: [n, width], box geometry included.
        words: [n, H], the mean embedding of the words of each region's tag.
    """
    mean, target = regions.double().mean(0), words.double().mean(0)
    x, y = regions.double() - mean, words.double() - target
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * float(gram.diagonal().mean()))
    found = torch.linalg.solve(gram, x.T @ y).T
    fresh = model.region.weight.double()
    spread = float((x @ found.T).norm())
    if not spread > 0:
        raise ValueError("align needs regions with different tags")
    weight = found + fresh * (spread / float((x @ fresh.T).norm()))
    model.region.weight.copy_(weight)
    model.region.bias.copy_(target - weight @ mean)
    if isinstance(model.region_norm, nn.LayerNorm):
        model.region_norm.weight.copy_(model.encoder.get_parameter("embed_gain"))
        model.region_norm.bias.copy_(model.encoder.get_parameter("embed_shift"))
