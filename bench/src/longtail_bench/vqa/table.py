"""Questions with the regions of their images, as a table of fixed shapes.

A row's inputs are what Oscar reads, its target the answer's number:

    {"ids" [T], "cut" [], "regions" [K, F + 6], "count" []}

`ids` are padded, `cut` is where the tags begin, `regions` are features with box geometry of which
the first `count` are real. All rows have one shape, so a step on them can be captured as a graph.

Text and answers take a few bytes a row and live on the device. Regions do as well where they fit;
otherwise they stay memory-mapped and a batch is copied from there through pinned memory, while the
device is still busy with the batch before. Both ways give the same numbers.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from longtail.tasks import Batch, Device, Rows
from longtail_bench.vqa.prepared import Regions, geometry

Placement = Literal["auto", "memory", "storage"]
EXTRA = 4  # numbers of a row behind its token ids: cut, count, answer, image
SHARE = 0.4  # of the free memory that regions may take where the placement is "auto"
BLOCK = 4096  # images padded at once
THREADS = 4  # that copy out of storage; more do not make memory faster


class PaddedRegions:
    """The regions of all images in one tensor [images, K, F + 6] on the device."""

    def __init__(self, stored: StoredRegions, device: Device) -> None:
        images = len(stored.counts)
        shape = (images, stored.limit, stored.width)
        self.values = torch.zeros(shape, dtype=torch.float16, device=device)
        for start in range(0, images, BLOCK):
            stop = min(start + BLOCK, images)
            self.values[start:stop].copy_(stored.read_block(start, stop))

    def __call__(self, images: Tensor) -> Tensor:
        found = self.values.index_select(0, images.flatten())
        return found.view(*images.shape, *self.values.shape[1:])


class StoredRegions:
    """The regions of all images where they are: memory-mapped, end to end."""

    def __init__(self, regions: Regions, limit: int) -> None:
        self.regions, self.limit = regions, limit
        self.starts = regions.offsets[:-1]
        self.counts = np.minimum(np.diff(regions.offsets), limit)
        self.width = regions.width + 6
        self._pool: ThreadPoolExecutor | None = None

    def read(self, images: np.ndarray, pinned: bool = False) -> Tensor:
        """Padded with zeros, float16 [n, K, F + 6]."""
        shape = (len(images), self.limit, self.width)
        out = torch.empty(shape, dtype=torch.float16, pin_memory=pinned)
        target = out.numpy()

        def copy(part: range) -> None:
            for i in part:
                self._copy(int(images[i]), target[i])

        if out.numel() < 1 << 20:
            copy(range(len(images)))
            return out
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS)
        parts = [range(i, len(images), THREADS) for i in range(THREADS)]
        list(self._pool.map(copy, parts))
        return out

    def read_block(self, start: int, stop: int) -> Tensor:
        """Images `start` to `stop` as `read` gives them, without a look at each."""
        places = np.arange(self.limit)
        real = places < self.counts[start:stop, None]
        rows = np.where(real, self.starts[start:stop, None] + places, 0)
        boxes = geometry(self.regions.boxes[rows]).astype(np.float16)
        values = np.concatenate([self.regions.features[rows], boxes], axis=-1)
        values[~real] = 0
        return torch.from_numpy(values)

    def _copy(self, image: int, row: np.ndarray) -> None:
        start, count = self.starts[image], self.counts[image]
        here = slice(start, start + count)
        row[:count, :-6] = self.regions.features[here]
        row[:count, -6:] = geometry(self.regions.boxes[here])
        row[count:] = 0


class QuestionTable:
    """See above.

    Args:
        rows: int32 [N, T + 4]: token ids, where the tags begin, regions, answer and image.
        stored: the regions.
        placement: "memory" copies regions to the device, "storage" leaves them where they are,
            "auto" looks whether they fit.
        device: where batches are wanted.
    """

    def __init__(
        self,
        rows: Tensor,
        stored: StoredRegions,
        placement: Placement = "auto",
        device: Device = "cpu",
    ) -> None:
        self.stored, self.device = stored, torch.device(device)
        self.placement: Placement = placement
        self.capturable = fits(stored, placement, self.device)
        self.host_index = not self.capturable
        self.rows = rows.to("cpu" if self.host_index else device)
        self._on_device: PaddedRegions | None = None
        if self.capturable and self.device.type != "cpu":  # now: a captured step must find it
            self._on_device = PaddedRegions(stored, device)

    @classmethod
    def of(
        cls,
        ids: np.ndarray,
        cuts: np.ndarray,
        answers: np.ndarray,
        images: np.ndarray,
        regions: Regions,
        limit: int,
        placement: Placement = "auto",
    ) -> QuestionTable:
        stored = StoredRegions(regions, limit)
        counts = stored.counts[images]
        rows = np.column_stack([ids, cuts, counts, answers, images]).astype(np.int32)
        return cls(torch.from_numpy(rows), stored, placement)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def _padded(self) -> PaddedRegions | None:
        """Made at the first look: a table on its way to a GPU needs none on the host."""
        if self._on_device is None and self.capturable:
            self._on_device = PaddedRegions(self.stored, self.device)
        return self._on_device

    @property
    def width(self) -> int:
        """Tokens of a row."""
        return self.rows.shape[1] - EXTRA

    def __getitem__(self, index: Tensor | slice) -> Batch:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)))
        index = index.to(self.rows.device)
        rows = self.rows.index_select(0, index.flatten()).unflatten(0, index.shape)
        if self._padded is not None:
            return _batch(rows, self._padded(rows[..., -1]))
        images = rows[..., -1].flatten().numpy()
        if self.device.type == "cpu":
            return _batch(rows, self.stored.read(images).unflatten(0, index.shape))
        # torch keeps pinned memory until what was copied from it has arrived
        regions = self.stored.read(images, pinned=True).to(self.device, non_blocking=True)
        rows = rows.pin_memory().to(self.device, non_blocking=True)
        return _batch(rows, regions.unflatten(0, index.shape))

    def narrow(self, start: int, stop: int) -> Rows:
        return Rows(self, torch.arange(start, stop))

    def to(self, device: Device) -> QuestionTable:
        if torch.device(device) == self.device:
            return self
        return QuestionTable(self.rows, self.stored, self.placement, device)


def fits(stored: StoredRegions, placement: Placement, device: torch.device) -> bool:
    """Whether the regions are copied to the device."""
    if placement != "auto":
        return placement == "memory"
    size = 2 * len(stored.counts) * stored.limit * stored.width
    if device.type == "cuda":
        return size <= SHARE * torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return size <= 1 << 30
    return size <= SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _batch(rows: Tensor, regions: Tensor) -> Batch:
    inputs = {
        "ids": rows[..., :-EXTRA],
        "cut": rows[..., -4],
        "regions": regions.float(),  # autocast cannot join halves where it computes in bfloat16
        "count": rows[..., -3],
    }
    return inputs, rows[..., -2].long()
