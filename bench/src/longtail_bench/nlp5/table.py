"""The table of texts and their answers, read in a few widths so that steps can be captured.

Row i is ``values[offsets[i]:offsets[i + 1]]``, its answer the last ``sizes[i]`` of them. How wide a
batch has to be is looked up on the host, where lengths are kept as well, and rounded up; the device
then gathers rows of that width without being waited for. Targets are the rows' own numbers: the
answers are among the inputs, and evaluation looks the questions up by number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longtail.tasks import Batch, Device, Ragged, Rows

WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512)
ANSWERS = (4, 8, 16, 32, 64)
Shape = tuple[int, int]


class AnswerTable:
    """Rows of token ids that end in an answer.

    Args:
        prompts, answers: token ids, one list a row.
    """

    host_index = True
    full_batches = True  # a short text costs less than one more shape to capture

    def __init__(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        self.lengths = np.array([len(row) for row in rows], dtype=np.int64)  # on the host
        self.answers = np.array([len(answer) for answer in answers], dtype=np.int64)
        self.values = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
        self.offsets = torch.tensor([0, *self.lengths.tolist()]).cumsum(0)
        self.sizes = torch.from_numpy(self.answers.copy())

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Tensor | slice) -> Batch:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)))
        shape, numbers = self.stage(index.cpu())
        return self.assemble(shape, numbers.to(self.values.device))

    def stage(self, index: Tensor) -> tuple[Shape, Tensor]:
        """How wide rows and answers of a batch are, and the numbers of its rows."""
        rows = index.numpy()
        if not rows.size:
            return (WIDTHS[0], ANSWERS[0]), index
        widest = int(self.lengths[rows].max()), int(self.answers[rows].max())
        return (rounded(widest[0], WIDTHS), rounded(widest[1], ANSWERS)), index

    def assemble(self, shape: Shape, numbers: Tensor) -> Batch:
        """The rows with these numbers, on the device: the same kernels for the same shape."""
        starts, ends = self.offsets[numbers], self.offsets[numbers + 1]
        sizes = self.sizes[numbers]
        ids = self._gather(starts, ends - starts, shape[0])
        answer = self._gather(ends - sizes, sizes, shape[1])
        return {"ids": ids, "answer": answer}, numbers

    def _gather(self, starts: Tensor, lengths: Tensor, width: int) -> Ragged:
        columns = torch.arange(width, device=starts.device)
        where = (starts[..., None] + columns).clamp(max=len(self.values) - 1)
        found = self.values[where].long().masked_fill(columns >= lengths[..., None], 0)
        return Ragged(found, lengths)

    def narrow(self, start: int, stop: int) -> Rows:
        return Rows(self, torch.arange(start, stop))

    def to(self, device: Device) -> AnswerTable:
        moved = AnswerTable.__new__(AnswerTable)
        moved.__dict__.update(self.__dict__)
        for name in ("values", "offsets", "sizes"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved


def rounded(width: int, widths: Sequence[int]) -> int:
    """The next of the known widths; beyond the largest a multiple of it."""
    known = next((w for w in widths if w >= width), None)
    return known or -(-width // widths[-1]) * widths[-1]
